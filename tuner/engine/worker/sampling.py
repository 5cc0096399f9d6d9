"""One thread of a supervisor that looks at what its child uses, once a second: processor time, memory, GPUs.

Linux tells of processes in /proc: a look at one takes 0.05 ms, and 1.5 ms with 30 threads and 16 children, whatever else runs on
the machine, all of whose processes psutil goes through to find children. Beside the thread the child is looked at when it reports, so that attempts of less than
a second are measured too, with a two-hundredth of a processor at most.
"""

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Protocol

import psutil

from tuner.engine.worker.attempt import Attempt
from tuner.engine.worker.family import descendants, memory_of
from tuner.engine.worker.nvml import Gpus
from tuner.engine.worker.using import Processes

SAMPLE_S = 1.0
LOOK_PART = 200
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Sampled(Protocol):
    """Both are read under the lock."""

    @property
    def pid(self) -> int:
        """Of the child; 0: none."""

    @property
    def attempt(self) -> Attempt | None: ...


class Sampler:
    def __init__(self, sampled: Sampled, changed: threading.Condition) -> None:
        self._sampled, self._changed = sampled, changed
        self._gpus = Gpus()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        """Once, however often it is called."""
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            with contextlib.suppress(Exception):  # figures for advice end nobody's training
                self._sample()

    def _sample(self) -> None:
        with self._changed:
            attempt = self._sampled.attempt
            if attempt is None or attempt.state is not None:
                return
            look(attempt, self._sampled.pid)
            wanted = attempt.watch.kind == "train" and attempt.order.get("resources", {}).get("GPU")
        sample = self._gpus.sample() if wanted else None  # without the lock: a sick GPU answers late
        if sample is not None:
            with self._changed:
                attempt.use.gpu(sample)


def look(attempt: Attempt, pid: int) -> None:
    """Notes what the child's processes use, while it trains. Called under the lock."""
    use, began_ns = attempt.use, time.thread_time_ns()
    if (
        not pid
        or attempt.watch.kind != "train"
        or time.monotonic_ns() - use.looked_ns < LOOK_PART * use.look_ns
    ):
        return
    found = processes(pid)
    if found is not None:
        use.processes(found, trained_ns=attempt.watch.of("train"))
    use.looked_ns = time.monotonic_ns()
    use.look_ns = time.thread_time_ns() - began_ns


def processes(pid: int) -> Processes | None:
    """Of a process and its descendants, those included that have ended and were waited for; None where it is gone."""
    try:
        cpu_ns, memory = _cpu_ns(pid), memory_of(pid)[0]
        for child in descendants(pid):
            with contextlib.suppress(OSError):
                cpu_ns += _cpu_ns(child)
                resident, shared = memory_of(child)
                memory += resident - shared
    except (OSError, psutil.Error):
        return None
    return Processes(cpu_ns, memory)


def _cpu_ns(pid: int) -> int:
    """In user code and the kernel, of it and of its children that were waited for."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) * _TICK_NS
