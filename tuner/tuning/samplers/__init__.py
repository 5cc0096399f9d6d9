"""Samplers, which suggest configurations. `sampler_for` returns the sampler that a job names."""

from collections.abc import Sequence

from tuner.domain.errors import Fault
from tuner.domain.events import RULES
from tuner.domain.job import JobSpec
from tuner.domain.records import PastTrial, ScorePoint
from tuner.domain.space import pointer_token
from tuner.tuning.rungs import ladder
from tuner.tuning.samplers.base import Sampler
from tuner.tuning.samplers.encoding import UnitCube
from tuner.tuning.samplers.simple import GridSampler, RandomSampler

__all__ = ["Sampler", "sampler_for"]
MODEL_DIMENSIONS = 40  # if a space has more dimensions, a job has too few trials for a model of it


def uses_model(spec: JobSpec) -> bool:
    """Return True if the job's sampler is our model of learning curves (`model.py`), which also forecasts results and step times."""
    return spec.algorithm.sampler == "auto" and UnitCube(spec.space).dimensions <= MODEL_DIMENSIONS


def prior_faults(spec: JobSpec) -> list[Fault]:
    """Return a fault for each prior of the search space that the job's sampler would ignore."""
    sampler = spec.algorithm.sampler
    if sampler == "random" or uses_model(spec):
        return []
    detail = "is used by the samplers auto and random only; choose one of them, or add a configuration with the prior's center to start"
    if sampler == "auto":
        detail = (
            f"is not used in a space of more than {MODEL_DIMENSIONS} dimensions; choose the sampler random, or add a configuration with "
            "the prior's center to start"
        )
    return [
        Fault(f"/search_space/{pointer_token(name)}/prior", detail)
        for name, parameter in spec.space.parameters.items()
        if parameter.prior is not None
    ]


def known_results(spec: JobSpec) -> list[PastTrial]:
    """Return the results that the user gave with the request, in the form of trials that were trained to the last step."""
    last = spec.fidelity.max or 1
    return [
        PastTrial(point.config, (ScorePoint(last, spec.objective.score(point.metric), 0),), is_given=True)
        for point in spec.start
        if point.metric is not None
    ]


def sampler_for(spec: JobSpec, history: Sequence[PastTrial] = (), rules: int = RULES) -> Sampler:
    """Return the sampler of a job.

    `auto` is our model of learning curves (`model.py`), or TPE if the space has more than MODEL_DIMENSIONS dimensions.

    Args:
        history: Trials of earlier jobs that the sampler learns from.
        rules: The version of the decision rules.
    """
    seed = spec.algorithm.seed
    history = [*history, *known_results(spec)]
    match spec.algorithm.sampler:
        case "random":
            return RandomSampler(spec.space, seed, history)
        case "grid":
            return GridSampler(spec.space, seed, history)
        case "auto" if uses_model(spec):
            from tuner.tuning.samplers.model import ModelSampler

            fidelity = ladder(spec)
            steps = [] if fidelity.max is None else [*fidelity.rungs(), fidelity.max]
            return ModelSampler(spec.space, seed, steps, history, repeats=rules < 4)
        case "auto" | "tpe" | "gp" | "cmaes" | "qmc":
            # Imported only here, because importing Optuna takes a second, and jobs with other samplers do not need it.
            from tuner.tuning.samplers.optuna import OptunaSampler

            name = spec.algorithm.sampler
            name = "tpe" if name == "auto" else name
            last, is_constrained = spec.fidelity.max, bool(spec.constraints)
            return OptunaSampler(name, spec.space, seed, history, last, is_constrained=is_constrained)
