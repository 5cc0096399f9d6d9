"""The protocol between a worker's supervisor and the child process that runs user code. It needs the standard library only.

Messages are JSON objects over a `multiprocessing.connection.Connection`. The supervisor sends the first message. After that the child sends
messages. The supervisor replies only to reports, and to questions that the child asks in the middle of a step. A reply says whether to
continue, save or stop. The child waits for the reply, so it never trains a step that was not allowed.
"""

import contextlib
import json
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from numbers import Real
from typing import Any, Literal

from tuner.training import measured

# The cost kinds with which a child may bill its time from then on. The supervisor bills the other cost kinds.
Kind = Literal["setup", "restore", "train", "checkpoint"]
FailureKind = Literal["raised", "import", "metrics", "memory", "port"]
Metric = float | int | str | bool | None
MAX_MESSAGE_BYTES = 1 << 20
# The database keeps the metrics of each report, so a report may have far fewer bytes of metrics than of a message.
MAX_METRICS = 1000
MAX_METRICS_BYTES = 64 << 10
# Python refuses to write or read integers of more than 4300 digits, which are about 14,284 bits, as JSON.
MAX_INTEGER_BITS = 14_000
# Of all reports of a job together. A million reports of a thousand bytes fit.
MAX_JOB_METRICS_BYTES = 1 << 30
PING = b'{"ping": true}'  # what a worker sends to its batch process to find out whether it hangs
STATE_FILE = "state.pt"  # the file in which `SpotSafe` saves the state
# The least time between two questions that the child asks the supervisor in the middle of a step. A question took 0.36 ms on a busy
# machine. A batch may take less time than a question, so a question at each batch would slow training down.
ASK_S = 0.1


class StopTraining(SystemExit):
    """Raised in user code when its attempt is over. It is not an error; do not catch it."""


class UsedAtImport(RuntimeError):
    """Code at the top level of a module trains, or uses something that belongs to one trial."""


class MetricsRefused(ValueError):
    """A reported metric cannot be recorded."""


@dataclass(frozen=True, slots=True)
class BeginMessage:
    """The supervisor's instructions to the child for one attempt."""

    trial: str
    attempt: int
    entry: str
    config: Mapping[str, Any]
    staging: str
    restore: str | None = (
        None  #: Directory of the checkpoint to restore. None if training starts from the beginning.
    )
    first_step: int = 0  #: The last finished step. 0 if there is none.
    max_step: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    echo: bool = False  #: Whether to save the restored state again at once, so that the self-test can compare both checkpoints.
    seed: int | None = None  #: Seed of the random generators. None leaves them unchanged.
    kind: str | None = (
        None  #: The `kind` of the job's spec, which determines with what arguments the trainable is called.
    )
    metric: str | None = None  #: The metric of the job's objective.
    #: How many bytes of artifacts the attempt may report. None if the job's limit does not apply.
    artifact_room: int | None = None
    rank: int = 0  #: The number of this process among the attempt's processes, from 0.
    #: The environment variables with which the ranks find each other. Empty if there is one process only.
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def rank_on_node(self) -> int:
        """The number of this process among the attempt's processes on this node, from 0."""
        return int(self.variables.get("LOCAL_RANK", 0))

    rungs: Sequence[int] = ()  #: The steps at which trials are compared, lowest first.
    #: One value per rung for each proxy of the job's fidelity.
    proxies: Mapping[str, Sequence[float]] | None = None
    #: The job's teacher: `path` is the directory of its checkpoint, `config` its configuration. None if the job has no teacher.
    teacher: Mapping[str, Any] | None = None
    usd_per_hour: float | None = None  #: The price of a trial's share of the job's machine.
    #: The metrics of `SERVING_METRICS` that the job's objectives or constraints name.
    serving_metrics: Sequence[str] = ()
    #: Path of the AF_UNIX socket on which the worker's batch process trains the model of this trial together with those of other trials
    #: (`tuner.training.Packed`). None if the trial trains in its own process.
    batch_socket: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The supervisor's reply to a report or a question. The child acts on its fields in this order: flush, keep, save, stop."""

    stop: bool  #: The attempt is over.
    save: bool  #: Write a checkpoint of the current state.
    #: Keep a copy of this step's state in memory, and write nothing yet. It replaces an earlier copy.
    keep: bool = False
    flush: bool = False  #: Write a checkpoint of the copy that was kept.


