"""Simulate alternatives to the planned job: other machines and markets, from which the plan may choose, and other search methods."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.domain.budget import Budget
from tuner.domain.job import Algorithm, MarketPolicy, Resources, SamplerName
from tuner.domain.money import MS_PER_HOUR, Money, Price
from tuner.domain.offer import Offer
from tuner.domain.space import Space
from tuner.domain.time import NS
from tuner.planning.plan import Alternative, Chance, ComparisonName, SimulatedComparison
from tuner.planning.simulations import Setting, Simulate, SimulatedOutcome, SpotLife, mean
from tuner.tuning.samplers.simple import GRID_POINTS

MOST = 8  # at most this many candidates are simulated
RUNS = 10
FEW_RUNS = 3
# A grid with more points is not listed, because that takes longer than drawing random points.
GRID_LISTED = 2000
SURE_ENOUGH = 0.8  # a candidate counts as in time if at least this share of its runs ends before the deadline


@dataclass(frozen=True)
class MachineCandidate:
    """A machine and market that the job may run on."""

    instance_type: str
    market: MarketPolicy
    offers: tuple[Offer, ...]  #: The offers that its trials may run on, most expensive first.
    concurrency: int
    speed: float | None = 1.0  #: Relative to the machine whose step times are known. None if it is not known.
    why_not: str | None = None  #: Why the job cannot run on this candidate. None if it can.
    #: The offers of the same machine type by market. Markets without a known price are missing.
    markets: Mapping[MarketPolicy, tuple[Offer, ...]] = field(default_factory=dict)

    def setting(self, base: Setting, life: SpotLife) -> Setting:
        spec = replace(base.spec, resources=replace(base.spec.resources, market=self.market))
        return replace(
            base,
            spec=spec,
            offers=self.offers,
            concurrency=self.concurrency,
            speed=self.speed or 1.0,
            spot=None if self.market == "on_demand" else life,
        )

    def price(self, wanted: Resources) -> Price:
        """Return the price of a trial with the resources `wanted` on the candidate's most expensive offer."""
        return max(offer.rate(wanted).price for offer in self.offers)


@dataclass(frozen=True)
class Compared:
    """A candidate, its simulated runs, and the figures that the plan shows: the means of those runs."""

    candidate: MachineCandidate
    shown: Alternative
    runs: Sequence[SimulatedOutcome] = ()  #: Empty if the candidate was not simulated.


def compared(
    base: Setting,
    candidates: Sequence[MachineCandidate],
    life: SpotLife,
    limit_ns: int | None,
    simulate: Simulate,
) -> list[Compared]:
    """Simulate the job on the suitable candidates, at most the first `MOST` of them. Return all candidates in the given order.

    A candidate is suitable if the job can run on it and its speed is known. The runs of a candidate depend only on the candidate and the
    job. Their cost is therefore the same with any deadline, and whether or not the candidate is chosen.

    Args:
        base: The job to simulate. Its machine is replaced by that of each candidate.
        candidates: The candidates to compare.
        life: The availability of spot machines, used for candidates on a spot market.
        limit_ns: The time within which the job should finish. None means no limit.
        simulate: Runs one simulation.
    """
    wanted, compared_candidates = base.spec.resources, list[Compared]()
    for candidate in candidates:
        why_not, offers = candidate.why_not, candidate.offers
        if why_not is None and candidate.speed is None:
            why_not = "the speed of this machine is not known: give planning.speeds"
        if (
            why_not is None
            and sum(bool(earlier_candidate.runs) for earlier_candidate in compared_candidates) == MOST
        ):
            why_not = f"only the first {MOST} candidates are simulated: name fewer"
        shown = Alternative(
            candidate.instance_type,
            candidate.market,
            candidate.price(wanted) if offers else None,
            candidate.concurrency,
            offers[0].source if offers else "",
            candidate.speed,
            why_not=why_not,
        )
        runs = candidate.setting(base, life).runs(simulate, RUNS) if why_not is None else []
        compared_candidates.append(
            Compared(candidate, _measured(shown, runs, limit_ns) if runs else shown, runs)
        )
    return compared_candidates


