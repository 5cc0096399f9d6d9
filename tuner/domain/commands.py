"""The commands that a decision may return: a closed union."""

from dataclasses import dataclass

from tuner.domain.job import JobState, StopReason
from tuner.domain.space import Config


@dataclass(frozen=True, slots=True)
class Suggest:
    """Ask the sampler for the configuration of the next trial, because a worker is free.

    Answer with `Suggested`, or with `Advised` if an existing trial should resume instead.
    """

    trial: str


@dataclass(frozen=True, slots=True)
class Consult:
    """Ask the model whether a trial that waits at a rung should continue. Answer with `Advised`."""

    trial: str


@dataclass(frozen=True, slots=True)
class Begin:
    """Start or resume the trial on a free worker and let it train to step `until`, or to its end if that is None."""

    trial: str
    config: Config
    until: int | None


@dataclass(frozen=True, slots=True)
class Proceed:
    """Let a trial that waits at a rung continue to step `until`, or to its end if that is None."""

    trial: str
    until: int | None


@dataclass(frozen=True, slots=True)
class Park:
    """Save a checkpoint at the next step boundary and end the attempt. Answer with `Parked`."""

    trial: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Save the model of the last step, which is done, and end the attempt. Answer with `Completed`."""

    trial: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the attempt now without a checkpoint. Answer with `Stopped`."""

    trial: str
    reason: str


@dataclass(frozen=True, slots=True)
class EndJob:
    """Set the final or paused state of the job, because no attempt runs any more."""

    state: JobState
    reason: StopReason | None
    detail: str = ""
    reopens: bool = False  #: The job is paused and resumes by itself when its window opens next.
    waits_for: str = (
        ""  #: The job resumes by itself when this shared budget, or the project's quota, allows more.
    )


Command = Suggest | Consult | Begin | Proceed | Park | Finish | Stop | EndJob
