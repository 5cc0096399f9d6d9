"""The planner: predicts what a job will cost, how long it will take and what it will find, before anything runs.

Every figure comes from the simulator, which executes the code of a real job. It is run several times on step times and learning curves
drawn from the evidence (`paces.py`). The figures are means over those runs, and the spread of the runs gives the intervals. The planner is
pure: the same inputs give the same plan.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, pstdev, quantiles, stdev

from tuner.domain.job import JobSpec
from tuner.domain.money import MS_PER_HOUR, Money, Price
from tuner.domain.time import HOUR_NS, NS
from tuner.planning import alternatives, choices
from tuner.planning.alternatives import RUNS, SURE_ENOUGH, MachineCandidate, in_time
from tuner.planning.pace_evidence import PaceEvidence
from tuner.planning.paces import Paces
from tuner.planning.plan import Chance, Inputs, JobPlan, PlannedRung, SettingChoice, Spread, TargetChance
from tuner.planning.simulations import (
    Setting,
    Simulate,
    SimulatedOutcome,
    SpotLife,
    for_planning,
    real_steps_of,
)

# With ten runs, the result of an eleventh lies within this many standard deviations of their mean with a probability of 80 %. The value is
# the 90th percentile of Student's t with 9 degrees of freedom, times sqrt(1 + 1/10).
T_RUNS = 1.45
MARGIN = 50  # each end of an interval is moved outwards by a fiftieth, for effects that are not simulated


@dataclass(frozen=True)
class PlanQuestion:
    """A job to plan, and everything that the plan depends on."""

    spec: JobSpec
    evidence: PaceEvidence
    candidates: tuple[MachineCandidate, ...]  #: The machines that the job may run on, at least one.
    slice_ns: int  #: The length of a lease.
    life: SpotLife
    choose: bool = False  #: Whether to choose among the candidates. Otherwise the job runs on the first one.
    #: Nanoseconds from now. The plan aims at the deadline, but a job is not stopped when it passes.
    deadline_ns: int | None = None
    room: int | None = None  #: How many trials the machines have room for at once. None means any number.
    seed: int = 0


@dataclass(frozen=True)
class _Forecast:
    """What the runs say about the job's cost, duration and trials."""

    usd: Spread
    gpu_hours: Spread
    finish_seconds: Spread
    trials: Spread
    rungs: tuple[PlannedRung, ...]


def plan(question: PlanQuestion, simulate: Simulate) -> JobPlan:
    """Plan a job, which must be valid for admission. Planning runs some tens of simulations of some hundred steps each.

    Args:
        question: The job and everything that the plan depends on.
        simulate: Runs one simulation. It must be deterministic.
    """
    spec, evidence, life = question.spec, question.evidence, question.life
    first = question.candidates[0]
    limits = [ns for ns in (question.deadline_ns, spec.budget.wall_clock_ns) if ns is not None]
    limit_ns = min(limits, default=None)
    simulated = for_planning(
        spec, steps=spec.fidelity.max or evidence.steps, knows_curves=evidence.knows_curves
    )
    paces = Paces(evidence, simulated.fidelity.max or 1)
    base = Setting(
        simulated, first.offers, first.concurrency, paces, question.slice_ns, life, seed=question.seed
    )
    offered = alternatives.compared(base, question.candidates, life, limit_ns, simulate)
    choice = alternatives.chosen_of(offered) if question.choose else offered[0]
    setting = choice.candidate.setting(base, life)
    runs = choice.runs or setting.runs(simulate, RUNS)
    shown = tuple(replace(compared.shown, chosen=compared is choice) for compared in offered)
    forecast = _forecast(spec, setting, runs)
    on_time = in_time(runs, limit_ns)
    best_place = _best_place(setting, runs, simulate)
    best = _best(spec, paces, best_place)
    checkpoints = choices.checkpoints(setting, spec)
    others = choices.made(spec, setting, checkpoints, limit_ns, runs, question.room, simulate)
    reason = alternatives.why_chosen(
        choice.shown, [compared.shown for compared in offered if compared is not choice]
    )
    return JobPlan(
        usd=forecast.usd,
        gpu_hours=forecast.gpu_hours,
        finish_seconds=forecast.finish_seconds,
        trials=forecast.trials,
        rungs=forecast.rungs,
        ends=dict(sorted(Counter(str(run.reason) for run in runs if run.reason is not None).items())),
        deadline_seconds=None if limit_ns is None else limit_ns / NS,
        in_time=on_time,
        target=_target(spec, paces, best_place),
        best=best,
        checkpoints=checkpoints,
        choices=(
            SettingChoice("instance_type", spec.resources.instance_type, choice.shown.instance_type, reason),
            SettingChoice("market", spec.resources.market, choice.shown.market, reason),
            *others,
        ),
        alternatives=shown,
        comparisons=alternatives.comparisons(setting, runs, choice.candidate, life, simulate),
        warnings=(
            *_of_evidence(spec, setting),
            *_of_limits(spec, forecast, on_time, limit_ns),
            *_of_curves(spec, setting),
            *_of_percent(spec, paces, best),
        ),
        inputs=Inputs(
            evidence,
            setting.offers,
            setting.concurrency,
            setting.speed,
            question.seed,
            RUNS,
            tuple(setting.factors(RUNS)),
            spec.algorithm.scheduler,
            setting.spec.algorithm.sampler,
        ),
    )


