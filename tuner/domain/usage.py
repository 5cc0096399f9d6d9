"""What an attempt used of its machine, as sums and peaks: what was not measured is None, never zero."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Fact = str | int | float | bool
# Of what a worker says: more is not kept.
MAX_FACTS = 30
MAX_WORDS = 200
MAX_COUNT = 2**62


@dataclass(frozen=True, slots=True)
class Usage:
    """Figures of the attempt's training time alone. `cpu_ns` is the processor time of its process and all that descend from it
    within `wall_ns`; `gpu_percent` the sum of `gpu_samples` samples of NVML's utilisation. Of the time up to the last report,
    `data_wait_ns` went into waiting for batches and `compute_ns` into the rest. `saves` and `saved_bytes` count checkpoints that
    became durable. `facts` is what our helpers saw of how it trains (`precision`, `batch_size`, `loader_workers`, …) and, of its
    GPU, `gpu`, `gpu_memory_bytes` and `gpu_capability`."""

    wall_ns: int | None = None
    cpu_ns: int | None = None
    memory_peak_bytes: int | None = None
    gpu_samples: int | None = None
    gpu_percent: int | None = None
    gpu_memory_peak_bytes: int | None = None
    data_wait_ns: int | None = None
    compute_ns: int | None = None
    saves: int | None = None
    saved_bytes: int | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)

    @classmethod
    def parse(cls, told: object) -> "Usage | None":
        """What a worker told; what is no count or fact is left out. None where nothing is left."""
        if not isinstance(told, Mapping):
            return None
        counts = {name: value for name in COUNTS if (value := count_of(told.get(name))) is not None}
        facts = facts_of(told.get("facts"))
        return cls(**counts, facts=facts) if counts or facts else None


COUNTS = tuple(name for name in Usage.__slots__ if name != "facts")


def count_of(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        return None
    return value


def facts_of(told: object) -> dict[str, Fact]:
    """Words, numbers and truths by name, as many as are kept."""
    if not isinstance(told, Mapping):
        return {}
    kept = [(_words(name), fact) for name, value in told.items() if (fact := _fact(value)) is not None]
    return dict(kept[:MAX_FACTS])


def _fact(value: object) -> Fact | None:
    if isinstance(value, str):
        return _words(value)
    is_number = isinstance(value, int | float) and abs(value) <= MAX_COUNT  # false for a NaN, too
    return value if is_number else None  # type: ignore[return-value]


def _words(value: object) -> str:
    """As a database takes it: without lone surrogates and NULs."""
    return str(value)[:MAX_WORDS].encode("utf-8", "replace").decode().replace("\0", "")
