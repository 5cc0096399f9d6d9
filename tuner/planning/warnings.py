"""Warnings that are shown with a plan, such as missing evidence or a deadline that may be missed."""

from collections.abc import Iterator

from tuner.domain.job import JobSpec
from tuner.domain.time import NS
from tuner.planning.alternatives import SURE_ENOUGH
from tuner.planning.plan import Plan
from tuner.planning.simulations import Setting


def warnings_of(spec: JobSpec, setting: Setting, plan: Plan) -> tuple[str, ...]:
    return tuple([*_of_evidence(spec, setting), *_of_limits(spec, plan), *_of_curves(spec, setting)])


def _of_evidence(spec: JobSpec, setting: Setting) -> Iterator[str]:
    evidence = setting.paces.evidence
    yield from evidence.notes
    if evidence.source == "none":
        yield (
            f"the step time of {spec.trainable} is not known: {evidence.step_ns / NS:g} s is assumed, and it may well be four times "
            "longer or shorter; give planning.step_seconds, or run a pilot"
        )
    if 0 < len(evidence.trials) < 5:
        yield f"the step time is taken from only {len(evidence.trials)} trials, so it may be wrong"
    if spec.fidelity.max is None:
        how = "the median of earlier trials" if evidence.steps else "a guess; give fidelity.max"
        yield f"trials end by themselves; {setting.spec.fidelity.max} steps per trial are assumed, {how}"


def _of_limits(spec: JobSpec, plan: Plan) -> Iterator[str]:
    if spec.window is not None:
        hours = f"from {spec.window.start} to {spec.window.end} {spec.window.timezone}"
        yield f"the finish counts only the time when the job may run, {hours}; the calendar time is later"
    if plan.in_time is not None and plan.in_time.share < SURE_ENOUGH:
        chance = plan.in_time
        yield f"in {chance.runs - chance.met} of {chance.runs} runs the job does not finish within {(plan.deadline_ns or 0) / NS:g} s"
    last = plan.rungs[-1]
    if last.milli_trials < 1000:
        yield (
            f"the budget trains {last.milli_trials / 1000:g} trials to step {last.step} on average: set a larger budget or a smaller "
            "fidelity.max"
        )
    if plan.trials.expected < 5:
        yield f"{plan.trials.expected} trials are too few to search {len(spec.space.parameters)} parameters"


def _of_curves(spec: JobSpec, setting: Setting) -> Iterator[str]:
    knows = setting.paces.knows_curves
    if spec.objective.target is not None and not knows:
        yield "no learning curves are known: the plan assumes that the job does not reach its target, which would end it earlier"
    if spec.plateau is not None and not knows:
        yield "no learning curves are known: the plan assumes that the job reaches no plateau, which would end it earlier"
    if spec.algorithm.sampler in ("auto", "tpe", "gp", "cmaes") and not knows:
        yield (
            f"the plan draws configurations at random: those that the sampler {spec.algorithm.sampler} chooses may take more or "
            "less time"
        )
