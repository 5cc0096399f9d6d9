"""Schedulers by name."""

from tuner.domain.job import JobSpec
from tuner.tuning.schedulers.base import Scheduler
from tuner.tuning.schedulers.forecast import ForecastPromotion
from tuner.tuning.schedulers.promotion import FullFidelity, PromotionAsha, StoppingAsha

__all__ = ["Scheduler", "scheduler_for"]


def scheduler_for(spec: JobSpec) -> Scheduler:
    """Return the scheduler of a job. `auto` promotes by forecasts if the job has rungs."""
    match spec.algorithm.scheduler:
        case "none":
            return FullFidelity()
        case "asha_stopping":
            return StoppingAsha()
        case "auto":
            return ForecastPromotion() if spec.fidelity.rungs() else FullFidelity()
        case "asha":
            return PromotionAsha() if spec.fidelity.rungs() else FullFidelity()