class Channel:
    """The child's end of the connection. Only one thread may call `report` and `ask`.

    Another thread may call `saved` and `save_failed` at the same time.
    """

    def __init__(self, connection: Connection, begin: BeginMessage) -> None:
        self.begin = begin
        self.step = begin.first_step  #: The last reported step.
        self.reporter: int | None = (
            None  #: The identifier of the thread that sent the newest report of this attempt.
        )
        self.is_used_by_run = False  #: Whether a `SpotSafe` or an adapter sends the reports.
        self._connection = connection
        self._is_stopped = False  # whether a reply has said that the attempt is over
        self._sending = threading.Lock()
        self._asked_at = 0.0

    def phase(self, kind: Kind) -> None:
        """Notify the supervisor that the attempt's time from now on is billed as this cost kind."""
        self._send({"type": "phase", "kind": kind})

    def report(
        self,
        step: int,
        metrics: Mapping[str, Any],
        *,
        resumable: bool,
        artifacts: Sequence[str] = (),
        last: bool = False,
    ) -> Reply:
        """Send a report and wait for the reply.

        Args:
            step: The step that has just finished.
            metrics: The metrics of the step, by name.
            resumable: Whether the child can save a checkpoint of this step.
            artifacts: The names of the files that were staged for this step.
            last: Whether user code has returned, so that the trial is complete with this report.

        Raises:
            StopTraining: The attempt is over, and no checkpoint is requested.
            MetricsRefused: A metric cannot be recorded.
        """
        shown = {name: _word(value) for name, value in plain_metrics(metrics).items()}
        report = {"step": step, "metrics": shown, "resumable": resumable, "usage": measured.measurements()}
        more = {**({"artifacts": list(artifacts)} if artifacts else {}), **({"last": True} if last else {})}
        self._send({"type": "report", **report, **more})
        self.step, self.reporter = step, threading.get_ident()
        return self._reply()

    def ask(self) -> Reply:
        """Ask the supervisor, in the middle of a step, whether to save or stop now.

        If the last question was less than `ASK_S` ago, return at once with a reply to continue.

        Raises:
            StopTraining: The attempt is over, and no checkpoint is requested.
        """
        now = time.monotonic()
        if now - self._asked_at < ASK_S:
            return Reply(stop=False, save=False)
        self._send({"type": "ask"})
        reply = self._reply()
        self._asked_at = time.monotonic()
        return reply

    def _reply(self) -> Reply:
        answer = json.loads(self._connection.recv_bytes())
        reply = Reply(
            answer["type"] == "stop", *(bool(answer.get(name)) for name in ("save", "keep", "flush"))
        )
        self._is_stopped = self._is_stopped or reply.stop
        if reply.stop and not reply.save and not reply.flush:
            raise StopTraining(0)
        return reply

    def saved(self, step: int, path: str, *, part: int = 0) -> None:
        """Notify the supervisor that a checkpoint directory is complete. The supervisor owns the directory from then on.

        Args:
            step: The last finished step.
            path: The directory.
            part: 0 if the checkpoint has the state at the end of `step`. Otherwise it has a state in the middle of the next step, and
                `part` counts such checkpoints of the attempt, from 1.
        """
        self._send({"type": "saved", "step": step, "part": part, "path": path})

    def save_failed(self, step: int, detail: str) -> None:
        self._send({"type": "save_failed", "step": step, "detail": detail[:4000]})

    def ended(self) -> None:
        """Notify the supervisor that user code has returned. Do nothing if the attempt is over, because the supervisor knows how it ends."""
        if not self._is_stopped:
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
    """Return the open channel, or None if this process has no supervisor, as in a plain script or under plain Ray Tune."""
    return _current


def open_channel(connection: Connection) -> Channel:
    """Wait for the supervisor's first message and open the channel."""
    global _current
    message = json.loads(connection.recv_bytes())
    message.pop("type")
    _current = Channel(connection, BeginMessage(**message))
    return _current


def close_channel() -> None:
    """Forget the channel. If this process trains again, it does so without a supervisor."""
    global _current
    _current = None


