"""What a plan draws on: trials that were seen, or times that were given, and how far either may be off."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, pstdev
from typing import Literal

from tuner.domain.space import Config
from tuner.domain.time import NS

Source = Literal["pilot", "history", "given", "none"]
# What is assumed where nothing is known: no source, and said with every plan that rests on it.
DEFAULT_STEP_NS = 30 * NS
DEFAULT_STEPS = 10
DEFAULT_SETUP_NS = 2 * NS
# Natural logarithms: of how far a mean step time may be off (one standard deviation), and of how far configurations differ.
DOUBT = {"pilot": 0.04, "history": 0.04, "given": 0.06, "none": math.log(4)}
SPREAD = {"given": 0.25, "none": 0.5}
LEAST_SPREAD = 0.02
CURVES_MIN = 3  # trials; of fewer nothing is foretold


@dataclass(frozen=True, slots=True)
class SeenTrial:
    """A trial of an earlier job. `step_ns`: what a step took on average, training alone. `curve`: (step, score) ascending, a
    higher score is better; empty where its metric is another one. `ended`: it came to its own end."""

    config: Config
    step_ns: int
    curve: tuple[tuple[int, float], ...] = ()
    last_step: int = 0
    ended: bool = False


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
    deviation of the logarithm of how far that may be off; `spread`: of configurations' step times. `jobs`: which ones `trials`
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


def of_nothing() -> Evidence:
    return Evidence("none", DEFAULT_STEP_NS, DOUBT["none"], SPREAD["none"])


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
) -> Evidence:
    """Of at least one trial. The fewer there are, the more may their mean be off."""
    logs = [math.log(trial.step_ns) for trial in trials]
    spread = pstdev(logs) if len(logs) > 1 else SPREAD["given"]
    doubt = math.hypot(DOUBT[source], max(spread, LEAST_SPREAD) / math.sqrt(len(logs)))
    ended = sorted(trial.last_step for trial in trials if trial.ended and trial.last_step)
    return Evidence(
        source,
        round(fmean(trial.step_ns for trial in trials)),
        doubt,
        spread,
        delays,
        tuple(trials),
        tuple(jobs),
        machine,
        ended[len(ended) // 2] if ended else None,
        tuple(notes),
    )
