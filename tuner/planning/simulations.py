"""A job simulated several times over: its size made small enough to answer soon, and what came of it made large again.

How far step times may be off is drawn evenly: each run has its own quantile of that. A job of more steps than are worth
simulating has fewer trials and workers, and less money, in proportion, and long trainings are told in fewer, longer steps. How
much is simulated depends on counts alone, never on how long it takes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import NormalDist

from tuner.domain.budget import Budget
from tuner.domain.fidelity import Fidelity
from tuner.domain.job import JobSpec, Plateau
from tuner.domain.money import Cost, Money
from tuner.domain.offer import Offer
from tuner.planning.evidence import DEFAULT_STEPS
from tuner.planning.paces import Paces
from tuner.planning.scenario import Outcome, RungUse, Scenario, Simulate, SpotLife
from tuner.tuning.rungs import ladder

STEPS_A_RUN = 100
TRIALS_AT_LEAST = 12
SLICES_AT_LEAST = 3
STEPS_OF_FULL = 12  # of a training, where nobody looks at it before its end
STEPS_WITH_RUNGS = 36
MIN_NS = 1_000_000_000
GOLDEN = 0.6180339887  # multiples of it, less the whole, are spread evenly, and are in no order


@dataclass(frozen=True)
class Setting:
    """What is simulated. `speed`: of the machine against that of the evidence."""

    spec: JobSpec
    offers: tuple[Offer, ...]
    concurrency: int
    paces: Paces
    slice_ns: int
    spot: SpotLife | None = None
    speed: float = 1.0
    seed: int = 0

    @property
    def fidelity(self) -> Fidelity:
        return self.spec.fidelity

    def runs(self, simulate: Simulate, count: int) -> list[Outcome]:
        return [self._run(simulate, factor, number) for number, factor in enumerate(self.factors(count))]

    def factors(self, count: int) -> list[float]:
        """How many times as long as expected the steps of each run take."""
        doubt = self.paces.evidence.doubt
        return [math.exp(doubt * NormalDist().inv_cdf((n + 0.5) / count)) for n in range(count)]

    def _run(self, simulate: Simulate, factor: float, number: int) -> Outcome:
        coarse, fidelity = coarsened(self.spec)
        factor = factor / self.speed
        size = self._size(factor, coarse, fidelity)
        concurrency = max(1, round(self.concurrency / size))
        longer = size * concurrency / self.concurrency
        spec = replace(
            self.spec,
            fidelity=fidelity,
            budget=_shrunk(self.spec, size, longer),
            plateau=_shorter(self.spec.plateau, size),
        )
        delays = self.paces.evidence.delays
        scenario = Scenario(
            spec,
            self.offers,
            concurrency,
            self.paces,
            factor,
            replace(delays, warming_ns=int(delays.warming_ns / longer)),
            self.slice_ns,
            coarse,
            None if self.spot is None else self.spot.of_market((0.5 + number * GOLDEN) % 1),
            self.seed * 1000 + number,
        )
        return grown(simulate(scenario), size, longer, ladder(self.spec).reduction_factor, spec.budget)

    def _size(self, factor: float, coarse: float, fidelity: Fidelity) -> Fraction:
        """By how much the job is larger than what is simulated, 1 at least. Trials count with the time around their steps; of what
        is simulated there is enough for some slices."""
        wanted, budget = self.spec.resources, self.spec.budget
        delays = self.paces.evidence.delays
        step_ns = max(1, round(self.paces.evidence.step_ns * factor * coarse))
        rate = min(
            (offer.rate(cpus=wanted.cpus, gpus=wanted.gpus) for offer in self.offers), key=lambda r: r.price
        )
        affordable = rate.affords_ns(budget.limit)
        if budget.wall_clock_ns is not None:
            affordable = min(affordable, budget.wall_clock_ns * self.concurrency)
        steps = steps_a_trial(replace(self.spec, fidelity=fidelity))
        trial_ns = steps * step_ns + delays.setup_ns + delays.save_ns
        trials = affordable / trial_ns
        if budget.trials is not None:
            trials = min(trials, budget.trials)
        small = max(STEPS_A_RUN / steps, TRIALS_AT_LEAST, SLICES_AT_LEAST * self.slice_ns / trial_ns)
        size = max(Fraction(1), Fraction(trials) / Fraction(small))
        if budget.trials is not None:  # so that a whole number of them comes to as many
            return Fraction(budget.trials, max(1, int(budget.trials / size)))
        return size.limit_denominator(1000)


def steps_a_trial(spec: JobSpec) -> float:
    """Of a trial on average, where of each rung the best 1/η go on."""
    last = spec.fidelity.max or 1
    if spec.algorithm.scheduler == "none":
        return last
    climbed = ladder(spec)
    stops = [*climbed.rungs(), last]
    parts = zip(stops, [0, *stops], strict=False)
    return math.fsum((stop - below) / climbed.reduction_factor**k for k, (stop, below) in enumerate(parts))


def coarsened(spec: JobSpec) -> tuple[float, Fidelity]:
    """How many steps are one of the simulation, and the fidelity in those."""
    fidelity = spec.fidelity
    last = fidelity.max or 1
    if spec.algorithm.scheduler == "none":
        most = STEPS_OF_FULL
    else:
        most = max(STEPS_WITH_RUNGS, -(-last // fidelity.min) if spec.algorithm.scheduler != "auto" else 0)
    if last <= most:
        return 1, fidelity
    coarse = last / most
    return coarse, replace(fidelity, min=max(1, round(fidelity.min / coarse)), max=most)


def stops(spec: JobSpec) -> list[int]:
    """The steps at which trials are compared, and the last."""
    rungs = () if spec.algorithm.scheduler == "none" else ladder(spec).rungs()
    return [*rungs, spec.fidelity.max or 1]


def stops_of(spec: JobSpec) -> list[int]:
    """The steps of the job that the stops of its simulation stand for."""
    coarse, fidelity = coarsened(spec)
    simulated, real = stops(replace(spec, fidelity=fidelity)), stops(spec)
    return real if len(real) == len(simulated) else [round(stop * coarse) for stop in simulated]


def for_planning(spec: JobSpec, *, steps: int | None, knows_curves: bool) -> JobSpec:
    """As it is simulated: at any hour of the day, with a last step, and without ends that depend on scores of which nothing is known."""
    fidelity = spec.fidelity
    if fidelity.max is None:
        last = max(1, steps or DEFAULT_STEPS)
        fidelity = replace(fidelity, min=min(fidelity.min, last), max=last)
    objective = spec.objective if knows_curves else replace(spec.objective, target=None)
    size = spec.space.size()
    budget = spec.budget
    if size is not None:
        budget = replace(budget, trials=min(size, budget.trials or size))
    return replace(
        spec,
        fidelity=fidelity,
        objective=replace(objective, mode="max", target=_as_score(objective.target, spec)),
        plateau=spec.plateau if knows_curves else None,
        budget=replace(budget, on_exhausted="finish"),
        window=None,
    )


def _as_score(target: float | None, spec: JobSpec) -> float | None:
    return None if target is None else spec.objective.score(target)


def _shrunk(spec: JobSpec, size: Fraction, longer: Fraction) -> Budget:
    budget = spec.budget
    wall_ns = budget.wall_clock_ns
    return replace(
        budget,
        usd=None if budget.usd is None else Money(max(1, int(budget.usd.micro_usd / size))),
        gpu_ms=None if budget.gpu_ms is None else max(1, int(budget.gpu_ms / size)),
        wall_clock_ns=None if wall_ns is None else max(MIN_NS, int(wall_ns / longer)),
        trials=None if budget.trials is None else max(1, round(budget.trials / size)),
    )


def _shorter(plateau: Plateau | None, size: Fraction) -> Plateau | None:
    """Patience is a part of the money, too."""
    if plateau is None:
        return None
    return replace(plateau, patience_micro_usd=max(1, int(plateau.patience_micro_usd / size)))


def grown(
    outcome: Outcome, size: Fraction, longer: Fraction, reduction_factor: int, budget: Budget
) -> Outcome:
    """What the whole job would come to. Where the best trial alone came to a rung, it is one of as many as that rung has of a whole
    job's, and not of as many as the job is larger; the money of a budget that ran out is spent all the same, but for what the small
    `budget` left, which is as much of a larger one."""
    if size == 1 == longer:
        return outcome
    trials = round(outcome.trials * size)
    factors = [
        size if rung.trials > 1 else min(size, max(Fraction(1), Fraction(trials, reduction_factor**i)))
        for i, rung in enumerate(outcome.rungs)
    ]
    rungs = _grown(outcome.rungs, factors)
    if outcome.reason not in ("trials", "target", "plateau"):
        spent = total_of(rungs).usd.micro_usd
        whole = (outcome.cost.usd.micro_usd * (1 + _left(outcome, budget) * (1 - 1 / size))) * size
        rungs = _grown(rungs, [whole / max(1, spent)] * len(rungs))
    return replace(
        outcome,
        cost=total_of(rungs),
        elapsed_ns=int(outcome.elapsed_ns * longer),
        trials=trials,
        rungs=rungs,
        preemptions=round(outcome.preemptions * size),
    )


def _left(outcome: Outcome, budget: Budget) -> Fraction:
    """Of the limit that ended it, in parts of what was used of it."""
    if outcome.reason == "budget_usd" and budget.usd is not None and outcome.cost.usd.micro_usd:
        return Fraction(budget.usd.micro_usd - outcome.cost.usd.micro_usd, outcome.cost.usd.micro_usd)
    if outcome.reason == "budget_gpu_hours" and budget.gpu_ms is not None and outcome.cost.gpu_ms:
        return Fraction(budget.gpu_ms - outcome.cost.gpu_ms, outcome.cost.gpu_ms)
    return Fraction(0)


def total_of(rungs: Sequence[RungUse]) -> Cost:
    usd = sum(rung.train.micro_usd + rung.overhead.micro_usd for rung in rungs)
    return Cost(Money(usd), sum(rung.gpu_ms for rung in rungs))


def _grown(rungs: Sequence[RungUse], factors: Sequence[Fraction]) -> tuple[RungUse, ...]:
    return tuple(
        RungUse(
            round(rung.trials * by),
            round(rung.steps * by),
            int(rung.train_ns * by),
            Money(int(rung.train.micro_usd * by)),
            Money(int(rung.overhead.micro_usd * by)),
            int(rung.gpu_ms * by),
        )
        for rung, by in zip(rungs, factors, strict=True)
    )


def mean(values: Sequence[int]) -> int:
    return sum(values) // len(values)