_is_importing = False


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Mark the time in which a worker imports user code. `refuse_at_import` then raises an error."""
    global _is_importing
    before, _is_importing = _is_importing, True
    try:
        yield
    finally:
        _is_importing = before


def refuse_at_import(name: str) -> None:
    """Raise UsedAtImport if a worker is importing user code. A module is imported once for all trials, so nothing in it belongs to one of them."""
    if _is_importing:
        raise UsedAtImport(
            f"{name} is used while the module is imported, so that it belongs to no trial; move it into the function, or below "
            "`if __name__ == '__main__'`"
        )


def message_at_import(error: BaseException) -> str:
    """Return the message of an error that user code raised while it was imported, with advice if the code ended its process."""
    if not isinstance(error, SystemExit):
        return text_of(error)
    return (
        f"the code ended its process with {error.code!r} while it was imported. If it parses a command line, as with argparse, do so below "
        "`if __name__ == '__main__'`: a trial gets no arguments, but its values in `config`"
    )


def text_of(value: object) -> str:
    """Return `str(value)`. If the class of user code fails to produce a text, return which error it raised."""
    try:
        return str(value)
    except Exception as error:
        return f"{type(value).__name__} has no text: its __str__ raised {type(error).__name__}"


def begin_message(begin: BeginMessage) -> bytes:
    """Return the supervisor's first message as bytes to send."""
    return json.dumps({"type": "begin", **asdict(begin)}).encode()


def reply_message(*, stop: bool, save: bool, keep: bool = False, flush: bool = False) -> bytes:
    """Return the supervisor's reply to a report or a question as bytes to send."""
    return json.dumps(
        {"type": "stop" if stop else "continue", "save": save, "keep": keep, "flush": flush}
    ).encode()


def plain_metrics(metrics: Mapping[str, Any]) -> dict[str, Metric]:
    """Return the metrics as plain values. Tensors and arrays with one element become numbers.

    Raises:
        MetricsRefused: A value is not a metric, or the metrics are too large for one report.
    """
    plain = {str(name): _plain(name, value) for name, value in metrics.items()}
    if (excess := metrics_excess({name: _word(value) for name, value in plain.items()})) is not None:
        raise MetricsRefused(excess)
    return plain


def scalars(metrics: Mapping[str, Any]) -> dict[str, Metric]:
    """Return those values of a report that are valid metrics, and drop the others. Nested values are named `a/b`, as in Tune."""
    metrics_by_name: dict[str, Metric] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            metrics_by_name |= {f"{name}/{inner}": metric for inner, metric in scalars(value).items()}
        else:
            with contextlib.suppress(MetricsRefused):
                metrics_by_name |= plain_metrics({name: value})
    return metrics_by_name


def metrics_excess(metrics: Mapping[str, Metric]) -> str | None:
    """Return what is wrong and what to do if the metrics of one report are too many or too large. Return None if they are not."""
    if len(metrics) > MAX_METRICS:
        return f"a report of {len(metrics)} metrics is too large; report at most {MAX_METRICS} metrics"
    size = len(json.dumps(metrics))
    if size > MAX_METRICS_BYTES:
        return f"the metrics of a report have {size} bytes as JSON, which is too large; report at most {MAX_METRICS_BYTES} bytes"
    return None


def _encoded(message: Mapping[str, Any]) -> bytes:
    data = json.dumps({**message, "t": time.monotonic_ns()}).encode()
    if len(data) > MAX_MESSAGE_BYTES:
        raise MetricsRefused(
            f"a report of {len(data)} bytes is too large; report at most {MAX_MESSAGE_BYTES} bytes"
        )
    return data


def _plain(name: object, value: Any) -> Metric:
    if value is None or isinstance(value, bool | str):
        return value
    try:
        number = value if isinstance(value, int | float) else value.item()
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise _refused(name, value) from error
    if isinstance(number, bool | int):
        if number.bit_length() > MAX_INTEGER_BITS:
            raise MetricsRefused(
                f"metric {name!r} is an integer of {number.bit_length()} bits; report integers of at most {MAX_INTEGER_BITS} bits"
            )
        return number
    if isinstance(number, Real):
        return float(number)
    raise _refused(name, value)


def _refused(name: object, value: object) -> MetricsRefused:
    return MetricsRefused(f"metric {name!r} is a {type(value).__name__}; report numbers, text or None")


def _word(value: Metric) -> Metric:
    """Return the metric as a JSON value. NaN and infinities become strings, because JSON has no such numbers."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
