"""A process and all that it started, as /proc has them."""

import contextlib
import ctypes
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36
KILL_S = 8.0  # less than a supervisor waits until its fork server has cleaned up
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def become_subreaper() -> None:
    """Adopt whatever this process's descendants leave behind, so that it can be found."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Taken:
    """By a process and its family now: processes with their threads, and memory."""

    processes: int
    memory_bytes: int


def taken(pid: int, *, most: int) -> Taken:
    """By all that a subreaper's children started, those included whose own parents have ended; by the process itself where it has
    none. Memory that they share is counted once. Not many more than `most` processes are looked at."""
    count, memory, shared_most = 0, 0, 0
    with contextlib.suppress(OSError, psutil.Error):
        for one in descendants(pid, most=most) or [pid]:
            with contextlib.suppress(OSError):
                resident, shared = memory_of(one)
                memory, shared_most = memory + resident - shared, max(shared_most, shared)
                count += len(os.listdir(f"/proc/{one}/task"))
    return Taken(count, memory + shared_most)


def memory_of(pid: int) -> tuple[int, int]:
    """Resident, and shared of it, in bytes."""
    _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_bytes().split()
    return int(resident) * _PAGE_BYTES, int(shared) * _PAGE_BYTES


def descendants(pid: int, *, most: int | None = None) -> list[int]:
    """Some of them, where there are more than `most`."""
    found, waiting = list[int](), [pid]
    while waiting and (most is None or len(found) <= most + 1):
        parent = waiting.pop()
        with contextlib.suppress(ProcessLookupError):
            for task in os.listdir(f"/proc/{parent}/task"):
                listed = Path(f"/proc/{parent}/task/{task}/children")
                try:
                    waiting += map(int, listed.read_bytes().split())
                except FileNotFoundError:
                    if listed.parent.exists():  # a kernel that does not tell
                        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
        found.append(parent)
    return found[1:]


def kill_descendants(pid: int, *, within_s: float = 2.0) -> bool:
    """Kill all descendants of a process, until none is left or the time is over. Return True if none is left.

    A process that forks while it is killed leaves another one, so this looks again. Zombies count as gone: their parent, which
    may be stopped, has not waited for them.
    """
    until = time.monotonic() + within_s
    while True:
        found = list[int]()
        with contextlib.suppress(OSError, psutil.Error):  # a process may end while its children are listed
            found = [one for one in descendants(pid) if not _is_zombie(one)]
        for one in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        if not found or time.monotonic() > until:
            return not found
        time.sleep(0.01)


def kill_own_descendants(*, without: int = 0) -> None:
    """Kill all descendants of this process and collect their exit status, but not that of `without`, which somebody else waits for.

    A process that holds a GPU's memory stays until the driver has taken it back, so that the next attempt finds the GPU free.
    """
    kill_descendants(os.getpid(), within_s=KILL_S)
    with contextlib.suppress(OSError, psutil.Error):
        for child in descendants(os.getpid()):
            if child != without and _is_zombie(child):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)


def _is_zombie(pid: int) -> bool:
    """Return True also for a process that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    return True
