"""What to do next: the closed union of a decision's orders."""

from dataclasses import dataclass

from tuner.domain.job import JobState, StopReason
from tuner.domain.space import Config


@dataclass(frozen=True, slots=True)
class Suggest:
    """A worker is free: ask for the configuration of the next trial and tell it with `Suggested`, or where another one should
    rather go on, with `Advised`."""

    trial: str


@dataclass(frozen=True, slots=True)
class Consult:
    """The trial waits at a rung: ask whether it should go on, and tell it with `Advised`."""

    trial: str


@dataclass(frozen=True, slots=True)
class Begin:
    """Start or resume the trial on a free worker and let it train to `until` (None: to its end)."""

    trial: str
    config: Config
    until: int | None


@dataclass(frozen=True, slots=True)
class Proceed:
    """The trial waits at a rung and may go on to `until`."""

    trial: str
    until: int | None


@dataclass(frozen=True, slots=True)
class Park:
    """Checkpoint at the next step boundary, end the attempt, tell `Parked`."""

    trial: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The last step is done: keep its model, end the attempt, tell `Completed`."""

    trial: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the attempt now, saving nothing; tell `Stopped`."""

    trial: str
    reason: str


@dataclass(frozen=True, slots=True)
class EndJob:
    """Nothing runs any more; the job's state becomes this. `reopens`: it is paused, and goes on by itself at the next opening of its
    window. `waits_for`: or once this budget above it allows more."""

    state: JobState
    reason: StopReason | None
    detail: str = ""
    reopens: bool = False
    waits_for: str = ""


Command = Suggest | Consult | Begin | Proceed | Park | Finish | Stop | EndJob
