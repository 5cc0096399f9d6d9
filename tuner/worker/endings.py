"""Errors of attempts that end without a command of the driver, with messages that a user can act on."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from traceback import format_exception

from tuner.domain.errors import BadFile
from tuner.worker.child_channel import FailedMessage
from tuner.worker.limits import UserCodeLimits, excess
from tuner.worker.orders import FailureFields
from tuner.worker.process_tree import descendants, is_tracker, kill, signal_name
from tuner.worker.server_handle import ForkServer, SlotServer

STATUS_S, LAST_WORDS_S = 10.0, 1.0
# The longest wait for the last messages of a process that has exited, and after an attempt has ended: for its starter, for its child to
# exit, and for its artifacts after a notice.
EXIT_GRACE_S = 1.0


def failure(kind: str, message: str, *, error: str = "", traceback: str = "") -> FailureFields:
    """Return the description of a failed attempt for the driver. `error` is the name of the exception's class, or empty."""
    return {"kind": kind, "type": error, "message": message, "traceback": traceback}


def exited(code: int | None, server_code: int | None, log: str) -> FailureFields:
    """Describe the end of a child that exited without sending the reason.

    Args:
        code: Exit status of the child, negative for a signal. None if the fork server could not report it.
        server_code: Exit status of the fork server, negative for a signal, or None if the server is alive.
        log: The last part of what the child printed.
    """
    if code is None and server_code is not None:
        how = signal_name(-server_code) if server_code < 0 else f"exit status {server_code}"
        message = f"the trial's process ended because the fork server that started it ended ({how}{_memory(server_code)})"
    elif code is None:
        message = "user code's process closed its channel to its supervisor; let the training function return instead"
    elif code >= 0:
        message = f"user code ended its process with exit status {code}; return from the function instead"
    else:
        message = f"user code's process was killed by {signal_name(-code)}{_memory(code)}"
    killed = server_code is not None if code is None else code < 0
    tail = f"the end of what it printed:\n{log}" if log else "it printed nothing"
    return failure("killed" if killed else "exited", message, traceback=tail)


def _memory(code: int) -> str:
    return ", perhaps by the kernel because memory ran out" if code == -signal.SIGKILL else ""


def node_lost(number: int, why: str) -> FailureFields:
    """Describe the loss of node `number` of an attempt. `why` is the error by which this worker noticed the loss."""
    return failure("worker", f"node {number} of the trial was lost: {why}")


def of_rank(rank: int, failure: FailureFields) -> FailureFields:
    """Return the description of a failure with the rank at the beginning of its message."""
    return {**failure, "message": f"rank {rank}: {failure['message']}"}


def protocol_broken(what: str) -> FailureFields:
    """Describe a child that was killed because it sent an invalid message.

    `what` completes "the trial's process ...".
    """
    message = f"the trial's process {what}; report with tuner.training or ray.tune.report, from one thread"
    return failure("protocol", message, error="InvalidMessage")


def artifacts_refused(why: str) -> FailureFields:
    message = f"an artifact was refused: {why}"
    return failure("protocol", message, error="ArtifactRefused")


def lease_ended() -> FailureFields:
    return failure(
        "lease", "the attempt's lease (the worker time that was paid for) ended before the step was finished"
    )


def machine_leaves(notice: str) -> FailureFields:
    return failure("notice", notice or "the machine got a preemption notice")


def limit_exceeded(
    pid: int, limits: UserCodeLimits, memory_bytes: int | None, *, shares_imports: bool = False
) -> FailureFields | None:
    """Describe the limit that the descendants of a fork server exceed. Return None if they are within their limits.

    Args:
        pid: The process id of the fork server.
        limits: The limits of the worker.
        memory_bytes: The memory that the attempt may use. None means no limit.
        shares_imports: As in `tuner.worker.limits.excess`.
    """
    match excess(pid, processes=limits.processes, memory_bytes=memory_bytes, shares_imports=shares_imports):
        case "processes", words:
            return failure("processes", f"the trial {words}", error="ProcessLimit")
        case "memory", words:
            message = f"the trial {words}; use a smaller batch or model, or give each trial more CPUs, which raises its share of the memory"
            return failure("memory", message, error="MemoryLimit")
        case _:
            return None


def not_stored(step: int, problem: str) -> FailureFields:
    return failure(
        "storage", f"the checkpoint of step {step} could not be stored: {problem}", error="StorageFailed"
    )


def not_begun(error: Exception) -> FailureFields:
    """Describe an attempt that could not begin: its checkpoint or package could not be read, or no child could be forked.

    `BadFile` means that the package differs from the uploaded one. A retry cannot fix that, so the kind is `import`, not `storage`.
    """
    kind = "import" if isinstance(error, BadFile) else "storage"
    return failure(kind, f"the attempt could not begin: {error}", error="StartFailed")


def supervisor_failed(error: Exception) -> FailureFields:
    """Describe an attempt that the supervisor cannot watch any more, because one of its threads raised an unexpected exception."""
    message = f"the worker cannot supervise the trial's process any more: {error}; report this error with its traceback to the operator"
    return failure(
        "supervisor", message, error=type(error).__name__, traceback="".join(format_exception(error))
    )


def user_code_raised(message: FailedMessage) -> FailureFields:
    return failure(message.kind, message.message, error=message.error, traceback=message.traceback)


def not_written(detail: str) -> FailureFields:
    """Describe a checkpoint that the child could not write to the staging directory."""
    return failure("saving", detail, error="SaveFailed")


def wait_status(
    changed: threading.Condition, is_known: Callable[[], object], server: ForkServer | SlotServer
) -> None:
    """Wait until the exit status of a child is known, or for a limited time. Call it under the lock.

    The fork server sends the status. While it lives, the limit is `STATUS_S`, because it may be slow on a busy machine. If it is dead, the
    limit is `LAST_WORDS_S`, because the last message that it sent arrives within this time.

    Args:
        changed: The supervisor's lock and condition.
        is_known: Returns a true value once the wait may end.
        server: The fork server of the child.
    """
    until = time.monotonic() + STATUS_S
    while not changed.wait_for(is_known, LAST_WORDS_S) and server.alive and time.monotonic() < until:
        pass


def kill_group(pid: int) -> None:
    """Kill a child, and its process group if the group still exists.

    If the child has resource trackers, kill its other descendants instead of the group. `kill_descendants` ends the trackers later.
    """
    members = descendants(pid)
    trackers = {member for member in members if is_tracker(member)}
    if trackers:
        for member in (pid, *members):
            if member not in trackers:
                kill(member)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
