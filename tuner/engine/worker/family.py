"""A process and all that it started, as /proc has them."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


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
