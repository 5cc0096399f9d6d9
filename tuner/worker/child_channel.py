"""The supervisor's end of a child's channel: read, check and answer the messages of user code.

User code runs in the child and can write any bytes to its channel, so every message is parsed and checked before the
supervisor acts on it. A message that breaks the protocol raises `InvalidMessage`, and the supervisor fails the attempt
with its text. Instants are on the monotonic clock, in nanoseconds. They are clamped to the past, so that a child whose
clock runs ahead cannot raise its bill.

Methods that are called under the supervisor's lock never wait for the child: a reply is sent only if the channel has
room for it. This works on Linux only, because the SIOCOUTQ request (unix(7), "Ioctls") returns how many bytes the child
has not read yet.
"""

import contextlib
import fcntl
import json
import math
import os
import select
import socket
import struct
import termios
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, get_args

from tuner.training.artifacts import MAX_IN_REPORT, NAME, NAMED
from tuner.training.channel import MAX_JOB_METRICS_BYTES, MAX_MESSAGE_BYTES, FailureKind, Kind, metrics_excess

# The most characters in the fields of a message. A message with a longer text is refused.
MAX_PATH_CHARS = 4096
MAX_DETAIL_CHARS = 4000
MAX_TEXT_CHARS = 8000
# A step sends a handful of messages besides its report. Beyond this number the child floods the supervisor.
MAX_BETWEEN_REPORTS = 1000
PHASES = frozenset(get_args(Kind))
FAILURES = frozenset(get_args(FailureKind))


class InvalidMessage(Exception):
    """A child sent a message that the protocol does not allow. The text completes "the trial's process ..."."""


@dataclass(frozen=True, slots=True)
class PhaseMessage:
    """The child announces that its time counts as the cost kind `kind` from `at` on."""

    kind: Kind
    at: int


@dataclass(frozen=True, slots=True)
class ReportMessage:
    """The child finished a step and waits for the reply."""

    step: int
    metrics: Mapping[str, Any]  #: Numbers, strings, booleans and None by name.
    resumable: bool  #: Whether the child can save a checkpoint of this step.
    usage: object  #: The usage that the child measured of itself. Not checked here.
    at: int
    artifacts: tuple[str, ...] = ()  #: Names of files that the child staged for this step.
    last: bool = False  #: Whether user code has returned, so that the trial is complete with this report.


@dataclass(frozen=True, slots=True)
class AskMessage:
    """The child is in the middle of a step and can save there. It waits for the reply."""

    at: int


@dataclass(frozen=True, slots=True)
class SavedMessage:
    """The child wrote a complete checkpoint to the staging directory."""

    step: int
    path: str
    part: int = 0  #: 0, or the number of a checkpoint from the middle of the next step.


@dataclass(frozen=True, slots=True)
class SaveFailedMessage:
    """The child could not write a checkpoint."""

    step: int
    detail: str


@dataclass(frozen=True, slots=True)
class EndedMessage:
    """User code returned."""


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """User code raised an exception."""

    kind: FailureKind
    error: str  #: Name of the exception's class.
    message: str
    traceback: str
    at: int  #: When it was sent, in nanoseconds of the monotonic clock.


ChildMessage = (
    PhaseMessage
    | ReportMessage
    | AskMessage
    | SavedMessage
    | SaveFailedMessage
    | EndedMessage
    | FailedMessage
)


