"""Choice of the machine and market: simulate each candidate, and choose the one with the cheapest step among those that finish in time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.domain.job import Market, Resources
from tuner.domain.money import Money, Price
from tuner.domain.offer import Offer
from tuner.planning.plan import Alternative, Chance
from tuner.planning.simulations import Outcome, Setting, Simulate, SpotLife, mean

MOST = 8  # at most this many candidates are simulated
RUNS = 10
FEW_RUNS = 3
SURE_ENOUGH = 0.8  # a candidate is in time if at least this share of its runs ends before the deadline


@dataclass(frozen=True)
class Candidate:
    """A machine and market that the job may run on."""

    instance_type: str
    market: Market
    offers: tuple[Offer, ...]  #: The offers that its trials may run on, most expensive first.
    concurrency: int
    speed: float | None = 1.0  #: Relative to the machine whose step times are known. None if it is not known.
    why_not: str | None = None  #: Why the job cannot run on it.
    #: The offers of the same machine by market, as far as prices are known.
    markets: Mapping[Market, tuple[Offer, ...]] = field(default_factory=dict)

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
        """Return the highest price of a trial with these resources on any of the offers."""
        return max(offer.rate(cpus=wanted.cpus, gpus=wanted.gpus).price for offer in self.offers)


@dataclass(frozen=True)
class Compared:
    """A candidate, its simulated runs, and the figures that the plan shows: the means of those runs."""

    candidate: Candidate
    shown: Alternative
    runs: Sequence[Outcome] = ()  #: Empty if the candidate was not simulated.


def compared(
    base: Setting,
    candidates: Sequence[Candidate],
    life: SpotLife,
    limit_ns: int | None,
    simulate: Simulate,
) -> list[Compared]:
    """Simulate the first MOST suitable candidates, and return all candidates in their order.

    A candidate is suitable if the job can run on it and its speed is known. Its runs depend only on the candidate and the job, so neither
    a deadline nor the choice among candidates changes its cost. The plan uses the runs of the chosen candidate and does not repeat them.
    """
    found, simulated = [], 0
    for candidate in candidates:
        shown = _unsimulated(candidate, base)
        runs: Sequence[Outcome] = ()
        if shown.why_not is None:
            simulated += 1
            if simulated > MOST:
                shown = replace(
                    shown, why_not=f"only the first {MOST} candidates are simulated: name fewer candidates"
                )
            else:
                runs = candidate.setting(base, life).runs(simulate, RUNS)
                shown = _measured(shown, runs, limit_ns)
        found.append(Compared(candidate, shown, runs))
    return found


def _unsimulated(candidate: Candidate, base: Setting) -> Alternative:
    wanted = base.spec.resources
    why_not = candidate.why_not
    if why_not is None and candidate.speed is None:
        why_not = "its speed is not known: give it in planning.speeds"
    return Alternative(
        candidate.instance_type,
        candidate.market,
        candidate.price(wanted) if candidate.offers else None,
        candidate.concurrency,
        candidate.offers[0].source if candidate.offers else "",
        candidate.speed,
        why_not=why_not,
    )


def _measured(shown: Alternative, runs: Sequence[Outcome], limit_ns: int | None) -> Alternative:
    """Return a copy of the alternative with the mean figures of its runs."""
    usd = sum(run.cost.usd.micro_usd for run in runs)
    steps = sum(run.steps for run in runs)
    return replace(
        shown,
        usd=Money(usd // len(runs)),
        finish_ns=mean([run.elapsed_ns for run in runs]),
        trials=mean([run.trials for run in runs]),
        usd_per_1000_steps=Money(1000 * usd // steps) if steps else None,
        in_time=in_time(runs, limit_ns),
    )


def in_time(runs: Sequence[Outcome], limit_ns: int | None) -> Chance | None:
    """Return how many runs ended before the limit. Return None without a limit.

    A run that its wall-clock budget stopped is not in time.
    """
    if limit_ns is None:
        return None
    return Chance(sum(run.reason != "wall_clock" and run.elapsed_ns <= limit_ns for run in runs), len(runs))


def chosen_of(compared: Sequence[Compared]) -> Compared:
    """Return the candidate with the cheapest steps among those that finish in time in at least SURE_ENOUGH of their runs.

    If there is none, return the one that is most often in time, and among equals the fastest. If none was simulated, return the first.
    """
    able = [one for one in compared if one.shown.why_not is None]
    if not able:
        return compared[0]
    sure = [one for one in able if _share(one.shown) >= SURE_ENOUGH]
    if sure:
        return min(sure, key=lambda one: (_per_step(one.shown), one.shown.finish_ns or 0))
    return min(able, key=lambda one: (-_share(one.shown), one.shown.finish_ns or 0))


def _per_step(shown: Alternative) -> int:
    found = shown.usd_per_1000_steps
    return 2**62 if found is None else found.micro_usd


def _share(shown: Alternative) -> float:
    return shown.in_time.share if shown.in_time is not None else 1.0


def why_chosen(chosen: Alternative, others: Sequence[Alternative]) -> str:
    """Return the reason for the choice in words."""
    if not others:
        return "the only candidate"
    per = chosen.usd_per_1000_steps
    cheapest = f"${per.usd:g} for 1000 steps" if per is not None else "unknown"
    late = [one for one in others if one.in_time is not None and one.in_time.share < SURE_ENOUGH]
    if chosen.in_time is not None and chosen.in_time.share < SURE_ENOUGH:
        return "no candidate is likely enough to finish in time; this one has the best chance"
    if any(_per_step(one) < _per_step(chosen) for one in late):
        return f"the cheapest candidate that finishes in time: {cheapest}"
    return f"the cheapest candidate: {cheapest}"
