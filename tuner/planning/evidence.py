"""What a plan draws on: trials that were seen, or times that were given, and how far either may be off."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, stdev
from typing import Literal

from tuner.domain.history import transferred
from tuner.domain.space import Config, Space
from tuner.domain.time import NS
from tuner.planning.pace_model import PaceModel, fitted

Source = Literal["pilot", "history", "given", "none"]
# What is assumed where nothing is known: no source, and said with every plan that rests on it.
DEFAULT_STEP_NS = 30 * NS
DEFAULT_STEPS = 10
DEFAULT_SETUP_NS = 2 * NS
# Natural logarithms: of how far a mean step time may be off (one standard deviation), and of how far configurations differ.
DOUBT = {"pilot": 0.04, "history": 0.04, "given": 0.06, "none": math.log(4)}
SPREAD = {"given": 0.25, "none": 0.5}
LEAST_SPREAD = 0.02
DOUBT_MAX = math.log(30)  # natural logarithm: beyond it is nothing that a plan could tell
FASTEST = 1000  # times as fast as the mean: what is faster costs nothing beside it, and may be below what a clock resolves
EARLY_STEPS = 2  # caches fill and code compiles: they are often slower than those that follow
LATER_SHIFT = 0.3  # natural logarithm: how far later steps may differ from early ones, where no trial tells
CURVES_MIN = 3  # trials; of fewer nothing is foretold


@dataclass(frozen=True, slots=True)
class SeenTrial:
    """A trial of an earlier job. `step_ns`: what a step took on average, training alone; `early_ns`: what one of the first did, and
    `later_ns` one of those behind, None where they are not known. `curve`: (step, score) ascending, a
    higher score is better; empty where its metric is another one. `ended`: it came to its own end."""

    config: Config
    step_ns: int
    curve: tuple[tuple[int, float], ...] = ()
    last_step: int = 0
    ended: bool = False
    early_ns: int | None = None
    later_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Delays:
    """Time around the training. `warming_ns`: of the first attempt on a machine, beyond `setup_ns`; `restore_ns`: of an attempt that
    goes on from a checkpoint, its setup included; `save_ns`: of a save that is waited for."""

    warming_ns: int = 0
    setup_ns: int = DEFAULT_SETUP_NS
    restore_ns: int = DEFAULT_SETUP_NS
    save_ns: int = NS // 2


@dataclass(frozen=True)
class Evidence:
    """`step_ns`: of the mean configuration, on `machine` (an instance type; "": on whatever the job gets). `doubt`: the standard
    deviation of the logarithm of how far that may be off; `spread`: of configurations' step times. `later`: a step behind the first
    ones takes so many times as long as they do, by the trials that were seen to go on. `jobs`: which ones `trials`
    are of. `steps`: what a trial has that ends by itself; None: unknown. `notes`: what a reader should know of it."""

    source: Source
    step_ns: int
    doubt: float
    spread: float
    delays: Delays = field(default_factory=Delays)
    trials: tuple[SeenTrial, ...] = ()
    jobs: tuple[str, ...] = ()
    machine: str = ""
    steps: int | None = None
    notes: tuple[str, ...] = ()
    later: float = 1.0

    @property
    def curves(self) -> tuple[SeenTrial, ...]:
        """The trials of which something is known beside their pace."""
        return tuple(trial for trial in self.trials if trial.curve)

    @property
    def knows_curves(self) -> bool:
        return len(self.curves) >= CURVES_MIN

    @property
    def digest(self) -> str:
        """Of all of it: the same evidence gives the same plan."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def of_nothing(*, warming_ns: int = 0) -> Evidence:
    """Return what is assumed if nothing is known but how long the trainable's import takes."""
    delays = Delays(warming_ns=warming_ns)
    return Evidence("none", DEFAULT_STEP_NS, DOUBT["none"], SPREAD["none"], delays)


def of_given(
    step_ns: int, *, delays: Delays, spread: float | None = None, machine: str = "", steps: int | None = None
) -> Evidence:
    found = SPREAD["given"] if spread is None else spread
    return Evidence("given", step_ns, DOUBT["given"], found, delays, machine=machine, steps=steps)


def of_trials(
    trials: Sequence[SeenTrial],
    *,
    source: Literal["pilot", "history"],
    delays: Delays,
    jobs: Sequence[str] = (),
    machine: str = "",
    notes: Sequence[str] = (),
    space: Space | None = None,
) -> Evidence:
    """Of at least one trial. The fewer there are, the more may their mean be off; less so where paces follow from parameters of `space`."""
    mean_ns = round(fmean(trial.step_ns for trial in trials))
    trials = [_resolved(trial, max(1, mean_ns // FASTEST)) for trial in trials]
    logs = [math.log(trial.step_ns) for trial in trials]
    spread = stdev(logs) if len(logs) > 1 else SPREAD["given"]
    later, later_doubt = _later(trials)
    model = None if space is None else pace_model_of(trials, space)
    off = (
        _doubt_of_mean(spread, len(logs))
        if model is None
        else _doubt_of_mean(model.spread, len(logs)) * math.sqrt(model.parts)
    )
    doubt = min(DOUBT_MAX, math.hypot(DOUBT[source], off, later_doubt))
    ended = sorted(trial.last_step for trial in trials if trial.ended and trial.last_step)
    return Evidence(
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


def pace_model_of(trials: Sequence[SeenTrial], space: Space) -> PaceModel | None:
    """How first steps' times follow from parameters; None where they do not, or some trial is of another space."""
    placed = [transferred(space, one.config) for one in trials]
    configs = [config for config in placed if config is not None]
    if len(configs) < len(trials):
        return None
    return fitted(space, configs, [one.early_ns or one.step_ns for one in trials])


def _doubt_of_mean(spread: float, count: int) -> float:
    """Of the mean of so many log-normal paces: it is further off than the mean of their logarithms, and more so where the spread itself
    is known from few, as Student's t has it."""
    varying = math.sqrt(math.expm1(max(spread, LEAST_SPREAD) ** 2))
    tails = math.sqrt((count - 1) / (count - 3)) if count > 3 else 2.0
    return varying * tails / math.sqrt(count)


def _later(trials: Sequence[SeenTrial]) -> tuple[float, float]:
    """How many times as long a later step takes as an early one, and the doubt of its logarithm: the more, the further apart
    they are and the fewer trials went on."""
    both = [(one.early_ns, one.later_ns) for one in trials if one.early_ns and one.later_ns]
    if all(one.early_ns is None for one in trials):
        return 1.0, 0.0
    if not both:
        return 1.0, LATER_SHIFT
    shifts = [math.log((later or 1) / (early or 1)) for early, later in both]
    whole = math.log(sum(later or 1 for _, later in both) / sum(early or 1 for early, _ in both))
    scale = math.sqrt(fmean(shift * shift for shift in shifts))
    return math.exp(whole), scale / math.sqrt(len(both))
