"""The evidence for a plan: trials of a pilot or of earlier jobs, or times given by the user, with their uncertainty."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, stdev
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tuner.domain.records import transferred
from tuner.domain.space import Config, Space
from tuner.domain.time import NS
from tuner.tuning.samplers.encoding import UnitCube

Source = Literal["pilot", "history", "given", "none"]
# Assumptions about a job of which nothing is known. They have no source, and every plan that uses them says so.
DEFAULT_STEP_NS = 30 * NS
DEFAULT_STEPS = 10
DEFAULT_WARMING_NS = 2 * NS
# Measured with a small model. The child process of an attempt is a fork of a process that has imported the trainable.
DEFAULT_SETUP_NS = 50_000_000
DEFAULT_SAVE_NS = 20_000_000
# Standard deviations of the natural logarithm of step times, by source of the evidence. DOUBT is the error of the mean step time.
# SPREAD is the variation between configurations.
DOUBT = {"pilot": 0.04, "history": 0.04, "given": 0.06, "none": math.log(4)}
SPREAD = {"given": 0.25, "none": 0.5}
LEAST_SPREAD = 0.02
DOUBT_MAX = math.log(30)  # a plan with a larger uncertainty would be useless
# Step times below a thousandth of the mean are raised to a thousandth of the mean. They are too short to measure exactly, and their cost
# is negligible.
FASTEST = 1000
EARLY_STEPS = 2  # the first steps are often slower than later ones, because caches fill and code is compiled
# The uncertainty of how much longer later steps take than early ones if no trial has both. It is the standard deviation of the natural
# logarithm of the ratio.
LATER_SHIFT = 0.3
CURVES_MIN = 3  # with fewer learning curves, scores are not predicted
# The ridge regression of step times tries each of PENALTIES and needs at least TRIALS_MIN trials. Its result is used if its squared error
# is below BETTER times the squared error of predicting the mean. With a dozen trials, a smaller improvement may be chance.
PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0)
TRIALS_MIN = 6
BETTER = 0.35
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SeenTrial:
    """A trial of a pilot or of another earlier job."""

    config: Config
    step_ns: int  #: The mean time of a step, training only.
    #: The learning curve as (step, score), ascending by step. A higher score is better. Empty if the trial reported another metric.
    curve: tuple[tuple[int, float], ...] = ()
    last_step: int = 0
    ended: bool = False  #: Whether the training came to its own end, and was not stopped by the search.
    #: The mean time of one of the first EARLY_STEPS steps. None if it is not known.
    early_ns: int | None = None
    #: The mean time of a step after the first EARLY_STEPS steps. None if it is not known.
    later_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Delays:
    """The parts of an attempt's time that are not training."""

    warming_ns: int = 0  #: The additional setup time of the first attempt on a machine.
    setup_ns: int = DEFAULT_SETUP_NS
    #: The time from the start of an attempt that restores a checkpoint until it trains. It includes the setup.
    restore_ns: int = DEFAULT_SETUP_NS
    save_ns: int = DEFAULT_SAVE_NS  #: The time of a save that the attempt waits for.
    idle_ns: int = 0  #: The time per attempt in which the worker waits for the driver.