def parse(data: bytes, *, now_ns: int) -> ChildMessage:
    """Parse and check a message of the child. Instants after `now_ns` are set to `now_ns`.

    Raises:
        InvalidMessage: The bytes are not JSON, the type of the message is unknown, or a field has a wrong type or value.
    """
    message = _object(data)
    at = min(_integer(message, "t"), now_ns)
    match message.get("type"):
        case "phase":
            return PhaseMessage(_one_of(message, "kind", PHASES), at)
        case "report":
            return ReportMessage(
                _integer(message, "step"),
                _metrics(message),
                message.get("resumable") is True,
                message.get("usage"),
                at,
                _artifacts(message),
                message.get("last") is True,
            )
        case "ask":
            return AskMessage(at)
        case "saved":
            return SavedMessage(
                _integer(message, "step"),
                _text(message, "path", MAX_PATH_CHARS),
                _integer({"part": 0, **message}, "part"),
            )
        case "save_failed":
            return SaveFailedMessage(_integer(message, "step"), _text(message, "detail", MAX_DETAIL_CHARS))
        case "ended":
            return EndedMessage()
        case "failed":
            return FailedMessage(
                _one_of(message, "kind", FAILURES),
                _text(message, "error", MAX_TEXT_CHARS),
                _text(message, "message", MAX_TEXT_CHARS),
                _text(message, "traceback", MAX_TEXT_CHARS),
                at,
            )
        case unknown:
            raise InvalidMessage(f"sent a message of the unknown type {_shown(unknown)}")


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"sent a message that is not JSON ({type(error).__name__})") from None
    if not isinstance(message, dict):
        raise InvalidMessage(f"sent a message that is not a JSON object but a {type(message).__name__}")
    return message


def check_step(step: int, *, last_step: int, max_step: int | None) -> None:
    """Raise InvalidMessage unless `step` may be reported right after `last_step`."""
    if max_step is not None and step > max_step:
        raise InvalidMessage(f"reported step {_shown(step)}, but its last step is {max_step}")
    if step != last_step + 1:
        raise InvalidMessage(
            f"reported step {_shown(step)} after step {last_step}; report each step once, in order"
        )


def check_saved_step(step: int, *, last_step: int, part: int = 0, parts: int = 0) -> None:
    """Raise InvalidMessage unless the child can have the checkpoint that it announced.

    Args:
        step: The step that the child announced.
        last_step: The last reported step.
        part: The announced number of a save in the middle of the step after `step`, or 0.
        parts: How many saves in the middle of a step the child was ordered to make.
    """
    if part > parts:
        raise InvalidMessage(
            f"announced a checkpoint in the middle of step {step + 1} without an order to save there"
        )
    if not (0 if part else 1) <= step <= last_step:
        raise InvalidMessage(
            f"announced a checkpoint of step {_shown(step)}, but its last report is of step {last_step}"
        )


def check_metrics_room(size: int, room: int | None) -> None:
    """Raise InvalidMessage if the metrics of an attempt have more bytes than its job may still report. None means that they are not limited."""
    if room is not None and size > room:
        raise InvalidMessage(
            f"reported {size} bytes of metrics, which are too many: all reports of a job may have {MAX_JOB_METRICS_BYTES} bytes of metrics as "
            f"JSON, of which {room} were left for this attempt; report fewer metrics or shorter texts, and write long texts to artifacts"
        )


