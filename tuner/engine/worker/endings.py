"""How attempts end otherwise than by order, in words that a user can act on."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

from tuner.domain.errors import BadFile
from tuner.engine.worker.limits import Limits, excess
from tuner.engine.worker.server_handle import ForkServer

STATUS_S, LAST_WORDS_S = 10.0, 1.0

Trouble = dict[str, str]


def exited(code: int, log: str) -> Trouble:
    """The child ended without a word: by an exit of its own, or by a signal."""
    tail = f"the end of what it printed:\n{log}" if log else "it printed nothing"
    if code >= 0:
        message = f"user code ended its process with exit status {code}; return from the function instead"
        return {"kind": "exited", "type": "", "message": message, "traceback": tail}
    name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
    hint = ", perhaps by the kernel because memory ran out" if -code == signal.SIGKILL else ""
    return {
        "kind": "killed",
        "type": "",
        "message": f"user code's process was killed by {name}{hint}",
        "traceback": tail,
    }


def lease_ended() -> Trouble:
    message = "the time that was paid for ended before the step did"
    return {"kind": "lease", "type": "", "message": message, "traceback": ""}


def machine_goes(notice: str) -> Trouble:
    return {"kind": "notice", "type": "", "message": notice or "its machine had a notice", "traceback": ""}


def beyond(pid: int, limits: Limits, memory_bytes: int | None) -> Trouble | None:
    """None where all that a fork server started keeps within its limits."""
    match excess(pid, processes=limits.processes, memory_bytes=memory_bytes):
        case "processes", words:
            return {"kind": "processes", "type": "ProcessLimit", "message": words, "traceback": ""}
        case "memory", words:
            message = f"{words}; use a smaller batch or model, or ask for more CPUs a trial"
            return {"kind": "memory", "type": "MemoryLimit", "message": message, "traceback": ""}
        case _:
            return None


def not_stored(step: int, problem: str) -> Trouble:
    message = f"the checkpoint of step {step} could not be stored: {problem}"
    return {"kind": "storage", "type": "StorageFailed", "message": message, "traceback": ""}


def not_begun(error: Exception) -> Trouble:
    """Its checkpoint or package could not be read, or it got no process. A package that is not what was uploaded stays so."""
    message = f"the attempt could not begin: {error}"
    kind = "import" if isinstance(error, BadFile) else "storage"
    return {"kind": kind, "type": "StartFailed", "message": message, "traceback": ""}


def told(message: Mapping[str, str]) -> Trouble:
    """By the child itself."""
    text = {"type": message["error"], "message": message["message"], "traceback": message["traceback"]}
    return {"kind": message["kind"], **text}


def not_written(detail: str) -> Trouble:
    """By user code's own process, on its own machine."""
    return {"kind": "saving", "type": "SaveFailed", "message": detail, "traceback": ""}


def unread(connection: Connection | None) -> bool:
    """Whether a child said something that was not read yet, or closed its channel."""
    with contextlib.suppress(OSError):
        return connection is not None and connection.poll(0)
    return False


def wait_status(changed: threading.Condition, told: Callable[[], object], server: ForkServer) -> None:
    """Under the lock, until a child's status is told of: it comes by way of the fork server, and machines are busy. One that is dead
    has told what it will within a moment."""
    until = time.monotonic() + STATUS_S
    while not changed.wait_for(told, LAST_WORDS_S) and server.alive and time.monotonic() < until:
        pass


def kill_group(pid: int) -> None:
    """A child and all that is in its process group, if there still is such a group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