def _measured(shown: Alternative, runs: Sequence[SimulatedOutcome], limit_ns: int | None) -> Alternative:
    """Return a copy of the alternative `shown` with the mean figures of its simulated runs."""
    usd, steps = sum(run.cost.usd.micro_usd for run in runs), sum(run.steps for run in runs)
    return replace(
        shown,
        usd=Money(usd // len(runs)),
        finish_seconds=mean([run.elapsed_ns for run in runs]) / NS,
        trials=mean([run.trials for run in runs]),
        usd_per_1000_steps=Money(1000 * usd // steps) if steps else None,
        in_time=in_time(runs, limit_ns),
    )


def in_time(runs: Sequence[SimulatedOutcome], limit_ns: int | None) -> Chance | None:
    """Return how many runs ended before the limit. Return None without a limit.

    A run that was stopped by its wall-clock budget is not in time.
    """
    if limit_ns is None:
        return None
    return Chance(sum(run.reason != "wall_clock" and run.elapsed_ns <= limit_ns for run in runs), len(runs))


def chosen_of(compared: Sequence[Compared]) -> Compared:
    """Choose a candidate for the plan.

    Among the candidates that are in time in a share of at least SURE_ENOUGH of their runs, return the one with the lowest cost per step.
    Without such a candidate, return the one that is most often in time. If several are equally often in time, return the fastest of
    them. If no candidate was simulated, return the first one. Without a deadline, all runs count as in time.
    """
    able = [candidate for candidate in compared if candidate.shown.why_not is None]
    if not able:
        return compared[0]
    sure = [candidate for candidate in able if _chance(candidate.shown) >= SURE_ENOUGH]
    if sure:
        return min(
            sure, key=lambda candidate: (_per_step(candidate.shown), candidate.shown.finish_seconds or 0)
        )
    return min(able, key=lambda candidate: (-_chance(candidate.shown), candidate.shown.finish_seconds or 0))


def _per_step(shown: Alternative) -> float:
    usd = shown.usd_per_1000_steps
    return math.inf if usd is None else usd.micro_usd


def _chance(shown: Alternative) -> float:
    return shown.in_time.chance if shown.in_time is not None else 1.0


def why_chosen(chosen: Alternative, shown: Sequence[Alternative]) -> str:
    """Return a text that says why `chosen` was preferred to the other alternatives, which are `shown`."""
    others = [alternative for alternative in shown if alternative.why_not is None]
    if not others:
        return "the only candidate"
    if _chance(chosen) < SURE_ENOUGH:
        return "no candidate is likely enough to finish in time; this one has the best chance"
    per = chosen.usd_per_1000_steps
    cheapest = f"{per} for 1000 steps" if per is not None else "unknown"
    if any(
        _chance(alternative) < SURE_ENOUGH and _per_step(alternative) < _per_step(chosen)
        for alternative in others
    ):
        return f"the cheapest candidate that finishes in time: {cheapest}"
    return f"the cheapest candidate: {cheapest}"


def comparisons(
    setting: Setting,
    runs: Sequence[SimulatedOutcome],
    chosen: MachineCandidate,
    life: SpotLife,
    simulate: Simulate,
) -> tuple[SimulatedComparison, ...]:
    """Simulate the job with grid search, with random search, and on every other market.

    Grid search and random search get as many trials as the plan's own runs (`runs`) have on average.
    """
    trials = max(1, mean([run.trials for run in runs]))
    simulated_comparisons = [
        _searched(name, setting, trials, simulate) for name in ("grid_search", "random_search")
    ]
    for market, offers in sorted(chosen.markets.items()):
        if market != chosen.market:
            other = replace(chosen, market=market, offers=offers).setting(setting, life)
            runs_there = other.runs(simulate, FEW_RUNS)
            lost = mean([run.preemptions for run in runs_there])
            note = f"the same job, {lost} preemptions" if lost else "the same job"
            simulated_comparisons.append(_comparison(market, runs_there, note))
    return tuple(simulated_comparisons)


def _searched(name: ComparisonName, setting: Setting, trials: int, simulate: Simulate) -> SimulatedComparison:
    """Simulate a grid search or a random search with `trials` trials.

    If the grid has fewer points than `trials`, the grid search has one trial per point. Each trial is trained to its last step. The cost
    is not limited.
    """
    sampler: SamplerName = "grid" if name == "grid_search" else "random"
    points = _grid_points(setting.spec.space)
    count = min(trials, points) if sampler == "grid" else trials
    spec = replace(
        setting.spec,
        algorithm=Algorithm("none", sampler, setting.spec.algorithm.seed),
        budget=Budget(trials=count),
        objective=replace(setting.spec.objective, target=None),
        plateau=None,
        worth_micro_usd=None,
        confirm=None,
    )
    runs = replace(setting, spec=spec).runs(simulate, FEW_RUNS)
    note = f"{count} trials, each to step {setting.spec.fidelity.max}"
    if sampler == "grid":
        whole = mean([run.cost.usd.micro_usd for run in runs]) * points // count
        note += f"; all {points} points of the grid, with {GRID_POINTS} values of each number without a step, would cost {Money(whole)}"
    return _comparison(name, runs, note)


def _grid_points(space: Space) -> int:
    """Return the number of points of the grid.

    If it may exceed GRID_LISTED, the result is an upper bound, which also counts combinations that differ only in inactive parameters.
    """
    most = math.prod(len(parameter.grid(GRID_POINTS)) for parameter in space.parameters.values())
    return most if most > GRID_LISTED else sum(1 for _ in space.grid(GRID_POINTS))


def _comparison(name: ComparisonName, runs: Sequence[SimulatedOutcome], note: str) -> SimulatedComparison:
    usd = [run.cost.usd.micro_usd for run in runs]
    return SimulatedComparison(
        name,
        usd=Money(mean(usd)),
        usd_low=Money(min(usd)),
        usd_high=Money(max(usd)),
        gpu_hours=mean([run.cost.gpu_ms for run in runs]) / MS_PER_HOUR,
        finish_seconds=mean([run.elapsed_ns for run in runs]) / NS,
        trials=mean([run.trials for run in runs]),
        steps=mean([run.steps for run in runs]),
        note=note,
    )