@dataclass(frozen=True)
class PaceEvidence:
    """Everything that a plan knows about step times and learning curves."""

    source: Source
    step_ns: int  #: The step time of the mean configuration on `machine`.
    doubt: float  #: The uncertainty of `step_ns`, as the standard deviation of its logarithm.
    spread: float  #: The standard deviation of the logarithms of the configurations' step times.
    delays: Delays = field(default_factory=Delays)
    trials: tuple[SeenTrial, ...] = ()
    jobs: tuple[str, ...] = ()  #: The jobs that ran `trials`.
    machine: str = ""  #: An instance type. Empty means the machine that the job gets.
    steps: int | None = None  #: The number of steps of a trial that ends by itself. None if it is not known.
    notes: tuple[str, ...] = ()  #: Caveats for the reader of the plan.
    later: float = 1.0  #: How many times as long a later step takes as one of the first EARLY_STEPS steps.

    @property
    def curves(self) -> tuple[SeenTrial, ...]:
        """The trials with a learning curve."""
        return tuple(trial for trial in self.trials if trial.curve)

    @property
    def knows_curves(self) -> bool:
        return len(self.curves) >= CURVES_MIN

    @property
    def digest(self) -> str:
        """A hash of all the evidence. The same evidence gives the same plan."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class KnownDelays:
    """The delays of a job without earlier trials. None means that a time is not known."""

    import_ns: int | None = None  #: The time of importing the trainable, which a worker does once.
    setup_ns: int | None = None
    restore_ns: int | None = None
    save_ns: int | None = None

    @property
    def delays(self) -> Delays:
        """The delays, with a default for each unknown time. A restore takes as long as the setup unless it is known."""
        setup_ns = DEFAULT_SETUP_NS if self.setup_ns is None else self.setup_ns
        return Delays(
            DEFAULT_WARMING_NS if self.import_ns is None else self.import_ns,
            setup_ns,
            setup_ns if self.restore_ns is None else self.restore_ns,
            DEFAULT_SAVE_NS if self.save_ns is None else self.save_ns,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """A caveat that names the assumed times. Empty if all times are known."""
        delays = self.delays
        fields = (
            ("setup_seconds", self.setup_ns, delays.setup_ns),
            ("restore_seconds", self.restore_ns, delays.restore_ns),
            ("checkpoint_seconds", self.save_ns, delays.save_ns),
        )
        assumed = [f"{name} {ns / NS:g}" for name, known, ns in fields if known is None]
        notes = []
        if assumed:
            notes.append(
                f"assumed, as for a small model: {', '.join(assumed)}; a large model takes longer to load and to save: give these fields "
                "in planning"
            )
        if self.import_ns is None:
            notes.append(
                f"the time that a worker needs to start is not known: {DEFAULT_WARMING_NS / NS:g} s is assumed"
            )
        return tuple(notes)


def of_nothing(known: KnownDelays) -> PaceEvidence:
    """Return the evidence for a job whose step times are not known."""
    return PaceEvidence(
        "none", DEFAULT_STEP_NS, DOUBT["none"], SPREAD["none"], known.delays, notes=known.notes
    )


def of_given(
    step_ns: int,
    *,
    known: KnownDelays,
    spread: float | None = None,
    machine: str = "",
    steps: int | None = None,
) -> PaceEvidence:
    """Return the evidence for a job whose step time the user gave."""
    chosen_spread = SPREAD["given"] if spread is None else spread
    return PaceEvidence(
        "given",
        step_ns,
        DOUBT["given"],
        chosen_spread,
        known.delays,
        machine=machine,
        steps=steps,
        notes=known.notes,
    )


def of_trials(
    trials: Sequence[SeenTrial],
    *,
    source: Literal["pilot", "history"],
    delays: Delays,
    jobs: Sequence[str] = (),
    machine: str = "",
    notes: Sequence[str] = (),
    space: Space | None = None,
) -> PaceEvidence:
    """Return the evidence from trials of a pilot or of earlier jobs. There must be at least one trial.

    The uncertainty of the mean step time is smaller if there are more trials, or if the parameters of `space` predict the step times.
    If `space` is None, step times are not predicted from parameters.
    """
    mean_ns = round(fmean(trial.step_ns for trial in trials))
    trials = [_resolved(trial, max(1, mean_ns // FASTEST)) for trial in trials]
    logs = [math.log(trial.step_ns) for trial in trials]
    spread = stdev(logs) if len(logs) > 1 else SPREAD["given"]
    later, later_doubt = _later(trials)
    predicted = None if space is None else fitted(trials, space)
    error, parts = (spread, 1.0) if predicted is None else predicted
    off = _doubt_of_mean(error, len(logs)) * math.sqrt(parts)
    doubt = min(DOUBT_MAX, math.hypot(DOUBT[source], off, later_doubt))
    ended = sorted(trial.last_step for trial in trials if trial.ended and trial.last_step)
    return PaceEvidence(
        source,
        mean_ns,
        doubt,
        spread,
        delays,
        tuple(trials),
        tuple(jobs),
        machine,
        ended[len(ended) // 2] if ended else None,
        tuple(notes),
        later,
    )


def _resolved(trial: SeenTrial, least_ns: int) -> SeenTrial:
    early_ns = trial.early_ns and max(least_ns, trial.early_ns)
    later_ns = trial.later_ns and max(least_ns, trial.later_ns)
    return replace(trial, step_ns=max(least_ns, trial.step_ns), early_ns=early_ns, later_ns=later_ns)


def fitted(trials: Sequence[SeenTrial], space: Space) -> tuple[float, float] | None:
    """Fit a regression that predicts a trial's step time (of its first steps, if known) from its parameters.

    Step times are mostly products of factors such as width, depth and the inverse of the batch size. Their logarithms are therefore
    fitted by a ridge regression on the unit cube. The penalty is chosen by leave-one-out cross-validation.

    Returns:
        Two figures of the regression. The first is the standard deviation of its errors if it predicts the logarithm of each trial's step
        time from the other trials. The second is its effective number of parameters. None if the parameters hardly predict step times, if
        there are too few trials, or if a trial's configuration does not fit the space.
    """
    points, logs = (
        points_of(space, [trial.config for trial in trials]),
        np.log([trial.early_ns or trial.step_ns for trial in trials]),
    )
    fit = None if points is None else ridge(points - points.mean(axis=0), logs - logs.mean())
    return None if fit is None else (fit.spread, fit.parts)


def points_of(space: Space, configs: Sequence[Config]) -> Floats | None:
    """Return the configurations as points of the unit cube, one per row. Return None if a configuration does not fit the space."""
    placed, cube = [transferred(space, config) for config in configs], UnitCube(space)
    points = [cube.point(config) for config in placed if config is not None]
    return np.array(points) if len(points) == len(placed) else None


class Ridge(NamedTuple):
    """The result of a ridge regression."""

    spread: float  # standard deviation of the errors of predicting each value from the others
    parts: float  # effective number of parameters
    slopes: Floats  # one for each column of the points


def ridge(points: Floats, values: Floats) -> Ridge | None:
    """Fit values to points by a ridge regression, with the penalty that is best by leave-one-out cross-validation.

    Return None if the points hardly predict the values, or if there are fewer than TRIALS_MIN points.

    Args:
        points: One point per row. Each column has the mean 0.
        values: One value per point, with the mean 0.
    """
    fits: list[tuple[float, float, Ridge]] = []
    count = len(values)
    if count < TRIALS_MIN:
        return None
    for penalty in PENALTIES:
        solved = np.linalg.solve(points.T @ points + penalty * np.eye(points.shape[1]), points.T)
        hat = points @ solved + 1 / count
        # The leave-one-out errors follow from the hat matrix, so the regression need not be fitted once per omitted value.
        left_out = (values - hat @ values) / np.maximum(1 - np.diag(hat), 1 / count)
        fits.append(
            (
                float((left_out**2).mean()),
                penalty,
                Ridge(float(left_out.std()), float(np.trace(hat)), solved @ values),
            )
        )
    error, _, best = min(fits)
    alone = float(((values * count / (count - 1)) ** 2).mean())
    return None if error >= BETTER * alone else best


def _doubt_of_mean(spread: float, count: int) -> float:
    """Return the relative standard error of the mean of `count` log-normal step times.

    `spread` is the standard deviation of their logarithms. The result is larger than the standard error of the mean of the logarithms.
    If there are few trials, it is increased as in Student's t distribution, because the spread itself is uncertain.
    """
    varying = math.sqrt(math.expm1(max(spread, LEAST_SPREAD) ** 2))
    tails = math.sqrt((count - 1) / (count - 3)) if count > 3 else 2.0
    return varying * tails / math.sqrt(count)


def _later(trials: Sequence[SeenTrial]) -> tuple[float, float]:
    """Return how many times as long a later step takes as one of the first steps, and the uncertainty of the ratio's logarithm.

    The uncertainty is larger if later steps differ more from the first ones, or if fewer trials continued beyond EARLY_STEPS steps.
    """
    both = [(trial.early_ns, trial.later_ns) for trial in trials if trial.early_ns and trial.later_ns]
    if all(trial.early_ns is None for trial in trials):
        return 1.0, 0.0
    if not both:
        return 1.0, LATER_SHIFT
    shifts = [math.log((later or 1) / (early or 1)) for early, later in both]
    whole = math.log(sum(later or 1 for _, later in both) / sum(early or 1 for early, _ in both))
    scale = math.sqrt(fmean(shift * shift for shift in shifts))
    return math.exp(whole), scale / math.sqrt(len(both))
