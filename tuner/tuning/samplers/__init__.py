"""Samplers by name."""

from collections.abc import Sequence

from tuner.domain.job import JobSpec
from tuner.domain.records import PastTrial
from tuner.tuning.samplers.base import Sampler
from tuner.tuning.samplers.simple import GridSampler, RandomSampler

__all__ = ["Sampler", "sampler_for"]


def sampler_for(spec: JobSpec, history: Sequence[PastTrial] = ()) -> Sampler:
    """`auto` is TPE (Bergstra et al., NeurIPS 2011). `history`: trials of earlier jobs of the same trainable."""
    seed = spec.algorithm.seed
    match spec.algorithm.sampler:
        case "random":
            return RandomSampler(spec.space, seed)
        case "grid":
            return GridSampler(spec.space, seed)
        case "auto" | "tpe" | "gp" | "cmaes" | "qmc":
            # Optuna takes a second to import, which random and grid jobs need not pay.
            from tuner.tuning.samplers.optuna import OptunaSampler

            return OptunaSampler(spec.algorithm.sampler, spec.space, seed)
