"""Pilots: jobs that run a few steps of configurations spread over the search space. A plan learns the step times from them."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace

from tuner.domain.budget import Budget
from tuner.domain.errors import Fault
from tuner.domain.job import Algorithm, JobSpec
from tuner.domain.money import Money
from tuner.domain.objective import Fidelity

TAG = "pilot"
TRIALS_MAX = 100
STEPS_MAX = 1000
# The best of every four trials continues to four times as many steps, because first steps are often slower than later ones. Both numbers are
# the reduction factor of the pilot, so that it has a single rung. With more steps it had two, and few trials passed the second.
ONE_OF = 4
NAME_MAX = 100


@dataclass(frozen=True, slots=True)
class PilotLimits:
    """The budget of a pilot, the number of its configurations, and the number of steps to train each of them."""

    usd: Money | None = None
    gpu_ms: int | None = None
    trials: int = 12  #: The maximum number of configurations.
    #: The steps of each configuration. The best of every ONE_OF is trained for ONE_OF times as many.
    steps: int = 2

    def faults(self, job: JobSpec) -> list[Fault]:
        faults = []
        if self.usd is None and self.gpu_ms is None:
            faults.append(Fault("", "give at least one of usd and gpu_hours"))
        if self.gpu_ms is not None and self.usd is None and job.resources.gpus == 0:
            faults.append(Fault("/usd", "give usd: trials without GPUs never use up gpu_hours"))
        if _is_out_of(self.usd, Money(0), job.budget.usd):
            faults.append(Fault("/usd", "must be more than 0, and less than the budget of the job"))
        if _is_out_of(self.gpu_ms, 0, job.budget.gpu_ms):
            faults.append(Fault("/gpu_hours", "must be more than 0, and less than the budget of the job"))
        if not 1 <= self.trials <= TRIALS_MAX:
            faults.append(Fault("/trials", f"must be between 1 and {TRIALS_MAX}"))
        if not 1 <= self.steps <= STEPS_MAX:
            faults.append(Fault("/steps", f"must be between 1 and {STEPS_MAX}"))
        return faults


def _is_out_of(value: Money | int | None, low: Money | int, high: Money | int | None) -> bool:
    if value is None:
        return False
    return value <= low or (high is not None and value >= high)  # type: ignore[operator]


def pilot_of(job: JobSpec, limits: PilotLimits, key: str) -> JobSpec:
    """Return the spec of a job's pilot, which is a job itself.

    The pilot trains configurations from a Sobol sequence over the search space for a few steps, and the best of them for more steps. It
    has its own budget and does not learn from other jobs. Its trials do not share workers, so that it measures what a trial needs alone,
    such as its GPU memory. Its tag TAG has the value `key`, by which jobs that can use the pilot find it.
    """
    most = job.fidelity.max
    steps = limits.steps if most is None else min(limits.steps, most)
    further = ONE_OF * steps if most is None else min(ONE_OF * steps, most)
    measured = Fidelity(job.fidelity.unit, steps, further, ONE_OF)
    # Use the last value of each proxy, which is the most expensive, so that the cost of a step is not underestimated.
    if job.fidelity.proxies is not None:
        stages = max(1, len(measured.rungs()))
        proxies = {name: tuple(values[-1:]) * stages for name, values in job.fidelity.proxies.items()}
        measured = replace(measured, proxies=proxies)
    return replace(
        job,
        name=f"{job.name[: NAME_MAX - len(' pilot')]} pilot",
        objective=replace(job.objective, target=None),
        space=job.space.without_priors(),
        budget=Budget(usd=limits.usd, gpu_ms=limits.gpu_ms, trials=limits.trials),
        fidelity=measured,
        resources=replace(job.resources, pack=1),
        algorithm=Algorithm("asha", "qmc", job.algorithm.seed),
        plateau=None,
        worth_micro_usd=None,
        confirm=None,
        start=(),
        trial_limits=None,
        warm_start_jobs=(),
        warm_start_checkpoints=False,
        window=None,
        tags={**job.tags, TAG: key},
    )


def pilot_key(job: JobSpec, code: str) -> str:
    """Return a key that is equal for jobs that can use each other's pilots.

    It is a hash of the trainable, its arguments, the metric, the search space, and the resources of a trial. The market is not included,
    because it determines the price and not the step time. Neither is `pack`, because the trials of a pilot do not share workers. `code` identifies the version of the trainable's code.
    """
    taken = asdict(job.resources)
    del taken["market"], taken["pack"]
    parts = [
        job.trainable,
        code,
        job.objective.metric,
        {
            name: [type(parameter).__name__, asdict(parameter)]
            for name, parameter in job.space.parameters.items()
        },
        dict(job.constants),
        job.fidelity.unit,
        taken,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
