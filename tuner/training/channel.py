"""The words between a worker's supervisor and the child process in which user code runs. The standard library alone.

Messages are JSON objects over a `multiprocessing.connection.Connection`. The child tells; it is answered once, after each
report: go on, save, stop. Until the answer comes it waits, so nothing is trained that was not allowed.
"""

import json
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from numbers import Real
from typing import Any, Literal

from tuner.training import measured

Kind = Literal["setup", "restore", "train", "checkpoint"]  # what a child can say that it does
FailureKind = Literal["raised", "import", "metrics", "memory"]
Metric = float | int | str | bool | None
MAX_MESSAGE_BYTES = 1 << 20
STATE_FILE = "state.pt"  # in which `SpotSafe` saves


class StopTraining(SystemExit):
    """Raised in user code when its attempt is over. Nothing is wrong: let it pass."""


class MetricsRefused(ValueError):
    """What was reported cannot be recorded."""


@dataclass(frozen=True, slots=True)
class Begin:
    """What the child is to do. `first_step` is the last finished step (0: none); `restore` a checkpoint's directory. `echo`: to
    save at once what it restored, so that it can be compared. `seed`: of its random generators; None leaves them as they are."""

    trial: str
    attempt: int
    entry: str
    config: Mapping[str, Any]
    staging: str
    restore: str | None = None
    first_step: int = 0
    max_step: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    echo: bool = False
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What a child does after a report, in this order: flush, keep, save, stop."""

    stop: bool  #: The attempt is over.
    save: bool  #: Write a checkpoint of this step.
    keep: bool = (
        False  #: Keep a copy of this step's state in place of the one kept before, and write nothing yet.
    )
    flush: bool = False  #: Write a checkpoint of the copy that was kept.


class Channel:
    """The child's end. One thread reports; checkpoints may be announced from another."""

    def __init__(self, connection: Connection, begin: Begin) -> None:
        self.begin = begin
        self._connection = connection
        self._sending = threading.Lock()

    def phase(self, kind: Kind) -> None:
        """The time from now on is of this kind."""
        self._send({"type": "phase", "kind": kind})

    def report(self, step: int, metrics: Mapping[str, Any], *, resumable: bool) -> Reply:
        """Send a report and wait for the reply.

        Raises:
            StopTraining: The attempt is over, and nothing is left to write.
            MetricsRefused: A metric cannot be recorded.
        """
        shown = {name: _word(value) for name, value in plain_metrics(metrics).items()}
        told = {"step": step, "metrics": shown, "resumable": resumable, "usage": measured.taken()}
        self._send({"type": "report", **told})
        answer = json.loads(self._connection.recv_bytes())
        reply = Reply(
            answer["type"] == "stop", *(bool(answer.get(name)) for name in ("save", "keep", "flush"))
        )
        if reply.stop and not reply.save and not reply.flush:
            raise StopTraining(0)
        return reply

    def saved(self, step: int, path: str, seconds: float) -> None:
        """A complete checkpoint lies at `path`; it is the supervisor's from here on."""
        self._send({"type": "saved", "step": step, "path": path, "seconds": seconds})

    def save_failed(self, step: int, detail: str) -> None:
        self._send({"type": "save_failed", "step": step, "detail": detail[:4000]})

    def ended(self) -> None:
        self._send({"type": "ended"})

    def failed(self, error: str, message: str, traceback: str, *, kind: FailureKind = "raised") -> None:
        text = {"error": error[:8000], "message": message[:8000], "traceback": traceback[-8000:]}
        self._send({"type": "failed", "kind": kind, **text})

    def _send(self, message: dict[str, Any]) -> None:
        data = _encoded(message)
        with self._sending:
            self._connection.send_bytes(data)


_current: Channel | None = None


def current() -> Channel | None:
    """The open channel, or None where no supervisor is: in a plain script, or under plain Ray Tune."""
    return _current


def open_channel(connection: Connection) -> Channel:
    """The child's first act: waits for what it is to do."""
    global _current
    message = json.loads(connection.recv_bytes())
    message.pop("type")
    _current = Channel(connection, Begin(**message))
    return _current


def close_channel() -> None:
    """What is trained in this process from here on has no supervisor."""
    global _current
    _current = None


def begin_message(begin: Begin) -> bytes:
    """The supervisor's first message."""
    return json.dumps({"type": "begin", **asdict(begin)}).encode()


def reply_message(*, stop: bool, save: bool, keep: bool = False, flush: bool = False) -> bytes:
    """Return the supervisor's reply to a report."""
    return json.dumps({"type": "stop" if stop else "go", "save": save, "keep": keep, "flush": flush}).encode()


def plain_metrics(metrics: Mapping[str, Any]) -> dict[str, Metric]:
    """Tensors and arrays of one element become numbers. Raises MetricsRefused for what is no metric, and for too many."""
    found = {str(name): _plain(name, value) for name, value in metrics.items()}
    _encoded({"metrics": found})
    return found


def _encoded(message: Mapping[str, Any]) -> bytes:
    data = json.dumps({**message, "t": time.monotonic_ns()}).encode()
    if len(data) > MAX_MESSAGE_BYTES:
        raise MetricsRefused(
            f"a report of {len(data)} bytes is too large; report at most {MAX_MESSAGE_BYTES}"
        )
    return data


def _plain(name: object, value: Any) -> Metric:
    if value is None or isinstance(value, bool | str):
        return value
    try:
        number = value if isinstance(value, int | float) else value.item()
    except (AttributeError, ValueError, RuntimeError) as error:
        raise _refused(name, value) from error
    if isinstance(number, bool | int):
        return number
    if isinstance(number, Real):
        return float(number)
    raise _refused(name, value)


def _refused(name: object, value: object) -> MetricsRefused:
    return MetricsRefused(f"metric {name!r} is a {type(value).__name__}; report numbers, words or None")


def _word(value: Metric) -> Metric:
    """A metric as JSON has it: it knows no NaN and no infinities, so these become words."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
