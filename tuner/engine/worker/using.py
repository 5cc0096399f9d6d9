"""The resource usage of an attempt, as sums and peaks of samples. The supervisor's lock guards it. It does no I/O."""

from dataclasses import dataclass, field
from typing import Any

from tuner.domain.usage import MAX_FACTS, Fact, count_of, facts_of


@dataclass(frozen=True, slots=True)
class Processes:
    """Processor time since the start, and current memory, of a process and its descendants."""

    cpu_ns: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One measurement of all GPUs of a worker."""

    percent: int  #: NVML's utilisation, the mean over the devices.
    used_bytes: int  #: The memory in use on the device that uses most.
    facts: dict[str, Fact]  #: Least memory of the devices, and name and compute capability of the first.


@dataclass
class Use:
    """Usage of one attempt. Processor time is counted from the first measurement in training, as is the training time."""

    looked_ns: int = 0  # when the processes were last measured, on the monotonic clock
    look_ns: int = 0  # the processor time that the measurement took
    _since: tuple[int, int] | None = None  # processor time and training time at the first measurement
    _counts: dict[str, int] = field(default_factory=dict)
    _facts: dict[str, Fact] = field(default_factory=dict)

    def processes(self, found: Processes, *, trained_ns: int) -> None:
        """Add a measurement. `trained_ns` is the attempt's training time so far."""
        if self._since is None:
            self._since = (found.cpu_ns, trained_ns)
        cpu, wall = found.cpu_ns - self._since[0], trained_ns - self._since[1]
        # The sum shrinks if a process is no longer a descendant, because its time is no longer known. Keep the peak.
        self._peak(cpu_ns=cpu, memory_peak_bytes=found.memory_bytes)
        if wall > 0:
            self._counts["wall_ns"] = wall

    def gpu(self, found: GpuSample) -> None:
        self._add(gpu_samples=1, gpu_percent=found.percent)
        self._peak(gpu_memory_peak_bytes=found.used_bytes)
        self._facts |= found.facts

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
