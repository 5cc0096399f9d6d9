"""Measure an attempt: its time by kind of cost, and its use of processors, memory and GPUs.

GPUs are measured with NVIDIA's management library (NVML), which comes with the GPU driver. `pip install tuner[gpu]`
installs its Python binding. If either is missing, GPUs are not measured. GPU utilisation is the share of the last
sampling period in which a kernel of any process ran; the period is 1/6 s to 1 s, depending on the device. GPU memory is
that of the whole device.
"""

import contextlib
import importlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.domain.usage import MAX_FACTS, Fact, count_of, facts_of
from tuner.worker.process_tree import ResourceUse


class Stopwatch:
    """Measure time by kind. A later reading never shows less of a kind than an earlier one.

    Not thread-safe: the supervisor's lock guards it.
    """

    def __init__(self, kind: str, began_ns: int) -> None:
        self._kind, self._since = kind, began_ns
        self._ns: dict[str, int] = {}
        self._shown: dict[str, int] = {}
        self._shown_at = began_ns

    @property
    def kind(self) -> str:
        """The kind of the time that passes now."""
        return self._kind

    def switch(self, kind: str, at_ns: int | None = None) -> None:
        """Count the time from `at_ns` on as `kind`. None means now.

        An instant before the last switch or reading is moved to that one. An instant in the future is moved to now.
        """
        now = time.monotonic_ns()
        at = max(self._since, self._shown_at, now if at_ns is None else min(at_ns, now))
        self._ns[self._kind] = self._ns.get(self._kind, 0) + at - self._since
        self._kind, self._since = kind, at

    def reading(self, lease_ns: int, at_ns: int | None = None) -> dict[str, int]:
        """Return nanoseconds by kind until `at_ns`, or until now if that is None or in the future. Time beyond the lease is not
        counted."""
        now = time.monotonic_ns()
        at = max(self._since, self._shown_at, now if at_ns is None else min(at_ns, now))
        shown = dict(self._ns)
        shown[self._kind] = shown.get(self._kind, 0) + at - self._since
        over = sum(shown.values()) - lease_ns
        for kind in [self._kind, *shown]:
            cut = min(max(0, over), shown[kind] - self._shown.get(kind, 0))
            shown[kind], over = shown[kind] - cut, over - cut
        self._shown, self._shown_at = shown, at
        return {kind: ns for kind, ns in shown.items() if ns}

    def of(self, kind: str) -> int:
        """Return the nanoseconds of one kind so far, including time beyond the lease."""
        running = max(0, time.monotonic_ns() - self._since) if kind == self._kind else 0
        return self._ns.get(kind, 0) + running

    def total_ns(self) -> int:
        return sum(self._ns.values()) + max(0, time.monotonic_ns() - self._since)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One measurement of all GPUs of a worker."""

    percent: int  #: NVML's utilisation, the mean over the devices.
    used_bytes: int  #: The memory in use on the device that uses most.
    facts: dict[str, Fact]  #: Least memory of the devices, and name and compute capability of the first.


READS = "reads"  # the name of the file in the worker's directory
# Of one line and of one attempt. User code can write any number, and a sum over many attempts has to fit into 63 bits.
MAX_READ_BYTES = 1 << 46
MAX_LOG_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class DatasetReads:
    """What `tuner.training.dataset` has read since the last look."""

    read_bytes: int
    bucket_bytes: int  #: The part that came from buckets of clouds.
    waits: bool  #: Whether training waits for more.


class ReadLog:
    """The file to which `tuner.training.dataset` adds what it reads. All processes of user code write to it."""

    def __init__(self, home: Path) -> None:
        """Create the file in a worker's directory."""
        self._file = (home / READS).open("w+b", buffering=0)
        self._taken = 0

    def take(self) -> DatasetReads | None:
        """Return what the new lines say, or None without a new line.

        At most 64 KiB of lines are taken at once. A line that is not valid is skipped.
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
    """Usage of one attempt. Processor time is counted from the first measurement in training, as is the training time."""

    looked_ns: int = 0  # when the processes were last measured, on the monotonic clock
    look_ns: int = 0  # the processor time that the measurement took
    _since: tuple[int, int] | None = None  # processor time and training time at the first measurement
    _counts: dict[str, int] = field(default_factory=dict)
    _facts: dict[str, Fact] = field(default_factory=dict)

    def processes(self, use: ResourceUse, *, trained_ns: int) -> None:
        """Add a measurement. `trained_ns` is the attempt's training time so far."""
        if self._since is None:
            self._since = (use.cpu_ns, trained_ns)
        cpu, wall = use.cpu_ns - self._since[0], trained_ns - self._since[1]
        # The sum shrinks if a process is no longer a descendant, because its time is no longer known. Keep the peak.
        self._peak(cpu_ns=cpu, memory_peak_bytes=use.memory_bytes)
        if wall > 0:
            self._counts["wall_ns"] = wall

    def gpu(self, sample: GpuSample) -> None:
        self._add(gpu_samples=1, gpu_percent=sample.percent)
        self._peak(gpu_memory_peak_bytes=sample.used_bytes)
        self._facts |= sample.facts

    def add_reported(self, usage: object, *, trained_ns: int) -> None:
        """Add the usage that the child measured of itself and sent with a report. The value may have any
        type, so it is checked here.

        Args:
            usage: The value from the child.
            trained_ns: The attempt's training time so far.
        """
        self._counts = {
            "saves": 0,
            "saved_bytes": 0,
            **self._counts,
        }  # an attempt that reports has a known number of saves, which may be 0
        if not isinstance(usage, dict):
            return
        self._facts = dict(list((self._facts | facts_of(usage.get("facts"))).items())[:MAX_FACTS])
        waited = count_of(usage.get("data_wait_ns"))
        if waited is not None:
            waited = min(waited, trained_ns)
            self._counts |= {"data_wait_ns": waited, "compute_ns": trained_ns - waited}

    def saved(self, size_bytes: int) -> None:
        self._add(saves=1, saved_bytes=size_bytes)

    def restored(self, size_bytes: int) -> None:
        """Add the size of a checkpoint that was read for the attempt: the one that it continues from, or that of the teacher."""
        self._add(restored_bytes=size_bytes)

    def artifacts(self, stored_bytes: int) -> None:
        """Note the size of the artifacts that the attempt has in the storage."""
        self._counts["artifact_bytes"] = stored_bytes

    def datasets(self, reads: DatasetReads) -> None:
        """Add what `tuner.training.dataset` has downloaded."""
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
        """Return a sample over all GPUs, or None if they cannot be measured, for example a GPU that is split with MIG."""
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
