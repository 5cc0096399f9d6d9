"""Record each action and acknowledgement as one JSON line, in the order in which they happen."""

import json
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple


class Line(NamedTuple):
    """`at` is in seconds since the run began, by a clock that no fault moves."""

    at: float
    what: str
    facts: dict[str, Any]


class History:
    """A history that any thread may write to. Each line is written to the file at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []
        self._began = time.monotonic()
        self._file = path.open("w")
        self._lock = threading.Lock()

    def now(self) -> float:
        return time.monotonic() - self._began

    def write(self, what: str, **facts: Any) -> float:
        with self._lock:
            line = Line(round(self.now(), 3), what, facts)
            self.lines.append(line)
            self._file.write(json.dumps({"at": line.at, "what": what, **facts}) + "\n")
            self._file.flush()
        return line.at

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> list[Line]:
    lines = []
    for text in path.read_text().splitlines():
        fields = json.loads(text)
        lines.append(Line(fields.pop("at"), fields.pop("what"), fields))
    return lines
