"""Measure an attempt: its time by cost kind, and its use of processors, memory and GPUs.

GPUs are measured with NVIDIA's management library (NVML), which comes with the GPU driver. `pip install tuner[gpu]`
installs its Python binding. If either is missing, GPUs are not measured. GPU utilisation is the share of the last
sampling period in which a kernel of any process ran; the period is 1/6 s to 1 s, depending on the device. GPU memory is
that of the whole device.
"""

import contextlib
import importlib
import math
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.domain.job import MAX_PACK
from tuner.domain.usage import MAX_FACTS, Fact, count_of, facts_of
from tuner.worker.process_tree import ResourceUse


class SharedTime:
    """Divides the time of a worker equally among the attempts that run on it at the same time. Thread-safe.

    While `n` attempts run, each of them is given `1/n` of the time. So the times of all attempts add up to the time of the worker.

    Args:
        born_ns: When the worker began to cost money, on the monotonic clock.
        clock: Returns the nanoseconds of the monotonic clock.
    """

    # The parts of a nanosecond that are counted, so that dividing by any number of attempts up to 64 is exact.
    _PARTS = math.lcm(*range(1, MAX_PACK + 1))

    def __init__(self, born_ns: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._lock, self._now_ns = threading.Lock(), clock
        # Each period in which the number of attempts did not change: its beginning, how many attempts ran, and the parts that each
        # attempt was given before it.
        self._begins, self._running, self._given = [born_ns], [0], [0]
        self._joined = list[int]()  # when each attempt that runs joined
        self.is_fresh = True  #: Whether no attempt has joined yet.
        self.ended = 0  #: How many attempts have left.
        self.free_since_ns: int | None = born_ns  #: Since when no attempt has run. None while one runs.

    def join(self, at_ns: int) -> int:
        """Count one more attempt, and return from when on it counts.

        It counts from `at_ns` on, or from now on if another attempt has run since then.
        """
        with self._lock:
            joined_ns = self._change(at_ns if self.free_since_ns is not None else self._now_ns(), +1)
            self.free_since_ns, self.is_fresh = None, False
            self._joined.append(joined_ns)
            return joined_ns

    def leave(self, joined_ns: int) -> None:
        """Count one attempt less from now on. `joined_ns` is when it joined."""
        with self._lock:
            now = self._change(self._now_ns(), -1)
            self._joined.remove(joined_ns)
            self.ended += 1
            self.free_since_ns = None if self._joined else now
            # Nobody asks for the share of a period before the oldest attempt joined.
            oldest = bisect_right(self._begins, min(self._joined, default=now)) - 1
            del self._begins[:oldest], self._running[:oldest], self._given[:oldest]

    def share_ns(self, since_ns: int, until_ns: int) -> int:
        """Return how many nanoseconds of a period belong to each attempt that ran during all of it."""
        with self._lock:
            return (self._given_until(until_ns) - self._given_until(since_ns)) // self._PARTS

    def _change(self, at_ns: int, more: int) -> int:
        at_ns = max(at_ns, self._begins[-1])
        self._given.append(self._given_until(at_ns))
        self._running.append(self._running[-1] + more)
        self._begins.append(at_ns)
        return at_ns

    def _given_until(self, at_ns: int) -> int:
        period = max(0, bisect_right(self._begins, at_ns) - 1)
        sharers = max(1, self._running[period])
        return self._given[period] + (at_ns - self._begins[period]) * self._PARTS // sharers


def whole_ns(since_ns: int, until_ns: int) -> int:
    """Return the length of a period: on a worker that runs one attempt at a time, all of it belongs to the attempt."""
    return until_ns - since_ns


class Stopwatch:
    """Measures the time of an attempt by cost kind. A later reading never shows less time of a kind than an earlier one.

    Not thread-safe: the supervisor's lock guards it.

    Args:
        kind: The first cost kind.
        began_ns: When the attempt began, on the monotonic clock.
        share_ns: Returns how many nanoseconds of a period belong to this attempt (`SharedTime.share_ns`).
    """

    def __init__(self, kind: str, began_ns: int, share_ns: Callable[[int, int], int] = whole_ns) -> None:
        self._kind, self._since, self._share_ns = kind, began_ns, share_ns
        self._ns: dict[str, int] = {}
        self._shown: dict[str, int] = {}
        self._shown_at = self.began_ns = began_ns

    def at_most(self, wall_ns: int) -> int:
        """Return how much of a time of `wall_ns` nanoseconds the attempt may be given: its mean share so far, or its present one if that is
        larger.
        """
        now = time.monotonic_ns()
        return max(self.of_share(wall_ns), self._share_ns(now, now + wall_ns))

    @property
    def kind(self) -> str:
        """The cost kind to which time is added now."""
        return self._kind

    def switch(self, kind: str, at_ns: int | None = None) -> None:
        """Count the time from `at_ns` on as the cost kind `kind`. None means now.

        If `at_ns` is before the last switch or reading, the instant of the last switch or reading is used. If it is in the future,
        the present is used.
        """
        now = time.monotonic_ns()
        at = max(self._since, self._shown_at, now if at_ns is None else min(at_ns, now))
        self._ns[self._kind] = self._ns.get(self._kind, 0) + self._share_ns(self._since, at)
        self._kind, self._since = kind, at

    def reading(self, lease_ns: int, at_ns: int | None = None) -> dict[str, int]:
        """Return the nanoseconds of each cost kind until `at_ns`, or until now if `at_ns` is None or in the future.

        Time beyond the lease is not counted.
        """
        now = time.monotonic_ns()
        at = max(self._since, self._shown_at, now if at_ns is None else min(at_ns, now))
        shown = dict(self._ns)
        shown[self._kind] = shown.get(self._kind, 0) + self._share_ns(self._since, at)
        over = sum(shown.values()) - lease_ns
        for kind in [self._kind, *shown]:
            cut = min(max(0, over), shown[kind] - self._shown.get(kind, 0))
            shown[kind], over = shown[kind] - cut, over - cut
        self._shown, self._shown_at = shown, at
        return {kind: ns for kind, ns in shown.items() if ns}

    def of(self, kind: str) -> int:
        """Return the nanoseconds of one cost kind so far, including time beyond the lease."""
        return self._ns.get(kind, 0) + (self._running_ns() if kind == self._kind else 0)

    def total_ns(self) -> int:
        return sum(self._ns.values()) + self._running_ns()

    def of_share(self, wall_ns: int) -> int:
        """Return how much of a time of `wall_ns` nanoseconds the attempt would be given, at its mean share so far."""
        all_ns = time.monotonic_ns() - self.began_ns
        return wall_ns if self._share_ns is whole_ns or all_ns <= 0 else wall_ns * self.total_ns() // all_ns

    def _running_ns(self) -> int:
        """Return the time since the last switch."""
        return self._share_ns(self._since, max(self._since, time.monotonic_ns()))


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One measurement of all GPUs of a worker."""

    percent: int  #: NVML's utilisation, the mean over the devices.
    used_bytes: int  #: The memory in use on the device that uses most.
    #: The smallest memory of all devices, and the name and compute capability of the first.
    facts: dict[str, Fact]


READS = "reads"  # the name of the `ReadLog`'s file in the worker's directory
# The most bytes that count for one line, and for one attempt. User code can write any number, but the sum over many attempts must fit
# into 63 bits.
MAX_READ_BYTES = 1 << 46
MAX_LOG_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class DatasetReads:
    """What `tuner.training.dataset` has read since the last call of `ReadLog.take`."""

    read_bytes: int
    bucket_bytes: int  #: How many of these bytes came from buckets of clouds.
    waits: bool  #: Whether training waits for more data.


class ReadLog:
    """The file to which `tuner.training.dataset` appends a line about what it has read. All processes of user code write to it."""

    def __init__(self, home: Path) -> None:
        """Create the file in `home`, the worker's directory."""
        self._file = (home / READS).open("w+b", buffering=0)
        self._taken = 0

    def take(self) -> DatasetReads | None:
        """Return the sums of the new lines, or None without a valid new line.

        One call reads at most 64 KiB of lines. A line that is not valid is skipped.
        """
        data = os.pread(self._file.fileno(), MAX_LOG_BYTES, self._taken)
        lines = data[: data.rfind(b"\n") + 1 or (len(data) if len(data) == MAX_LOG_BYTES else 0)]
        self._taken += len(lines)
        counts = [numbers for line in lines.splitlines() if len(numbers := _counts_of(line)) == 3]
        if not counts:
            return None
        from_buckets = sum(min(read, from_bucket) for read, from_bucket, _ in counts)
        return DatasetReads(sum(count[0] for count in counts), from_buckets, counts[-1][2] > 0)

    def close(self) -> None:
        self._file.close()


def _counts_of(line: bytes) -> list[int]:
    return [min(int(word), MAX_READ_BYTES) for word in line.split() if word.isdigit() and len(word) < 20]


@dataclass
class UsageMeter:
    """Collects the resource usage of one attempt.

    Processor time and training time are both counted from the first measurement during training, so that their ratio is the average
    number of processors in use.
    """

    looked_ns: int = 0  # when the processes were last measured, on the monotonic clock
    look_ns: int = 0  # the processor time that the measurement took
    _since: tuple[int, int] | None = None  # processor time and training time at the first measurement
    _counts: dict[str, int] = field(default_factory=dict)
    _facts: dict[str, Fact] = field(default_factory=dict)

    @property
    def memory_peak_bytes(self) -> int:
        return self._counts.get("memory_peak_bytes", 0)

    def processes(self, use: ResourceUse, *, trained_ns: int) -> None:
        """Add a measurement of the attempt's processes. `trained_ns` is the attempt's training time so far."""
        if self._since is None:
            self._since = (use.cpu_ns, trained_ns)
        cpu, wall = use.cpu_ns - self._since[0], trained_ns - self._since[1]
        # Keep the highest sum. It shrinks when a process stops being a descendant, because the time of that process is then unknown.
        self._peak(cpu_ns=cpu, memory_peak_bytes=use.memory_bytes)
        if wall > 0:
            self._counts["wall_ns"] = wall

    def gpu(self, sample: GpuSample) -> None:
        self._add(gpu_samples=1, gpu_percent=sample.percent)
        self._peak(gpu_memory_peak_bytes=sample.used_bytes)
        self._facts |= sample.facts

    def add_reported(self, usage: object, *, trained_ns: int, of_share: Callable[[int], int]) -> None:
        """Add the usage that the child measured of itself and sent with a report.

        User code can send a value of any type, so it is checked here.

        Args:
            usage: The value from the child.
            trained_ns: The attempt's training time so far.
            of_share: Returns the attempt's share of a time that the child measured (`Stopwatch.of_share`).
        """
        self._counts = {
            "saves": 0,
            "saved_bytes": 0,
            **self._counts,
        }  # an attempt that has reported records 0 saves if it has made none, instead of an unknown number
        if not isinstance(usage, dict):
            return
        self._facts = dict(list((self._facts | facts_of(usage.get("facts"))).items())[:MAX_FACTS])
        waited = count_of(usage.get("data_wait_ns"))
        if waited is not None:
            waited = min(of_share(waited), trained_ns)
            self._counts |= {"data_wait_ns": waited, "compute_ns": trained_ns - waited}

    def saved(self, size_bytes: int) -> None:
        self._add(saves=1, saved_bytes=size_bytes)

    def restored(self, size_bytes: int) -> None:
        """Add the size of a checkpoint that was read for the attempt: the one that it continues from, or that of the teacher."""
        self._add(restored_bytes=size_bytes)

    def artifacts(self, stored_bytes: int) -> None:
        """Set the size of all artifacts that the attempt has in the storage."""
        self._counts["artifact_bytes"] = stored_bytes

    def datasets(self, reads: DatasetReads) -> None:
        """Add the bytes that `tuner.training.dataset` has read."""
        self._add(data_read_bytes=reads.read_bytes, data_bucket_bytes=reads.bucket_bytes)
        for name in ("data_read_bytes", "data_bucket_bytes"):
            self._counts[name] = min(self._counts[name], MAX_READ_BYTES)

    def reading(self) -> dict[str, Any] | None:
        """Return the measurements as a dictionary for the driver, or None if nothing was measured."""
        counts = {
            name: ns for name, ns in self._counts.items() if name != "cpu_ns" or "wall_ns" in self._counts
        }
        return {**counts, "facts": dict(self._facts)} if counts or self._facts else None

    def _add(self, **more: int) -> None:
        for name, value in more.items():
            self._counts[name] = self._counts.get(name, 0) + value

    def _peak(self, **values: int) -> None:
        for name, value in values.items():
            self._counts[name] = max(value, self._counts.get(name, 0))


class Gpus:
    """The GPUs that this process may use according to CUDA_VISIBLE_DEVICES, which Ray sets. Used by one thread."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] | None = None

    def sample(self) -> GpuSample | None:
        """Return a measurement of all GPUs, or None if they cannot be measured, for example because one is split with MIG."""
        try:
            if self._handles is None:
                self._handles = []
                self._nvml = importlib.import_module("pynvml")
                self._nvml.nvmlInit()
                self._handles = self._visible()
            return self._read(self._handles) if self._handles else None
        except Exception:  # no binding, no library, no driver, or versions that do not match
            return None

    def _visible(self) -> list[Any]:
        """Return the handles of the visible GPUs. Raise if one of them does not exist."""
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        if named is None:
            words = [str(i) for i in range(self._nvml.nvmlDeviceGetCount())]
        else:
            words = [word.strip() for word in named.split(",") if word.strip()]
        by_index, by_uuid = self._nvml.nvmlDeviceGetHandleByIndex, self._nvml.nvmlDeviceGetHandleByUUID
        return [by_index(int(word)) if word.isdecimal() else by_uuid(word) for word in words]

    def _read(self, handles: list[Any]) -> GpuSample:
        percents = [int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) for handle in handles]
        memory = [self._nvml.nvmlDeviceGetMemoryInfo(handle) for handle in handles]
        facts: dict[str, Any] = {"gpu_memory_bytes": min(int(device.total) for device in memory)}
        with contextlib.suppress(Exception):  # not every GPU driver supports these queries
            name = self._nvml.nvmlDeviceGetName(handles[0])
            facts["gpu"] = name.decode() if isinstance(name, bytes) else str(name)
            major, minor = self._nvml.nvmlDeviceGetCudaComputeCapability(handles[0])
            facts["gpu_capability"] = f"{major}.{minor}"
        return GpuSample(
            round(sum(percents) / len(percents)), max(int(device.used) for device in memory), facts
        )
