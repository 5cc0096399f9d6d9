"""The planner: predicts what a job will cost, how long it will take and what it will find, before anything runs.

Every figure comes from the simulator, which executes the code of a real job. It is run several times on step times and learning curves
drawn from the evidence (`paces.py`). The figures are means over those runs, and the spread of the runs gives the intervals. The planner is
pure: the same inputs give the same plan.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from tuner.domain.budget import Budget
from tuner.domain.job import JobSpec
from tuner.domain.money import NS_PER_HOUR, Cost, Money, Price
from tuner.domain.time import NS
from tuner.planning import alternatives, choices, comparisons
from tuner.planning.alternatives import RUNS, SURE_ENOUGH, Candidate, in_time
from tuner.planning.evidence import Evidence
from tuner.planning.paces import Paces
from tuner.planning.plan import Alternative, Chance, Choice, Inputs, Plan, PlannedRung, Scores, Spread
from tuner.planning.simulations import Outcome, Setting, Simulate, SpotLife, for_planning, mean, stops_of

# The 90th percentile of Student's t with 9 degrees of freedom, times sqrt(1 + 1/10): it bounds one more run after ten.
T_RUNS = 1.45
MARGIN = 50  # each end of an interval is moved outwards by a fiftieth, for effects that are not simulated


@dataclass(frozen=True)
class Question:
    """A job to plan, and everything that the plan depends on."""

    spec: JobSpec
    evidence: Evidence
    candidates: tuple[Candidate, ...]  #: The machines that the job may run on, at least one.
    slice_ns: int  #: The length of a lease.
    life: SpotLife
    choose: bool = False  #: Whether to choose among the candidates. Otherwise the job runs on the first one.
    deadline_ns: int | None = (
        None  #: Nanoseconds from now. The plan aims at the deadline, but a job is not stopped when it passes.
    )
    room: int | None = None  #: How many trials the machines have room for at once. None means any number.
    seed: int = 0

    @property
    def limit_ns(self) -> int | None:
        """The deadline or the budget's wall-clock limit, the earlier of the two. None if there is neither."""
        limits = [ns for ns in (self.deadline_ns, self.spec.budget.wall_clock_ns) if ns is not None]
        return min(limits, default=None)


def plan(question: Question, simulate: Simulate) -> Plan:
    """Plan a job. It must be valid for admission. This runs some tens of simulations with some hundred steps each.

    Args:
        question: The job and everything that the plan depends on.
        simulate: Runs one simulation. It must be deterministic.
    """
    base = _base(question)
    limit_ns, life, budget = question.limit_ns, question.life, question.spec.budget
    offered = alternatives.compared(base, question.candidates, life, limit_ns, simulate)
    choice = alternatives.chosen_of(offered) if question.choose else offered[0]
    chosen = choice.candidate
    setting = chosen.setting(base, life)
    runs = choice.runs or setting.runs(simulate, RUNS)
    rungs, most = _rungs(setting, runs), _most(setting, budget)
    shown = tuple(replace(one.shown, chosen=one is choice) for one in offered)
    made = Plan(
        cost=_within(
            _spread([run.cost.usd.micro_usd for run in runs], sum(rung.usd.micro_usd for rung in rungs)),
            min(most.usd, budget.limit.usd).micro_usd,
        ),
        gpu_ms=_within(
            _spread([run.cost.gpu_ms for run in runs], sum(rung.gpu_ms for rung in rungs)),
            budget.limit.gpu_ms,
        ),
        finish_ns=_within(_spread([run.elapsed_ns for run in runs]), budget.wall_clock_ns),
        trials=_within(_spread([run.trials for run in runs]), budget.trials),
        rungs=rungs,
        ends=Counter(run.reason for run in runs if run.reason is not None),
        deadline_ns=limit_ns,
        in_time=in_time(runs, limit_ns),
        target=_target(question.spec, setting, runs),
        best=_best(question.spec, runs),
        checkpointing=choices.checkpointing(setting, question.spec),
        choices=(),
        alternatives=shown,
        comparisons=comparisons.compared(setting, runs, chosen, life, simulate),
        warnings=(),
        inputs=_inputs(question, setting),
    )
    others = choices.made(question.spec, setting, made, runs, question.room, simulate)
    made = replace(made, choices=(*_placed(question, shown), *others))
    return replace(made, warnings=warnings_of(question.spec, setting, made))


def _base(question: Question) -> Setting:
    evidence = question.evidence
    steps = question.spec.fidelity.max or evidence.steps
    spec = for_planning(question.spec, steps=steps, knows_curves=evidence.knows_curves)
    paces = Paces(evidence, question.spec.space, spec.fidelity.max or 1)
    first = question.candidates[0]
    return Setting(
        spec, first.offers, first.concurrency, paces, question.slice_ns, question.life, seed=question.seed
    )


