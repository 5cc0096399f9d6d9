"""The machine usage of an attempt, as sums and peaks. A figure that was not measured is None, never zero."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.domain.text import storable

Fact = str | int | float | bool
# Limits on what is kept of a worker's message: the number of facts, the length of texts, and the largest number.
MAX_FACTS = 30
MAX_WORDS = 200
MAX_COUNT = 2**62


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of one attempt, measured during its training time only."""

    wall_ns: int | None = None
    cpu_ns: int | None = (
        None  #: Processor time of the attempt's process and all its descendants within `wall_ns`.
    )
    memory_peak_bytes: int | None = None
    gpu_samples: int | None = None  #: Number of samples of NVML's utilisation.
    gpu_percent: int | None = None  #: Sum of the samples of GPU utilisation, in percent.
    gpu_memory_peak_bytes: int | None = None
    data_wait_ns: int | None = None  #: Time up to the last report that was spent waiting for batches.
    compute_ns: int | None = None  #: Training time up to the last report without `data_wait_ns`.
    saves: int | None = None  #: Checkpoints that became durable.
    saved_bytes: int | None = None  #: Total size of the checkpoints that `saves` counts.
    restored_bytes: int | None = None  #: Size of the downloaded checkpoints, on all nodes.
    artifact_bytes: int | None = None  #: Size of the attempt's artifacts in the storage.
    #: Bytes that `tuner.training.dataset` downloaded. Data from the cache is not counted.
    data_read_bytes: int | None = None
    data_bucket_bytes: int | None = (
        None  #: The part of `data_read_bytes` that came from the object storage of a cloud.
    )
    #: Facts by name: what the training helpers observed (`precision`, `batch_size`, `loader_workers`, …), and `gpu`,
    #: `gpu_memory_bytes` and `gpu_capability` of the GPU.
    facts: Mapping[str, Fact] = field(default_factory=dict)

    @classmethod
    def parse(cls, message: object) -> "Usage | None":
        """Build the usage from a worker's message. Invalid counts and facts are dropped. Return None if nothing is left."""
        if not isinstance(message, Mapping):
            return None
        counts = {name: value for name in COUNTS if (value := count_of(message.get(name))) is not None}
        facts = facts_of(message.get("facts"))
        return cls(**counts, facts=facts) if counts or facts else None


COUNTS = tuple(name for name in Usage.__slots__ if name != "facts")


def count_of(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        return None
    return value


def facts_of(message: object) -> dict[str, Fact]:
    """Return at most `MAX_FACTS` valid facts about a training, such as its batch size: strings, numbers and booleans by name."""
    if not isinstance(message, Mapping):
        return {}
    kept = [
        (storable(str(name), MAX_WORDS), fact)
        for name, value in message.items()
        if (fact := _fact(value)) is not None
    ]
    return dict(kept[:MAX_FACTS])


def _fact(value: object) -> Fact | None:
    if isinstance(value, str):
        return storable(str(value), MAX_WORDS)
    is_number = isinstance(value, int | float) and abs(value) <= MAX_COUNT  # also false for NaN
    return value if is_number else None  # type: ignore[return-value]
