"""Find, measure and kill a process and its descendants, using /proc."""

import contextlib
import ctypes
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36
KILL_S = 8.0  # shorter than the supervisor's wait for its fork server to clean up
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def become_subreaper() -> None:
    """Make the kernel give orphaned descendants to this process as children, so that it can find and kill them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """The processes, threads and memory that a process and its descendants use now."""

    processes: int
    memory_bytes: int


def resource_use(pid: int, *, most: int) -> ResourceUse:
    """Return the resources that all descendants of a process use, or those of the process itself if it has none.

    If the process is a subreaper, this includes orphans. The largest shared memory of any process is counted once, instead of the shared
    memory of each.

    Args:
        pid: The process.
        most: Stop looking for descendants soon after this many were found.
    """
    count, memory, shared_most = 0, 0, 0
    with contextlib.suppress(OSError, psutil.Error):
        for one in descendants(pid, most=most) or [pid]:
            with contextlib.suppress(OSError):
                resident, shared = memory_of(one)
                memory, shared_most = memory + resident - shared, max(shared_most, shared)
                count += len(os.listdir(f"/proc/{one}/task"))
    return ResourceUse(count, memory + shared_most)


def memory_of(pid: int) -> tuple[int, int]:
    """Return the resident memory of a process and the shared part of it, in bytes."""
    _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_bytes().split()
    return int(resident) * _PAGE_BYTES, int(shared) * _PAGE_BYTES


def descendants(pid: int, *, most: int | None = None) -> list[int]:
    """Return the descendants of a process. If there are more than `most`, return only some of them, but more than `most`."""
    found, waiting = list[int](), [pid]
    while waiting and (most is None or len(found) <= most + 1):
        parent = waiting.pop()
        with contextlib.suppress(ProcessLookupError):
            for task in os.listdir(f"/proc/{parent}/task"):
                listed = Path(f"/proc/{parent}/task/{task}/children")
                try:
                    waiting += map(int, listed.read_bytes().split())
                except FileNotFoundError:
                    if listed.parent.exists():  # this kernel does not list children in /proc
                        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
        found.append(parent)
    return found[1:]


def kill_descendants(pid: int, *, within_s: float = 2.0) -> bool:
    """Kill all descendants of a process until none is left or the time is over. Return True if none is left.

    A process that forks while it is being killed leaves another one, so this looks again. Zombies count as gone, because their parent
    may be stopped and therefore not wait for them.
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
    """Kill all descendants of this process and collect their exit status, except that of `without`, which other code collects.

    Wait up to `KILL_S` until they are gone. A process with GPU memory stays until the GPU driver has freed it, so that the next attempt
    finds the GPU free.
    """
    kill_descendants(os.getpid(), within_s=KILL_S)
    with contextlib.suppress(OSError, psutil.Error):
        for child in descendants(os.getpid()):
            if child != without and _is_zombie(child):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)


def _is_zombie(pid: int) -> bool:
    """Return whether a process is a zombie or no longer exists."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    return True
