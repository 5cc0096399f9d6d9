"""What happened to a job: the only things that a decision may depend on. A closed union, each with its time.

They are recorded in order before they are acted on, and telling them again to `tuner.tuning.decide` gives the same
commands, which is how a job goes on after any of its processes was killed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tuner.domain.budget import Budget
from tuner.domain.money import Money, Price
from tuner.domain.space import Config
from tuner.domain.time import Instant

Limit = Literal["budget_usd", "budget_gpu_hours", "wall_clock", "window"]


@dataclass(frozen=True, slots=True)
class Launched:
    """A driver begins, for the first time or again. What ran before runs no more; `saved` has the step of each such trial's
    newest checkpoint (0: none)."""

    at: Instant
    saved: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a trial of an earlier job has come to: its metric by step up to that of the checkpoint which is there to go on from, and
    what that took."""

    job: str
    trial: str
    curve: tuple[tuple[int, float], ...]
    trained_ns: int

    @property
    def step(self) -> int:
        return self.curve[-1][0]


@dataclass(frozen=True, slots=True)
class Suggested:
    """The sampler proposed the next configuration; None: it has no more. `inherited`: the trial goes on from there."""

    at: Instant
    trial: str
    config: Config | None
    inherited: Inherited | None = None


@dataclass(frozen=True, slots=True)
class Advised:
    """By what the sampler's model foretells, the trial should go on to its next rung, or (`go` false) wait. `trial` None: what is
    left of the money brings no other trial to its end."""

    at: Instant
    trial: str | None
    go: bool


@dataclass(frozen=True, slots=True)
class Reported:
    """A trial finished a step."""

    at: Instant
    trial: str
    step: int
    value: float | None  #: The objective's metric. None if it was not reported, or is not a number.
    spent: Money  #: Spend of the job so far, including what running attempts have used of their holds.
    resumable: bool = True  #: Whether a checkpoint of this step can be saved.
    train_ns: int = 0  #: Training time since the last report.
    price: Price | None = None  #: Price of the attempt's machine. None if it is the job's own price.
    #: Names of the metrics that were reported instead of the objective's. None if `value` is there.
    names: tuple[str, ...] | None = field(default=None, metadata={"new": True})


@dataclass(frozen=True, slots=True)
class Parked:
    """An attempt ended without an end of the trial; `step` is that of the newest checkpoint (0: none)."""

    at: Instant
    trial: str
    step: int


@dataclass(frozen=True, slots=True)
class Completed:
    """The trainable returned, or the last step is done and its model kept."""

    at: Instant
    trial: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """An attempt was stopped on our order; the trial will not go on."""

    at: Instant
    trial: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The user's code failed: `reason` is one line that tells like failures apart from others."""

    at: Instant
    trial: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The worker vanished, through no fault of the trial; `step` is that of the newest checkpoint (0: none)."""

    at: Instant
    trial: str
    step: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Preempted:
    """The attempt's machine is taken away, with a notice or without; `step` is that of the newest checkpoint (0: none)."""

    at: Instant
    trial: str
    step: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """What the trial needs, to begin or (`running`) to go on, is not left: of the job's own budget, or of the one `above` it."""

    at: Instant
    trial: str
    limit: Limit
    running: bool = False
    above: str = ""


@dataclass(frozen=True, slots=True)
class WallClockEnded:
    """The job ran for as long as it may."""

    at: Instant


@dataclass(frozen=True, slots=True)
class WindowClosed:
    """The hours in which the job may run are over for now."""

    at: Instant


@dataclass(frozen=True, slots=True)
class Asked:
    """A person asked."""

    at: Instant
    what: Literal["pause", "resume", "cancel"]


@dataclass(frozen=True, slots=True)
class BudgetChanged:
    at: Instant
    budget: Budget


Event = (
    Launched
    | Suggested
    | Advised
    | Reported
    | Parked
    | Completed
    | Stopped
    | Failed
    | Lost
    | Preempted
    | Refused
    | WallClockEnded
    | WindowClosed
    | Asked
    | BudgetChanged
)
