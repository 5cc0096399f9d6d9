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
            f"nothing is known of how long a step of {spec.trainable} takes: {evidence.step_ns / NS:g} s is assumed, four times as "
            "long or as short being as likely as not; give planning.step_seconds, or run a pilot"
        )
    if 0 < len(evidence.trials) < 5:
        yield f"only {len(evidence.trials)} trials are known, so the pace may be off"
    if spec.fidelity.max is None:
        how = "as the median of earlier trials had" if evidence.steps else "is a guess: give fidelity.max"
        yield f"trials end by themselves: {setting.spec.fidelity.max} steps {how}"


def _of_limits(spec: JobSpec, plan: Plan) -> Iterator[str]:
    if spec.window is not None:
        hours = f"from {spec.window.start} to {spec.window.end} {spec.window.timezone}"
        yield f"the finish counts time in which the job runs, which is {hours} only; by the calendar it is later"
    if plan.in_time is not None and plan.in_time.share < SURE_ENOUGH:
        chance = plan.in_time
        yield f"in {chance.runs - chance.met} of {chance.runs} runs it is not done within {(plan.deadline_ns or 0) / NS:g} s"
    last = plan.rungs[-1]
    if last.milli_trials < 1000:
        yield (
            f"the budget trains {last.milli_trials / 1000:g} trials to step {last.step} on average: give more, or a smaller "
            "fidelity.max"
        )
    if plan.trials.expected < 5:
        yield f"{plan.trials.expected} trials are too few to search {len(spec.space.parameters)} parameters"


def _of_curves(spec: JobSpec, setting: Setting) -> Iterator[str]:
    knows = setting.paces.knows_curves
    if spec.objective.target is not None and not knows:
        yield "no learning curves are known: the plan is for a job that does not reach its target, which would end it sooner"
    if spec.plateau is not None and not knows:
        yield "no learning curves are known: the plan is for a job that meets no plateau, which would end it sooner"
    if spec.algorithm.sampler in ("auto", "tpe", "gp", "cmaes") and not knows:
        yield (
            f"configurations are drawn at random here: what sampler {spec.algorithm.sampler} will prefer may take longer, or less "
            "long"
        )
