"""What an attempt uses, as sums and peaks of samples. Guarded by the supervisor's lock; no I/O."""

from dataclasses import dataclass, field
from typing import Any

from tuner.domain.usage import MAX_FACTS, Fact, count_of, facts_of


@dataclass(frozen=True, slots=True)
class Processes:
    """A process and its descendants: their processor time since they began, and their memory now."""

    cpu_ns: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class GpuSample:
    """`percent` is NVML's utilisation, the mean over the devices; `used_bytes` the most that is taken of one of them."""

    percent: int
    used_bytes: int
    facts: dict[str, Fact]


@dataclass
class Use:
    """`looked_ns` is when the processes were last looked at, and `look_ns` the processor time that it took. Theirs counts from the
    first look of the training on, against the training time that has passed since."""

    looked_ns: int = 0
    look_ns: int = 0
    _since: tuple[int, int] | None = None
    _counts: dict[str, int] = field(default_factory=dict)
    _facts: dict[str, Fact] = field(default_factory=dict)

    def processes(self, found: Processes, *, trained_ns: int) -> None:
        """`trained_ns` is the attempt's training so far."""
        if self._since is None:
            self._since = (found.cpu_ns, trained_ns)
        cpu, wall = found.cpu_ns - self._since[0], trained_ns - self._since[1]
        # Less than before where a child left its family: what it used is known no more.
        self._peak(cpu_ns=cpu, memory_peak_bytes=found.memory_bytes)
        if wall > 0:
            self._counts["wall_ns"] = wall

    def gpu(self, found: GpuSample) -> None:
        self._add(gpu_samples=1, gpu_percent=found.percent)
        self._peak(gpu_memory_peak_bytes=found.used_bytes)
        self._facts |= found.facts

    def told(self, usage: object, *, trained_ns: int) -> None:
        """What its process says with a report, after so much training. It may say anything."""
        self._counts = {
            "saves": 0,
            "saved_bytes": 0,
            **self._counts,
        }  # who reports is known not to have saved
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
        """None where nothing was measured."""
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
