"""What a trial's own code printed, kept beside its checkpoints: one file an attempt.

Layout: `<storage>/<project>/<job>/<trial>/logs/a<attempt>.log`: a line of JSON that says how much there was, then its head and its tail.
"""

import json
import re
import time
from dataclasses import dataclass

from tuner.engine.storage import Storage

FOLDER = "logs"
VERSION = 1
_NAME = re.compile(r"a(\d+)\.log")


@dataclass(frozen=True, slots=True)
class Printed:
    """`total` bytes were printed, of which the first and the last are kept. `complete`: nothing more will come."""

    total: int
    head: bytes
    tail: bytes
    complete: bool
    at_ns: int = 0

    def since(self, after: int, limit: int) -> tuple[bytes, int, bytes]:
        """The last `limit` bytes that are kept of those behind the first `after`: up to a gap, how many bytes are missing there, and
        what follows. Where there is no gap, all of it follows."""
        tail_at = self.total - len(self.tail)
        gap = tail_at - len(self.head)
        kept, kept_at = (self.tail, tail_at) if gap else (self.head + self.tail, 0)
        later = kept[max(after, self.total - limit, kept_at) - kept_at :]
        room = limit - len(later) if gap else 0
        earlier = self.head[max(after, len(self.head) - room) :] if room > 0 else b""
        return earlier, gap if earlier else 0, later


class TrialLogs:
    """The logs of one trial. Raises errors of its storage's own kind where that does not answer."""

    def __init__(self, url: str, project: str, job: str, trial: str) -> None:
        self._storage, self._where = Storage(url), (project, job, trial, FOLDER)

    def attempts(self) -> list[int]:
        """Those that have a log, ascending."""
        found = (_NAME.fullmatch(name) for name in self._storage.names(*self._where))
        return sorted(int(match[1]) for match in found if match)

    def write(self, attempt: int, printed: Printed) -> None:
        told = {
            "version": VERSION,
            "total": printed.total,
            "head": len(printed.head),
            "complete": printed.complete,
            "at_ns": time.time_ns(),
        }
        data = json.dumps(told).encode() + b"\n" + printed.head + printed.tail
        self._storage.put_file(data, *self._where, f"a{attempt}.log")

    def read(self, attempt: int) -> Printed | None:
        """None where it printed nothing, so far. Raises ValueError for a file that is no such log."""
        try:
            data = self._storage.read(*self._where, f"a{attempt}.log")
        except FileNotFoundError:
            return None
        line, _, kept = data.partition(b"\n")
        try:
            told = json.loads(line)
            if told["version"] != VERSION:
                raise ValueError(f"it is of version {told['version']}, not {VERSION}")
            head = int(told["head"])
            return Printed(
                int(told["total"]), kept[:head], kept[head:], bool(told["complete"]), int(told["at_ns"])
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the log of attempt {attempt} cannot be read: {error!r}") from error
