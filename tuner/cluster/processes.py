"""Find and kill the processes of one Ray session.

The processes have a mark that identifies them: they inherit the session's unique name in the environment variable `TUNER_RAY_SESSION`.

Process ids and names cannot identify a session: the system reuses ids, and every Ray cluster on the machine uses the
same names.
"""

import contextlib
import os
import time
from collections.abc import Iterator

import psutil

MARK = "TUNER_RAY_SESSION"
KILL_TIMEOUT_S = 10.0
# Keeps the mark readable. Without this variable, Ray sets process titles by overwriting the environment in memory.
KEEP_ENVIRONMENT = {"SPT_NOENV": "1"}


def mark_of(pid: int) -> str | None:
    """Return the Ray session to which a process belongs, which is the value of its mark.

    Return None if the process has no mark or has ended. An ending process loses its mark while its status is still "running".
    """
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.environ().get(MARK)
    except (psutil.Error, OSError):
        return None


def marked(prefix: str) -> Iterator[psutil.Process]:
    """Yield each running process whose session has a name that begins with `prefix`, except the calling process.

    This reads the environment of every process on the machine, which takes about 50 µs for each.
    """
    for pid in psutil.pids():
        if pid != os.getpid() and (mark_of(pid) or "").startswith(prefix):
            with contextlib.suppress(psutil.Error):
                yield psutil.Process(pid)


def kill_marked(prefix: str) -> int:
    """Kill all processes of the sessions whose names begin with `prefix`, and the user code that they run.

    Return how many processes were killed. The search is repeated until it finds none, because a process may fork while the
    processes are listed.

    Raises:
        TimeoutError: Some processes survive.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while left := _families(prefix):
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"processes {sorted(process.pid for process in left)} have not ended after SIGKILL"
            )
        for process in left:
            killed.add(process.pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1.0)
    return len(killed)


def _families(prefix: str) -> list[psutil.Process]:
    """Return the processes whose mark begins with `prefix`, and their descendants.

    The descendants include user code, which has no mark because it does not inherit the environment.
    """
    by_pid: dict[int, psutil.Process] = {}
    for process in marked(prefix):
        by_pid[process.pid] = process
        with contextlib.suppress(psutil.Error):
            by_pid.update((child.pid, child) for child in process.children(recursive=True))
    return [process for process in by_pid.values() if process.is_running() and _is_no_zombie(process)]


def _is_no_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
