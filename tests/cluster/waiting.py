"""Wait for a condition, with a limit for hangs."""

import time
from collections.abc import Callable

import psutil


def until(holds: Callable[[], bool], *, seconds: float = 120.0) -> float:
    """Wait until the condition holds, and return the seconds it took. Fail if it does not hold in time."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() < began + seconds, f"not within {seconds} s"
        time.sleep(0.02)
    return time.monotonic() - began


def is_dead(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE or not process.is_running()
    except psutil.NoSuchProcess:
        return True
