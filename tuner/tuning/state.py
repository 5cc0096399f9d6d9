"""All that a decision may depend on.

A `State` belongs to its loop and is used up by each decision: `decide` changes it in place and hands it back, so that a
job of ten thousand trials is not copied at every report.
"""

from dataclasses import dataclass, field
from typing import Literal

from tuner.domain.budget import Budget
from tuner.domain.events import Limit
from tuner.domain.ids import trial_id
from tuner.domain.job import JobSpec, JobState, StopReason
from tuner.domain.money import ZERO, Money, Price, Rate
from tuner.domain.space import Config
from tuner.domain.trial import TrialState
from tuner.tuning.rungs import Rung, ladder

Status = Literal[
    "new", "running", "parking", "finishing", "stopping", "parked", "completed", "stopped", "failed"
]
ACTIVE: frozenset[Status] = frozenset({"running", "parking", "finishing", "stopping"})
PUBLIC: dict[Status, TrialState] = {
    "new": "pending",
    "running": "running",
    "parking": "running",
    "finishing": "running",
    "stopping": "running",
    "parked": "paused",
    "completed": "completed",
    "stopped": "stopped",
    "failed": "failed",
}


@dataclass(slots=True)
class TrialRecord:
    """`until` is the step that the trial has earned (None: its end); `steps` the highest that it reported; `replayed` the one
    that its present attempt reported last. `losses` counts workers lost in a row that brought nothing new: at the very step
    where the one before was lost, or before their first report. `preemptions` of its attempts, of which the last `in_vain` in
    a row brought no newer checkpoint than that of `kept`, the newest one at the last of them; `displaced`: it goes on before
    others. `trained_ns`: what its steps took, each counted once; `pace_ns`: a step of late."""

    number: int
    config: Config
    until: int | None
    status: Status = "new"
    steps: int = 0
    value: float | None = None
    resumable: bool = True
    ends_as: Literal["stopped", "failed"] = "stopped"
    reason: str = ""
    losses: int = 0
    preemptions: int = 0
    in_vain: int = 0
    kept: int = 0
    displaced: bool = False
    replayed: int | None = None
    unkept: bool = False
    trained_ns: int = 0
    pace_ns: int = 0
    other_metrics: tuple[str, ...] = ()  # names that it reported instead of the objective's metric

    @property
    def id(self) -> str:
        return trial_id(self.number)

    @property
    def ready(self) -> bool:
        """Not running, though it has earned more steps than it has done, or has to save its last one again."""
        if self.status not in ("new", "parked"):
            return False
        return self.until is None or self.steps < self.until or self.unkept


@dataclass(frozen=True, slots=True)
class Ending:
    """The job is coming to its end: nothing begins any more, and once nothing runs its state becomes `state`. `reopens`: it goes on
    by itself when its window opens next."""

    state: JobState
    reason: StopReason | None
    detail: str = ""
    reopens: bool = False
    waits_for: str = ""

    @property
    def found(self) -> bool:
        """Whether it follows from what was reported, which no later wish and no restart makes undone."""
        return self.reason in ("target", "plateau", "error")

    @property
    def limit(self) -> bool:
        """Whether it follows from the budget, and another budget undoes it."""
        return self.reason in ("budget_usd", "budget_gpu_hours", "wall_clock", "trials")


@dataclass(slots=True)
class State:
    spec: JobSpec
    budget: Budget
    concurrency: int
    rate: Rate
    rungs: list[Rung]
    reduction_factor: int
    trials: list[TrialRecord] = field(default_factory=list)
    active: set[int] = field(default_factory=set)
    ready: set[int] = field(default_factory=set)
    touched: set[int] = field(default_factory=set)
    going: bool = False
    suggesting: bool = False
    space_exhausted: bool = False
    broke: StopReason | Limit | None = None
    above: str = ""
    passed: dict[int, StopReason] = field(default_factory=dict)
    ending: Ending | None = None
    ended: bool = False
    spent: Money = ZERO
    leader: int | None = None
    leader_score: float = float("-inf")
    plateau_score: float = float("-inf")
    plateau_spent: Money = ZERO
    valid_reports: int = 0
    failures: list[str] = field(default_factory=list)
    begun: int = 0
    steps: int = 0
    trained_ns: int = 0
    price_ns: int = 0  # micro-dollars an hour times nanoseconds, over `trained_ns`

    @classmethod
    def fresh(cls, spec: JobSpec, *, concurrency: int, rate: Rate) -> "State":
        fidelity = ladder(spec)
        rungs = [Rung(step) for step in fidelity.rungs()]
        return cls(spec, spec.budget, concurrency, rate, rungs, fidelity.reduction_factor)

    @property
    def max_step(self) -> int | None:
        return self.spec.fidelity.max

    @property
    def mean_price(self) -> Price:
        """Of the time that was trained, each at the price of its machine; before that, the job's own."""
        return Price(self.price_ns // self.trained_ns) if self.trained_ns else self.rate.price

    @property
    def may_suggest(self) -> bool:
        within = self.budget.trials is None or len(self.trials) < self.budget.trials
        return within and not self.space_exhausted

    def trial(self, trial: str) -> TrialRecord:
        return self.trials[int(trial.removeprefix("trial_"))]

    def set(self, record: TrialRecord, status: Status) -> None:
        """The one place where a trial's status changes; keeps the indexes of active and ready trials."""
        record.status = status
        self.touched.add(record.number)
        self.active.discard(record.number)
        self.ready.discard(record.number)
        if status in ACTIVE:
            self.active.add(record.number)
        elif record.ready:
            self.ready.add(record.number)
