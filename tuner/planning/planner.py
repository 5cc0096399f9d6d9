"""The planner: from a job to what it is expected to cost, to take and to find, before anything runs.

Every figure comes of the simulator, which is the code of a real job, run several times on paces and curves drawn from the
evidence (`paces.py`); the figures are means of those runs, and the runs' own spread is the interval. Pure: the same inputs give
the same plan.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from tuner.domain.budget import Budget
from tuner.domain.job import JobSpec
from tuner.domain.money import NS_PER_HOUR, Cost, Money, Price
from tuner.planning import alternatives, choices, comparisons
from tuner.planning.alternatives import RUNS, Candidate, in_time
from tuner.planning.evidence import Evidence
from tuner.planning.paces import Paces
from tuner.planning.plan import Alternative, Chance, Choice, Inputs, Plan, PlannedRung, Scores, Spread
from tuner.planning.scenario import Outcome, Simulate, SpotLife
from tuner.planning.simulations import Setting, for_planning, mean, stops_of
from tuner.planning.warnings import warnings_of

T_RUNS = 1.45  # the 90th percentile of Student's t with 9 degrees of freedom, for one more run than the ten
MARGIN = 50  # an interval is wider by a fiftieth at each end: for what no simulation knows of


@dataclass(frozen=True)
class Question:
    """What is to be planned. `candidates`: what the job may run on, at least one; the first is what it gets as it was asked for
    where `choose` is not set. `deadline_ns`: from now, a wish, which ends nothing. `life`: of spot machines. `room`: how many trials
    could run at once; None: any number."""

    spec: JobSpec
    evidence: Evidence
    candidates: tuple[Candidate, ...]
    slice_ns: int
    life: SpotLife
    choose: bool = False
    deadline_ns: int | None = None
    room: int | None = None
    seed: int = 0

    @property
    def limit_ns(self) -> int | None:
        """Whichever comes first of the deadline and the end of the wall clock."""
        limits = [ns for ns in (self.deadline_ns, self.spec.budget.wall_clock_ns) if ns is not None]
        return min(limits, default=None)


def plan(question: Question, simulate: Simulate) -> Plan:
    """Of a job that could be admitted. Some tens of simulations of some hundred steps each."""
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
    """Means over the runs, in whole micro-dollars, of which the plan's cost is the sum."""
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
    """What all limits together allow, at the dearest price."""
    wanted = setting.spec.resources
    rates = [offer.rate(cpus=wanted.cpus, gpus=wanted.gpus) for offer in setting.offers]
    rate = max(rates, key=lambda one: one.price)
    return rate.cost(rate.affords_ns(budget.limit))


def _within(spread: Spread, limit: int | None) -> Spread:
    """A limit is hard: nothing is expected beyond it."""
    if limit is None:
        return spread
    return Spread(min(spread.expected, limit), min(spread.low, limit), min(spread.high, limit))


def _spread(values: Sequence[int], expected: int | None = None) -> Spread:
    """`expected` None: the mean. The ends are the 10th and the 90th percentile of the runs, or of the log-normal distribution that
    they would be of, whichever is farther: so few runs seldom show the ends."""
    ordered, middle = sorted(values), mean(values) if expected is None else expected
    low, high = _quantile(ordered, 1), _quantile(ordered, 9)
    if ordered[0] > 0 and len(ordered) > 1:
        logs = [math.log(value) for value in ordered]
        reach = T_RUNS * stdev(logs)
        low = min(low, round(math.exp(fmean(logs) - reach)))
        high = max(high, round(math.exp(fmean(logs) + reach)))
    return Spread(middle, low - low // MARGIN, high + high // MARGIN)


def _quantile(ordered: Sequence[int], tenths: int) -> int:
    """Linear between neighbours, in whole numbers."""
    place = tenths * (len(ordered) - 1)
    below, part = divmod(place, 10)
    above = ordered[min(below + 1, len(ordered) - 1)]
    return ordered[below] + (above - ordered[below]) * part // 10


def _target(spec: JobSpec, setting: Setting, runs: Sequence[Outcome]) -> Chance | None:
    """None without a target, or without curves that say anything of it."""
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
