"""Records of reports, attempts, holds, checkpoints and self-tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tuner.domain.cost import CostKind
from tuner.domain.environment import Environment
from tuner.domain.money import Cost, Price
from tuner.domain.offer import Offer
from tuner.domain.space import Config, Space, Value
from tuner.domain.time import Instant
from tuner.domain.trial import AttemptCause, Outcome

NO_PRICE = Price(0)
# The recorded reason of an attempt that ended only because its driver ended.
DRIVER_ENDED = "the job's driver ended"

# The attempt number of reports and checkpoints that were copied from an earlier job.
INHERITED = 0


@dataclass(frozen=True, slots=True)
class ReportRow:
    """The report of one finished step, unique by (trial, step). A later report of the same step is ignored.

    `cost` and `duration_ns` are the totals of training this configuration to this step without interruptions: they count each step
    once, and one setup.
    """

    trial: str
    attempt: int
    step: int
    at: Instant
    value: float | None
    metrics: Mapping[str, object]
    cost: Cost
    duration_ns: int
    #: The total violation of the job's constraints. 0 without constraints. None if the metric of a constraint or of
    #: the second objective is missing.
    violation: float | None = 0.0


@dataclass(frozen=True, slots=True)
class MachineFound:
    """The machine that an attempt ran on."""

    instance_type: str
    region: str | None  #: None if it is unknown.
    price: Price  #: Price of the whole machine.
    source: str  #: Where the price comes from.

    @classmethod
    def of(cls, offer: Offer | None) -> "MachineFound | None":
        return None if offer is None else cls(offer.instance_type, offer.region, offer.price, offer.source)


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One attempt: a continuous execution of a trial."""

    trial: str
    attempt: int
    began_at: Instant
    ended_at: Instant | None = None  #: None if it still runs, as far as is known.
    end: Outcome | None = None
    reason: str = ""
    detail: str = ""
    node: str = ""
    from_step: int = 0
    to_step: int = 0
    costs: Mapping[CostKind, Cost] = field(default_factory=dict)
    market: str = "on_demand"
    price: Price = NO_PRICE  #: Price of the trial's share of the machine.
    #: When the attempt got its machine and began to pay for it. None if it has no machine yet.
    assigned_at: Instant | None = None
    machine: MachineFound | None = (
        None  #: The machine that the attempt ran on. None if the machine was not checked.
    )
    cause: AttemptCause | None = None  #: Why the attempt was preempted, lost or failed.
    environment: Environment | None = None  #: None until the attempt's worker has sent it.


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """What an entry of the ledger belongs to: a hold, a correction of posted cost, or spend that is posted after a restore."""

    id: str  #: The ids of its entries derive from this id.
    trial: str
    attempt: int
    slice: int  #: Number of the lease within the attempt. 0 if it is a correction.


@dataclass(frozen=True, slots=True)
class OpenHold:
    """A hold (reserved money) that is neither posted nor released yet. It pays for a lease from `placed_at` to `ends_at`."""

    id: str
    trial: str
    attempt: int
    slice: int  #: Number of the lease within the attempt.
    cost: Cost
    placed_at: Instant
    ends_at: Instant

    @property
    def place(self) -> EntryPlace:
        return EntryPlace(self.id, self.trial, self.attempt, self.slice)


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A durable checkpoint. Its files and their manifest are in shared storage."""

    trial: str
    step: int
    attempt: int
    uri: str
    size_bytes: int
    seconds: float
    at: Instant


@dataclass(frozen=True, slots=True)
class SelfTestRow:
    """The result of a restore self-test of a trainable."""

    trainable: str
    code: str  #: Digest of the trainable's code.
    passed: bool
    reason: str  #: Why the trainable failed the test.
    job: str  #: The job that paid for the test.
    at: Instant


@dataclass(frozen=True, slots=True)
class WarmStartTrial:
    """A trial of an earlier job that a new trial may continue: a checkpoint, and the reports with a metric up to the checkpoint's step."""

    job: str
    trial: str
    config: Config
    reports: tuple[ReportRow, ...]
    checkpoint: CheckpointRow


class CostPoint(NamedTuple):
    """A point of a trial's learning curve, by cost."""

    step: int
    value: float  #: The metric.
    micro_usd: int  #: What was spent on the trial up to the step.


class TimePoint(NamedTuple):
    """A point of a trial's learning curve, by training time."""

    step: int
    value: float | None  #: The metric. None if the report has none.
    trained_ns: int  #: The training time up to the step, including the first setup.


class ScorePoint(NamedTuple):
    """A point of the learning curve of a trial that a new job learns from."""

    step: int
    score: float  #: A higher score is better.
    trained_ns: int  #: The training time up to the step, including the first setup.


@dataclass(frozen=True, slots=True)
class PastTrial:
    """A trial of an earlier job that a new job learns from."""

    config: Config
    curve: tuple[ScorePoint, ...]  #: Ascending by step.
    failed: bool = False  #: Whether the trial failed. A failed trial may still have scores.
    violation: float = 0.0  #: The total violation of the new job's constraints at the trial's last report.
    #: Whether the user gave the result with the request. If the space is small, the sampler does not suggest this configuration.
    is_given: bool = False


# Warm start from trials of earlier jobs: which configurations fit a job's search space, and from which trials to learn.

MAX_TRIALS = 1000


def transferred(space: Space, config: Mapping[str, Value]) -> Config | None:
    """Convert a configuration of another job to a configuration of `space`. Return None if an active parameter is missing or out of bounds.

    Parameters that are not in the space, or inactive in it, are omitted. Missing values are never filled in.
    """
    transfer: Config = {}
    for name in space.order:
        if name in config and space.active(name, transfer):
            transfer[name] = config[name]
    return transfer if space.contains(transfer) else None


def most_informative(last_points: Sequence[tuple[float, float, int]], limit: int = MAX_TRIALS) -> list[int]:
    """Choose at most `limit` trials to learn from, and return their indices, ascending.

    Half of them are the best trials, by violation and then by score. The others are those with the most steps among the remaining
    trials. Ties go to the earlier trial.

    Args:
        last_points: The last (violation, score, step) of each trial. Feasible trials have the violation 0.
    """
    indices = range(len(last_points))
    if len(last_points) <= limit:
        return list(indices)
    ranks = [(violation, -score) for violation, score, _ in last_points]
    best = sorted(indices, key=lambda i: ranks[i])[: limit - limit // 2]
    others = set(indices).difference(best)
    trained = sorted(others, key=lambda i: (-last_points[i][2], ranks[i], i))[: limit // 2]
    return sorted([*best, *trained])
