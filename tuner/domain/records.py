"""What is written down about attempts, steps and money set aside."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.domain.cost import CostKind
from tuner.domain.environment import Environment
from tuner.domain.money import Cost, Price
from tuner.domain.offer import Offer
from tuner.domain.space import Config
from tuner.domain.time import Instant
from tuner.domain.trial import AttemptCause, AttemptEnd

NO_PRICE = Price(0)
# Why an attempt ended that nothing was wrong with but for its driver.
DRIVER_ENDED = "the job's driver ended"


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One finished step. `cost` and `duration_ns` are what training this configuration to this step takes, without
    interruptions. Unique by (trial, step): the first one stays."""

    trial: str
    attempt: int
    step: int
    at: Instant
    value: float | None
    metrics: Mapping[str, object]
    cost: Cost
    duration_ns: int


@dataclass(frozen=True, slots=True)
class MachineFound:
    """The machine that an attempt was found on; `price` is that of the whole of it, `source` says where it comes from. `region` None:
    not known."""

    instance_type: str
    region: str | None
    price: Price
    source: str

    @classmethod
    def of(cls, offer: Offer | None) -> "MachineFound | None":
        return None if offer is None else cls(offer.instance_type, offer.region, offer.price, offer.source)


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One continuous run of a trial. `ended_at` None: it runs, as far as is known. `price` is that of its share of a machine of
    `market`, which it has had, and paid, since `landed_at` (None: it waited for one). `machine` is what it was found on (None: that
    was not looked at); `cause` why it was preempted, lost or failed."""

    trial: str
    attempt: int
    began_at: Instant
    ended_at: Instant | None = None
    end: AttemptEnd | None = None
    reason: str = ""
    detail: str = ""
    node: str = ""
    from_step: int = 0
    to_step: int = 0
    costs: Mapping[CostKind, Cost] = field(default_factory=dict)
    market: str = "on_demand"
    price: Price = NO_PRICE
    landed_at: Instant | None = None
    machine: MachineFound | None = None
    cause: AttemptCause | None = None
    environment: Environment | None = None  #: None until its worker sent it.


@dataclass(frozen=True, slots=True)
class OpenHold:
    """Money set aside and not yet posted or released. `placed_at` and `ends_at` bound the time that it can have paid for."""

    id: str
    trial: str
    attempt: int
    slice: int
    cost: Cost
    placed_at: Instant
    ends_at: Instant


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A durable checkpoint: its files and their manifest lie in the shared storage."""

    trial: str
    step: int
    attempt: int
    uri: str
    size_bytes: int
    seconds: float
    at: Instant


@dataclass(frozen=True, slots=True)
class Heritage:
    """A trial of an earlier job that a new one may go on with: its reports up to that of its checkpoint, each with a metric."""

    job: str
    trial: str
    config: Config
    reports: tuple[ReportRow, ...]
    checkpoint: CheckpointRow


@dataclass(frozen=True, slots=True)
class PastTrial:
    """A trial of an earlier job, from which a new one learns. `curve`: (step, score, nanoseconds of training up to it, the first
    setup included), ascending by step; a higher score is better. `failed`: whatever it had reached before."""

    config: Config
    curve: tuple[tuple[int, float, int], ...]
    failed: bool = False