def _metrics(message: Mapping[str, Any]) -> Mapping[str, Any]:
    metrics = message.get("metrics")
    if not isinstance(metrics, dict):
        raise InvalidMessage(f"reported metrics that are not an object but a {type(metrics).__name__}")
    for name, value in metrics.items():
        if value is not None and not isinstance(value, bool | int | float | str):
            raise InvalidMessage(f"reported metric {_shown(name)} as a {type(value).__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidMessage(f"reported metric {_shown(name)} as {value}, which is not JSON")
    if (excess := metrics_excess(metrics)) is not None:
        raise InvalidMessage(f"sent a report that is refused: {excess}")
    return metrics


def _artifacts(message: Mapping[str, Any]) -> tuple[str, ...]:
    names = message.get("artifacts", [])
    if not isinstance(names, list) or len(names) > MAX_IN_REPORT:
        raise InvalidMessage(f"reported artifacts that are not a list of at most {MAX_IN_REPORT} names")
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InvalidMessage(
                f"reported an artifact with the name {_shown(name)}, which is not allowed: {NAMED}"
            )
    return tuple(dict.fromkeys(names))


def _integer(message: Mapping[str, Any], name: str) -> int:
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidMessage(
            f"sent a message whose {name} is {_shown(value)}, not a whole number of at least 0"
        )
    return value


def _text(message: Mapping[str, Any], name: str, most: int) -> str:
    value = message.get(name)
    if not isinstance(value, str) or len(value) > most:
        raise InvalidMessage(f"sent a message whose {name} is not a string of at most {most} characters")
    return value


def _one_of(message: Mapping[str, Any], name: str, known: frozenset[Any]) -> Any:
    value = message.get(name)
    if not isinstance(value, str) or value not in known:
        raise InvalidMessage(
            f"sent a message whose {name} is {_shown(value)}, not one of {', '.join(sorted(known))}"
        )
    return value


def _shown(value: object) -> str:
    """Return at most 60 characters of a value's representation, for an error message."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return "a very large number"
    return repr(value)[:60]


class ChannelEnd:
    """The supervisor's end of a channel to a child, over a Unix stream socket. One thread may receive. Any thread may send."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # never held while something waits for the child
        # held while a thread receives, or waits to send
        self._receiving, self._waiting_to_send = threading.Lock(), threading.Lock()
        self._is_sending = False  # whether a thread is in `send_waiting`
        self._next: bytes | None = None  # the message that the thread in `send_waiting` sends after its own
        self._sent_at = 0.0
        self._room = select.poll()
        self._room.register(connection.fileno(), select.POLLOUT)

    def receive(self) -> bytes:
        """Wait for the next message and return it.

        Raises:
            InvalidMessage: The child announced a message that is too large.
            EOFError, OSError: The child closed its end.
        """
        try:
            with self._receiving:
                return self._connection.recv_bytes(MAX_MESSAGE_BYTES)
        except OSError:
            # After a message above the limit, the connection stays open but is no longer readable. Other errors mean that it closed.
            if not self._connection.closed and not self._connection.readable:
                raise InvalidMessage(f"sent a message of more than {MAX_MESSAGE_BYTES} bytes") from None
            raise

    def send(self, data: bytes) -> bool:
        """Send a short message without waiting. Return False if the buffer is full, because the child does not read.

        While another thread is in `send_waiting`, leave the message to that thread, which sends it next. This happens if the child
        answers the message of `send_waiting` before that call has returned. If the channel is closed, return True, because the
        receiving thread handles that.
        """
        with self._lock:
            if self._is_sending:
                if self._next is not None:
                    return False
                self._next = data
                return True
            with contextlib.suppress(OSError, ValueError):
                # POLLOUT means that at least three quarters of the buffer are free, which is far more than a reply needs.
                if not self._room.poll(0):
                    return False
                self._connection.send_bytes(data)
            self._sent_at = time.monotonic()
            return True

    def send_waiting(self, data: bytes) -> None:
        """Send a message of any length, and wait until the child has taken it. Raise OSError if the child is gone."""
        with self._lock:
            self._is_sending = True
        message: bytes | None = data
        try:
            while message is not None:
                with self._waiting_to_send:
                    self._connection.send_bytes(message)
                self._sent_at = time.monotonic()
                with self._lock:
                    message, self._next = self._next, None
                    self._is_sending = message is not None
        finally:
            self._is_sending = False

    @property
    def unread(self) -> bool:
        """Whether the child has not read all sent messages yet."""
        with contextlib.suppress(OSError, ValueError):
            answer = fcntl.ioctl(self._connection.fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
            return int(struct.unpack("i", answer)[0]) > 0
        return False

    def unread_s(self) -> float:
        """Return how many seconds ago the last message was sent, or 0 if the child has read everything."""
        return time.monotonic() - self._sent_at if self._sent_at and self.unread else 0.0

    @property
    def has_data(self) -> bool:
        """Whether the child sent data that was not received yet, or closed its end."""
        with contextlib.suppress(OSError, ValueError):
            return self._connection.poll(0)
        return False

    def close(self) -> None:
        """Close the channel. Threads that receive or send get an EOFError or OSError before the descriptor's number is free for reuse."""
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(self._connection.fileno())) as same_socket,
        ):
            same_socket.shutdown(socket.SHUT_RDWR)
        with self._receiving, self._waiting_to_send, self._lock:
            self._connection.close()
