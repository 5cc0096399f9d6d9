"""The commands that `tuner.tuning.decide` may return: a closed union. The driver carries them out and answers with events."""

from dataclasses import dataclass

from tuner.domain.job import JobState, StopReason
from tuner.domain.space import Config


@dataclass(frozen=True, slots=True)
class Suggest:
    """Ask the sampler for the configuration of the next trial, because a worker is free.

    The answer is the event `Suggested`, or `Predicted` if an existing trial should resume instead.
    """

    trial: str


@dataclass(frozen=True, slots=True)
class Predict:
    """Ask the sampler's model whether a trial that has reached a rung should continue. The answer is the event `Predicted`."""

    trial: str


@dataclass(frozen=True, slots=True)
class Begin:
    """Start or resume the trial on a free worker, and let it train to step `target_step`, or to its end if `target_step` is None."""

    trial: str
    config: Config
    target_step: int | None


@dataclass(frozen=True, slots=True)
class Continue:
    """Let a running trial continue past its rung to step `target_step`, or to its end if `target_step` is None."""

    trial: str
    target_step: int | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause the trial: save a checkpoint after the current step and end the attempt. The answer is the event `Paused`."""

    trial: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Save the model after the trial's last step and end the attempt. The answer is the event `Completed`."""

    trial: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the attempt now without a checkpoint. The answer is the event `Stopped`."""

    trial: str
    reason: str


@dataclass(frozen=True, slots=True)
class EndJob:
    """Move the job to its final or paused state. This command is returned only when no attempt is running."""

    state: JobState
    reason: StopReason | None
    detail: str = ""
    reopens: bool = False  #: The job is paused and resumes by itself when its window opens next.
    #: The job resumes by itself when this shared budget, or the project's quota, allows more.
    waits_for: str = ""


Command = Suggest | Predict | Begin | Continue | Pause | Finish | Stop | EndJob