def _forecast(spec: JobSpec, setting: Setting, runs: Sequence[SimulatedOutcome]) -> _Forecast:
    """Return the forecast of the runs. No figure exceeds the limits of the job's budget."""
    budget = spec.budget
    rates = [offer.rate(spec.resources) for offer in setting.offers]
    most_expensive = max(rates, key=lambda rate: rate.price)
    most = min(most_expensive.cost(most_expensive.affords_ns(budget.limit)).usd, budget.limit.usd)
    rungs, gpu_ms = _rungs(setting, runs)
    return _Forecast(
        usd=_spread(
            [run.cost.usd.micro_usd for run in runs],
            unit=1_000_000,
            limit=most.micro_usd,
            expected=sum(rung.usd.micro_usd for rung in rungs),
        ),
        gpu_hours=_spread(
            [run.cost.gpu_ms for run in runs],
            unit=MS_PER_HOUR,
            limit=budget.limit.gpu_ms,
            expected=gpu_ms,
        ),
        finish_seconds=_spread([run.elapsed_ns for run in runs], unit=NS, limit=budget.wall_clock_ns),
        trials=_spread([run.trials for run in runs], unit=1, limit=budget.trials),
        rungs=rungs,
    )


def _rungs(setting: Setting, runs: Sequence[SimulatedOutcome]) -> tuple[tuple[PlannedRung, ...], int]:
    """Return the figures of each rung, as means over the runs, and the sum of the rungs' GPU-milliseconds.

    The money of each rung is rounded down to whole micro-dollars. The plan's expected cost is the sum of these rounded amounts, so that
    users can add them up.
    """
    count, rungs, gpu_ms = len(runs), list[PlannedRung](), 0
    for i, step in enumerate(real_steps_of(setting.spec)):
        uses = [run.rungs[i] for run in runs]
        steps, ns = sum(use.steps for use in uses), sum(use.train_ns for use in uses)
        price_ns = sum(use.price_ns for use in uses)
        used_ms = sum(use.gpu_ms for use in uses) // count
        gpu_ms += used_ms
        rung = PlannedRung(
            step,
            trials=1000 * sum(use.trials for use in uses) // count / 1000,
            steps=1000 * steps // count / 1000,
            step_seconds=(ns // steps if steps else 0) / NS,
            usd_per_hour=Price(price_ns // ns if ns else 0),
            train_usd=Money(price_ns // (count * HOUR_NS)),
            overhead_usd=Money(sum(use.overhead.micro_usd for use in uses) // count),
            gpu_hours=used_ms / MS_PER_HOUR,
        )
        rungs.append(rung)
    return tuple(rungs), gpu_ms


def _spread(values: Sequence[int], *, unit: int, limit: int | None, expected: int | None = None) -> Spread:
    """Return the expected value and an 80 % interval of the runs' values.

    The ends of the interval are the 10th and the 90th percentile of the values. If a percentile of a log-normal distribution fitted to
    the values is farther out, it is used instead, because so few runs seldom include the extremes. Both ends are then moved outwards by
    one part in MARGIN.

    Args:
        values: One value per run.
        unit: The values are divided by it, such as 1,000,000 for values in micro-dollars and a result in dollars.
        limit: The limit of the budget, in the unit of the values. The result does not exceed it, because a job never exceeds its limits.
            None means no limit.
        expected: The expected value, in the unit of the values. None means their mean.
    """
    ordered, middle = sorted(values), fmean(values) if expected is None else expected
    low, *_, high = map(round, quantiles(ordered, n=10, method="inclusive"))
    if ordered[0] > 0 and len(ordered) > 1:
        logs = [math.log(value) for value in ordered]
        reach = T_RUNS * stdev(logs)
        low = min(low, round(math.exp(fmean(logs) - reach)))
        high = max(high, round(math.exp(fmean(logs) + reach)))
    ends = (middle, min(middle, low - low // MARGIN), max(middle, high + high // MARGIN))
    return Spread(*((end if limit is None else min(end, limit)) / unit for end in ends))


def _best_place(setting: Setting, runs: Sequence[SimulatedOutcome], simulate: Simulate) -> NormalDist | None:
    """Return the distribution of the place of the best score that the budget buys, or None if no run has a score.

    It includes the error of the simulation itself (`Paces.best_error`). A run that reached the target says little about the best score, because it
    ended there. So a job with a target is simulated again without it. A whole job has as many trials as several scaled-down runs together, so its
    best score is the best of as many runs.
    """
    paces, objective = setting.paces, setting.spec.objective
    if objective.target is not None:
        spec = replace(setting.spec, objective=replace(objective, target=None))
        runs = replace(setting, spec=spec).runs(simulate, RUNS)
    known = [(run.best, run.size) for run in runs if run.best is not None and math.isfinite(run.best)]
    if not known:
        return None
    scores = [score for score, _ in known] * 2
    places = [
        paces.scale.place(max(scores[first : first + min(len(known), max(1, round(size)))]))
        for first, (_, size) in enumerate(known)
    ]
    return NormalDist(fmean(places), math.hypot(pstdev(places), paces.best_error))


def _best(spec: JobSpec, paces: Paces, place: NormalDist | None) -> Spread | None:
    """Return the expected best metric and its 80 % interval."""
    if place is None:
        return None
    reach = NormalDist().inv_cdf(0.9) * place.stdev
    low, middle, high = (
        spec.objective.score(paces.scale.score(end))
        for end in (place.mean - reach, place.mean, place.mean + reach)
    )
    return Spread(middle, min(low, high), max(low, high))


def _target(spec: JobSpec, paces: Paces, place: NormalDist | None) -> TargetChance | None:
    """Return the chance that the best score reaches the job's target.

    Return None if the job has no target, or if no learning curves are known.
    """
    if spec.objective.target is None or place is None or not paces.knows_curves:
        return None
    target = spec.objective.score(spec.objective.target)
    if target > paces.scale.clip(target):  # no score is there
        return TargetChance(0.0)
    aim = paces.scale.place(target)
    if place.stdev == 0:
        return TargetChance(float(place.mean >= aim))
    return TargetChance(1 - place.cdf(aim))


def _of_evidence(spec: JobSpec, setting: Setting) -> Iterator[str]:
    evidence = setting.paces.evidence
    yield from evidence.notes
    if evidence.source == "none":
        yield (
            f"the step time of {spec.trainable} is not known: {evidence.step_ns / NS:g} s is assumed, but a step may take four times "
            "as long or a quarter of this time; give planning.step_seconds, or run a pilot"
        )
    if 0 < len(evidence.trials) < 5:
        yield f"the step time was measured in only {len(evidence.trials)} trials, so it may be wrong"
    if spec.fidelity.max is None:
        how = "the median of earlier trials" if evidence.steps else "a guess; give fidelity.max"
        yield f"the trainable decides when a trial ends; {setting.spec.fidelity.max} steps per trial are assumed, {how}"


def _of_limits(
    spec: JobSpec, forecast: _Forecast, on_time: Chance | None, limit_ns: int | None
) -> Iterator[str]:
    if spec.window is not None:
        hours = f"from {spec.window.start} to {spec.window.end} {spec.window.timezone}"
        yield f"the finish counts only the hours in which the job may run, {hours}; by the calendar, it is later"
    if on_time is not None and limit_ns is not None and on_time.chance < SURE_ENOUGH:
        late, runs = on_time.runs - on_time.met, on_time.runs
        yield f"in {late} of {runs} runs the job does not finish within {limit_ns / NS:g} s"
    last = forecast.rungs[-1]
    if last.trials < 1:
        yield (
            f"the budget trains {last.trials:g} trials to step {last.step} on average: set a larger budget or a smaller fidelity.max"
        )
    if forecast.trials.expected < 5:
        yield f"{forecast.trials.expected:g} trials are too few to search {len(spec.space.parameters)} parameters"


def _of_curves(spec: JobSpec, setting: Setting) -> Iterator[str]:
    if spec.worth_micro_usd is not None:
        yield "the plan assumes that stop.worth does not end the job; if it does, the job costs less"
    if spec.confirm is not None:
        yield "the plan assumes that the part of the budget that confirm reserves is spent on the search"
    if (limits := spec.trial_limits) is not None:
        known = {
            "patience": limits.patience,
            "max_duration": limits.max_duration_ns,
            "max_cost_usd": limits.max_cost_micro_usd,
        }
        names = " or ".join(f"stop.trial.{name}" for name, limit in known.items() if limit is not None)
        yield f"the plan assumes that no trial stops because of {names}; trials that do are shorter, so the job may have more of them"
    if setting.paces.knows_curves:
        seen, steps = setting.paces.last_seen_step, setting.paces.steps
        if seen < steps:
            yield (
                f"no trial was seen after step {seen} of {steps}: the expected best metric is rough, and does not foresee trials that improve "
                "only later; a pilot or an earlier job with more steps makes it better"
            )
        return
    if spec.objective.target is not None:
        yield "no learning curves are known: the plan assumes that the job does not reach its target, which would end it earlier"
    if spec.plateau is not None:
        yield "no learning curves are known: the plan assumes that the job reaches no plateau, which would end it earlier"
    if spec.algorithm.sampler in ("auto", "tpe", "gp", "cmaes"):
        yield (
            f"the plan draws configurations at random; those that the sampler {spec.algorithm.sampler} chooses may take more or "
            "less time"
        )


def _of_percent(spec: JobSpec, paces: Paces, best: Spread | None) -> Iterator[str]:
    """Warn if the metric may be a percentage and the interval of its best value exceeds 100.

    The interval is not limited, because a reward may have the same values and no such bound.
    """
    scores = [score for trial in paces.evidence.curves for _, score in trial.curve]
    may_be_percent = spec.objective.mode == "max" and all(0 <= score <= 100 for score in scores)
    if best is not None and may_be_percent and max(scores, default=0) > 1 and best.high > 100:
        yield (
            f"the expected best {spec.objective.metric} is at most 100 if it is a percentage, which the plan cannot know: "
            "report it as a share from 0 to 1, which a plan does not exceed"
        )