def _rungs(setting: Setting, runs: Sequence[Outcome]) -> tuple[PlannedRung, ...]:
    """Return the means over the runs for each rung. They are whole micro-dollars, and the plan's cost is their sum."""
    count, found = len(runs), []
    for i, step in enumerate(stops_of(setting.spec)):
        uses = [run.rungs[i] for run in runs]
        steps, ns = sum(use.steps for use in uses), sum(use.train_ns for use in uses)
        train = sum(use.train.micro_usd for use in uses)
        found.append(
            PlannedRung(
                step,
                1000 * sum(use.trials for use in uses) // count,
                1000 * steps // count,
                ns // steps if steps else 0,
                Price(train * NS_PER_HOUR // ns if ns else 0),
                Money(train // count),
                Money(sum(use.overhead.micro_usd for use in uses) // count),
                sum(use.gpu_ms for use in uses) // count,
            )
        )
    return tuple(found)


def _most(setting: Setting, budget: Budget) -> Cost:
    """Return the highest cost that the limits of the budget allow, at the most expensive offer."""
    wanted = setting.spec.resources
    rates = [offer.rate(cpus=wanted.cpus, gpus=wanted.gpus) for offer in setting.offers]
    rate = max(rates, key=lambda one: one.price)
    return rate.cost(rate.affords_ns(budget.limit))


def _within(spread: Spread, limit: int | None) -> Spread:
    """Cap a spread at a limit of the budget, because a job never exceeds its limits."""
    if limit is None:
        return spread
    return Spread(min(spread.expected, limit), min(spread.low, limit), min(spread.high, limit))


def _spread(values: Sequence[int], expected: int | None = None) -> Spread:
    """Return the expected value and an 80 % interval of the runs' values.

    Each end is the 10th or 90th percentile of the values, or of a log-normal distribution fitted to them, if that is farther out,
    because so few runs seldom reach the ends of the distribution.

    Args:
        values: One value per run.
        expected: The expected value. None means the mean.
    """
    ordered, middle = sorted(values), mean(values) if expected is None else expected
    low, high = _quantile(ordered, 1), _quantile(ordered, 9)
    if ordered[0] > 0 and len(ordered) > 1:
        logs = [math.log(value) for value in ordered]
        reach = T_RUNS * stdev(logs)
        low = min(low, round(math.exp(fmean(logs) - reach)))
        high = max(high, round(math.exp(fmean(logs) + reach)))
    return Spread(middle, low - low // MARGIN, high + high // MARGIN)


def _quantile(ordered: Sequence[int], tenths: int) -> int:
    """Return a quantile of ascending values, interpolated linearly in whole numbers."""
    place = tenths * (len(ordered) - 1)
    below, part = divmod(place, 10)
    above = ordered[min(below + 1, len(ordered) - 1)]
    return ordered[below] + (above - ordered[below]) * part // 10


def _target(spec: JobSpec, setting: Setting, runs: Sequence[Outcome]) -> Chance | None:
    """Return how many runs reached the target. Return None if there is no target or no curves are known."""
    if spec.objective.target is None or not setting.paces.knows_curves:
        return None
    return Chance(sum(run.reason == "target" for run in runs), len(runs))


def _best(spec: JobSpec, runs: Sequence[Outcome]) -> Scores | None:
    found = sorted(run.best for run in runs if run.best is not None and math.isfinite(run.best))
    if not found:
        return None
    last = len(found) - 1
    ends = sorted(spec.objective.score(found[round(last * share)]) for share in (0.1, 0.9))
    return Scores(spec.objective.score(math.fsum(found) / len(found)), ends[0], ends[1])


def _placed(question: Question, shown: Sequence[Alternative]) -> list[Choice]:
    wanted = question.spec.resources
    chosen = next(one for one in shown if one.chosen)
    others = [one for one in shown if not one.chosen and one.why_not is None]
    why = alternatives.why_chosen(chosen, others)
    return [
        Choice("instance_type", wanted.instance_type, chosen.instance_type, why),
        Choice("market", wanted.market, chosen.market, why),
    ]


def _inputs(question: Question, setting: Setting) -> Inputs:
    wanted = setting.spec.resources
    prices = [offer.rate(cpus=wanted.cpus, gpus=wanted.gpus).price for offer in setting.offers]
    return Inputs(
        question.evidence,
        setting.offers,
        max(prices),
        setting.concurrency,
        setting.speed,
        question.seed,
        RUNS,
        tuple(setting.factors(RUNS)),
        question.spec.algorithm.scheduler,
        setting.spec.algorithm.sampler,
    )


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
