"""A pilot: a few steps of a few configurations spread over the space, so that a plan knows how long steps take."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace

from tuner.domain.budget import Budget
from tuner.domain.errors import Fault
from tuner.domain.fidelity import Fidelity
from tuner.domain.job import Algorithm, JobSpec
from tuner.domain.money import Money

TAG = "pilot"
TRIALS_MAX = 100
STEPS_MAX = 1000
# Of every four trials the best is trained on, to six times as many steps: first steps are often slower than later ones.
ONE_OF = 4
FURTHER = 6
NAME_MAX = 100


@dataclass(frozen=True, slots=True)
class PilotLimits:
    """What a pilot may use, and at most how many configurations it trains for how many `steps`, one of four further."""

    usd: Money | None = None
    gpu_ms: int | None = None
    trials: int = 12
    steps: int = 2

    def faults(self, job: JobSpec) -> list[Fault]:
        found = []
        if self.usd is None and self.gpu_ms is None:
            found.append(Fault("", "give at least one of usd and gpu_hours"))
        if self.gpu_ms is not None and self.usd is None and job.resources.gpus == 0:
            found.append(Fault("/usd", "give usd: trials without GPUs never use up gpu_hours"))
        if _is_out_of(self.usd, Money(0), job.budget.usd):
            found.append(Fault("/usd", "must be more than 0, and less than the budget of the job"))
        if _is_out_of(self.gpu_ms, 0, job.budget.gpu_ms):
            found.append(Fault("/gpu_hours", "must be more than 0, and less than the budget of the job"))
        if not 1 <= self.trials <= TRIALS_MAX:
            found.append(Fault("/trials", f"must be between 1 and {TRIALS_MAX}"))
        if not 1 <= self.steps <= STEPS_MAX:
            found.append(Fault("/steps", f"must be between 1 and {STEPS_MAX}"))
        return found


def _is_out_of(value: Money | int | None, low: Money | int, high: Money | int | None) -> bool:
    if value is None:
        return False
    return value <= low or (high is not None and value >= high)  # type: ignore[operator]


def pilot_of(job: JobSpec, limits: PilotLimits, key: str) -> JobSpec:
    """The small job that is run before `job`: a Sobol sequence over its space, each point for the first steps, and of the best
    some further. It has a budget of its own, and learns from nobody."""
    most = job.fidelity.max
    steps = limits.steps if most is None else min(limits.steps, most)
    further = FURTHER * steps if most is None else min(FURTHER * steps, most)
    return replace(
        job,
        name=f"{job.name[: NAME_MAX - len(' pilot')]} pilot",
        objective=replace(job.objective, target=None),
        budget=Budget(usd=limits.usd, gpu_ms=limits.gpu_ms, trials=limits.trials),
        fidelity=Fidelity(job.fidelity.unit, steps, further, ONE_OF),
        algorithm=Algorithm("asha", "qmc", job.algorithm.seed),
        plateau=None,
        warm_start_jobs=(),
        window=None,
        tags={**job.tags, TAG: key},
    )


def pilot_key(job: JobSpec, code: str) -> str:
    """What a pilot holds for: the code of the trainable, what it is called with, and what a trial has of a node. The market is no
    part of it: it decides the price, not the pace."""
    taken = asdict(job.resources)
    del taken["market"]
    parts = [
        job.trainable,
        code,
        job.objective.metric,
        {name: [type(one).__name__, asdict(one)] for name, one in job.space.parameters.items()},
        dict(job.constants),
        job.fidelity.unit,
        taken,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
