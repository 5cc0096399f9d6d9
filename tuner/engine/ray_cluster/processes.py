"""The processes of one Ray session, known by a mark that every one of them inherits.

A process id alone is reused by the system, and names are shared by every Ray of the machine; the mark is neither.
"""

import contextlib
import os
import time
from collections.abc import Iterator

import psutil

MARK = "TUNER_RAY_SESSION"
# Ray titles its processes by overwriting their environment in memory, and the mark with it, unless this is set.
KEEP_ENVIRONMENT = {"SPT_NOENV": "1"}


def mark_of(pid: int) -> str | None:
    """The session that a process belongs to; None for others, for the dead, and for zombies."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.environ().get(MARK)
    except (psutil.Error, OSError):
        return None


def marked(prefix: str) -> Iterator[psutil.Process]:
    """Every living process but the caller whose session begins so. Looks at each process of the machine, some 50 µs each."""
    for pid in psutil.pids():
        if pid != os.getpid() and (mark_of(pid) or "").startswith(prefix):
            with contextlib.suppress(psutil.Error):
                yield psutil.Process(pid)


def kill_marked(prefix: str, *, timeout_s: float = 10.0) -> int:
    """Kills what is left of the sessions that begin so, user code that they run included, and returns how many processes
    that were.

    One pass is not enough: a process may be forking while the list is read. Raises TimeoutError where some stay.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + timeout_s
    while left := _families(prefix):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {sorted(process.pid for process in left)} survive SIGKILL")
        for process in left:
            killed.add(process.pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1.0)
    return len(killed)


def _families(prefix: str) -> list[psutil.Process]:
    """The marked ones and their descendants: user code runs without the mark, as without all of the environment."""
    found: dict[int, psutil.Process] = {}
    for process in marked(prefix):
        found[process.pid] = process
        with contextlib.suppress(psutil.Error):
            found.update((child.pid, child) for child in process.children(recursive=True))
    return [process for process in found.values() if process.is_running() and _is_no_zombie(process)]


def _is_no_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
