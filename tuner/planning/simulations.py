"""Simulate a job repeatedly for a plan. The job is scaled down so that a plan is quick, and the outcome is scaled up again.

The amount of simulation depends only on counts, never on measured time, so that a plan is reproducible. A job with more
steps than are worth simulating is simulated with fewer trials and workers and less money, in proportion. Long trainings
are simulated in fewer, longer steps. The uncertainty of the step times is sampled evenly: each run uses another quantile
of their distribution.

`KnowingSampler` replaces the job's sampler. It fits no model, because a plan draws hundreds of trials per second and a
model would be too slow. After the first few trials, most proposals are the best of several random configurations, judged
by their simulated score at the last step and, if the job uses the model of `auto`, by a short step time. The scores and costs of
simulated trials therefore change during a job as those of real trials do. In place of that model, it also forecasts the final
scores of trials, with errors that change as often as the real model is fitted. The scheduler `auto` promotes by these forecasts.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random
from statistics import NormalDist

from tuner.domain.budget import Budget
from tuner.domain.job import JobSpec, StopReason
from tuner.domain.money import Cost, Money
from tuner.domain.objective import Fidelity
from tuner.domain.offer import Offer
from tuner.domain.space import Config, Space
from tuner.domain.time import HOUR_NS, NS
from tuner.planning.pace_evidence import DEFAULT_STEPS, Delays
from tuner.planning.paces import DrawnTraining, Paces
from tuner.tuning.rungs import ladder, rungs_of
from tuner.tuning.samplers.base import Forecast, number_rng
from tuner.tuning.samplers.model import REFIT_AT
from tuner.tuning.samplers.simple import Oblivious
from tuner.tuning.schedulers import reach_after

FIRST_RANDOM = 8  # trials with a random configuration, before the sampler counts as having learned
RANDOM_SHARE = 0.1  # share of the later trials whose configuration is random too
BEST_OF = 8  # random configurations from which the best is proposed
# The error of a forecast for a trial that is not complete, in standard deviations of the final scores. With this value, plans of small jobs
# with `auto` on recorded tables expect about as many trials and complete trials as these jobs had (benchmarks/README.md).
FORECAST_ERROR = 0.3


class KnowingSampler(Oblivious):
    """A sampler that proposes the best of several random configurations, judged by the scores that the simulation will give them.

    If `thrifty`, halving the step time counts as much as a score that is better by ln 2 ≈ 0.7 standard deviations. A thrifty sampler also
    makes forecasts, as the model of the sampler `auto` does: without them, the scheduler `auto` would promote by current scores, and so
    promote far fewer trials than it does in a real job.

    Args:
        last: The step at which scores are compared.
        size: The number of the job's trials divided by the number of simulated trials.
    """

    def __init__(
        self, space: Space, seed: int, training: DrawnTraining, *, last: int, thrifty: bool, size: float = 1
    ) -> None:
        self._space, self._seed, self._training = space, seed, training
        self._last, self._thrifty, self._size = last, thrifty, size
        self._finals = dict[int, float]()  # the final score of each suggested trial
        self._reached = dict[int, int]()  # the newest reported step of each trial that reached a rung
        self._errors = dict[int, float]()  # the errors of the present forecasts
        self._reports = self._fits = 0

    def suggest(self, number: int, step_s: float = math.inf) -> Config:
        rng = number_rng(self._seed, number)
        learned = number >= FIRST_RANDOM and rng.random() >= RANDOM_SHARE
        drawn = [self._space.sample(rng) for _ in range(BEST_OF if learned else 1)]
        config = max(drawn, key=self._worth) if learned else drawn[0]
        self._finals[number] = self._training.normalized_score(config, self._last)
        return config

    def tell(
        self,
        number: int,
        step: int,
        score: float,
        trained_ns: int,
        *,
        at_rung: bool,
        violation: float = 0.0,
    ) -> None:
        if not at_rung:
            return
        self._reached[number] = step
        self._reports += 1
        fits = math.floor(math.log(self._reports, REFIT_AT))
        if fits > self._fits:
            self._fits = fits
            self._errors.clear()

    def forecast(self) -> Mapping[int, Forecast] | None:
        """Return the final scores of the trials that reached a rung, with an error for those that are not complete.

        A trial keeps its error until the real model would be fitted again, also if it reaches the next rung. The scheduler compares the
        distance to the best forecast with the reach, which grows with the trained steps. A job that is scaled down trains fewer
        steps, so the standard deviations are increased by as much as its reach is too small.
        """
        if not self._thrifty or len(self._reached) < FIRST_RANDOM:
            return None
        steps = sum(self._reached.values())
        wider = reach_after(self._size * steps, self._last) / reach_after(steps, self._last)
        return {
            number: (self._finals[number] + self._error(number), FORECAST_ERROR * wider)
            for number in self._reached
        }

    def _error(self, number: int) -> float:
        if self._reached[number] >= self._last:
            return 0.0
        if number not in self._errors:
            rng = Random(f"{self._seed}/{number}/{self._fits}")
            self._errors[number] = FORECAST_ERROR * rng.gauss(0, 1)
        return self._errors[number]

    def _worth(self, config: Config) -> float:
        worth = self._training.normalized_score(config, self._last)
        return worth - math.log(self._training.step_ns(config, 1)) if self._thrifty else worth


# Spot markets as (share of the time in which a machine was available, mean hours until its preemption). They are the deciles, by share, of
# the 30 AWS markets (zone and type) recorded for "Can't Be Late" (Wu et al., NSDI 2024) from October 2022 to May 2023.
RECORDED_MARKETS = (
    (0.17, 0.7),
    (0.33, 1.6),
    (0.42, 1.8),
    (0.47, 1.5),
    (0.59, 2.0),
    (0.68, 4.3),
    (0.73, 2.3),
    (0.79, 3.8),
    (0.88, 6.1),
    (0.91, 10.5),
)


@dataclass(frozen=True, slots=True)
class SpotLife:
    """The availability of spot machines in a simulation. Their lifetimes are exponentially distributed."""

    mean_ns: int | None  #: The mean lifetime. None means that they are never preempted.
    wait_ns: int = 120 * NS  #: The time from the loss of a machine until another one is available.
    notice_ns: int | None = 30 * NS  #: The time from the notice to the preemption.
    #: How long a trial with fallback waits for a spot machine before it uses an on-demand one.
    spot_wait_ns: int = 60 * NS
    share: float = 1.0  #: The probability that a trial's machines are available when the job starts.
    nodes: int = 1  #: The machines of a trial. The loss of any of them ends its attempt, so `mean_ns` is the mean until the first loss.

    def of_market(self, place: float) -> "SpotLife":
        """Return the availability with the lifetime, wait and share of one of the RECORDED_MARKETS.

        `place` selects the market: 0 is the one with the scarcest machines, and values just below 1 are the one with the most available
        machines. If machines are never preempted, return the availability unchanged.
        """
        if self.mean_ns is None:
            return self
        share, hours = RECORDED_MARKETS[int(place * len(RECORDED_MARKETS))]
        mean_ns = round(hours * 3600) * NS
        wait_ns = round(mean_ns * (1 - share) / share)
        return replace(self, mean_ns=mean_ns // self.nodes, wait_ns=wait_ns, share=share**self.nodes)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One simulation of a job: the scaled-down job and everything that its outcome depends on."""

    spec: JobSpec  #: The job. Its fidelity counts simulated steps.
    offers: tuple[Offer, ...]  #: The offers that its trials may run on.
    concurrency: int
    paces: Paces
    factor: float  #: The factor by which all step times of `paces` are multiplied.
    delays: Delays
    slice_ns: int  #: The length of a lease.
    coarse: float = 1  #: The number of the job's steps in a simulated step.
    spot: SpotLife | None = None
    seed: int = 0
    size: float = 1  #: The number of the job's trials divided by the number of simulated trials.


@dataclass(frozen=True, slots=True)
class RungUse:
    """The trials that reached a rung, and the time and money spent between the previous rung and this one."""

    trials: int
    steps: int
    train_ns: int
    price_ns: int  #: Sum of price (micro-dollars per hour) times nanoseconds, over `train_ns`.
    overhead: (
        Money  #: All costs but those of training: setup, restore, checkpoints, idle time and lost steps.
    )
    gpu_ms: int

    @property
    def train(self) -> Money:
        """The cost of the steps that were not lost."""
        return Money(self.price_ns // HOUR_NS)


@dataclass(frozen=True, slots=True)
class SimulatedOutcome:
    """The result of a simulation."""

    cost: Cost
    elapsed_ns: int
    reason: StopReason | None
    trials: int
    rungs: tuple[RungUse, ...]  #: One for each rung, and one for the last step.
    best: float | None  #: The best score of the simulated trials. None if no trial has one.
    preemptions: int
    size: float = 1  #: The number of the job's trials divided by the number of simulated trials.

    @property
    def steps(self) -> int:
        return sum(rung.steps for rung in self.rungs)


Simulate = Callable[[Scenario], SimulatedOutcome]
# A simulation is scaled down to about STEPS_A_RUN steps, but not below TRIALS_AT_LEAST trainings or SLICES_AT_LEAST leases.
STEPS_A_RUN = 100
TRIALS_AT_LEAST = 12
SLICES_AT_LEAST = 3
STEPS_OF_FULL = 12  # simulated steps of a training without rungs
STEPS_WITH_RUNGS = 36  # simulated steps of a training with rungs
MIN_NS = 1_000_000_000  # shortest wall-clock limit of a simulation
GOLDEN = 0.6180339887  # the fractional parts of its multiples are spread evenly between 0 and 1, in irregular order


@dataclass(frozen=True)
class Setting:
    """A job on certain machines, to be simulated."""

    spec: JobSpec
    offers: tuple[Offer, ...]
    concurrency: int  #: How many trials may run at once.
    paces: Paces
    slice_ns: int  #: The length of a lease.
    spot: SpotLife | None = None
    speed: float = 1.0  #: The speed relative to the machine whose step times are known.
    seed: int = 0

    @property
    def workers(self) -> int:
        """How many workers run the job's trials.

        The simulation has one trial per worker, also if the job's trials share workers. A trial is assumed to need as much time of its
        worker as it would need alone. Trials that share a worker are then slower in proportion to their number, so the dollars and the
        duration of the job are the same as with one trial per worker.
        """
        return self.spec.resources.workers(self.concurrency)

    def runs(self, simulate: Simulate, count: int) -> list[SimulatedOutcome]:
        return [self._run(simulate, factor, number) for number, factor in enumerate(self.factors(count))]

    def factors(self, count: int) -> list[float]:
        """Return one factor for each of `count` runs: the duration of a step in this run, divided by the expected duration."""
        doubt = self.paces.evidence.doubt
        return [math.exp(doubt * NormalDist().inv_cdf((n + 0.5) / count)) for n in range(count)]

    def _run(self, simulate: Simulate, factor: float, number: int) -> SimulatedOutcome:
        coarse, fidelity = coarsened(self.spec)
        factor = factor / self.speed
        size = self._size(factor, coarse, fidelity)
        # The job is to be reduced by the factor `size`. First, the number of workers is reduced, which must stay whole. The rest of the reduction
        # shortens the simulation: the real job takes `longer` times as long.
        workers = max(1, round(self.workers / size))
        longer = size * workers / self.workers
        budget, plateau = self.spec.budget, self.spec.plateau
        wall_ns = budget.wall_clock_ns
        shrunk = replace(
            budget,
            usd=None if budget.usd is None else Money(max(1, int(budget.usd.micro_usd / size))),
            gpu_ms=None if budget.gpu_ms is None else max(1, int(budget.gpu_ms / size)),
            wall_clock_ns=None if wall_ns is None else max(MIN_NS, int(wall_ns / longer)),
            trials=None if budget.trials is None else max(1, round(budget.trials / size)),
        )
        if plateau is not None:  # its patience is an amount of money, so it shrinks with the budget
            plateau = replace(plateau, patience_micro_usd=max(1, int(plateau.patience_micro_usd / size)))
        alone = replace(self.spec.resources, pack=1)
        spec = replace(self.spec, fidelity=fidelity, budget=shrunk, plateau=plateau, resources=alone)
        # A worker warms up once. The simulation is shorter than the job, so the warm-up is shortened in proportion. Otherwise it would take too
        # large a share of the time.
        delays = self.paces.evidence.delays
        scenario = Scenario(
            spec,
            self.offers,
            workers,
            self.paces,
            factor,
            replace(delays, warming_ns=int(delays.warming_ns / longer)),
            self.slice_ns,
            coarse,
            None if self.spot is None else self.spot.of_market((0.5 + number * GOLDEN) % 1),
            self.seed * 1000 + number,
            float(size),
        )
        return grown(simulate(scenario), size, longer, ladder(self.spec).reduction_factor, shrunk)

    def _size(self, factor: float, coarse: float, fidelity: Fidelity) -> Fraction:
        """Return the number of the job's trials divided by the number of trials to simulate. It is at least 1.

        The number of the job's trials is what its budget can pay for, including one setup and one save per trial. The number of trials to
        simulate is large enough for TRIALS_AT_LEAST full trainings and for SLICES_AT_LEAST leases.

        Args:
            factor: The factor by which steps take longer than expected on this machine.
            coarse: The number of the job's steps in a simulated step.
            fidelity: The job's fidelity in simulated steps.
        """
        wanted, budget = self.spec.resources, self.spec.budget
        delays = self.paces.evidence.delays
        step_ns = max(1, round(self.paces.evidence.step_ns * factor * coarse))
        rate = min((offer.rate(wanted) for offer in self.offers), key=lambda r: r.price)
        affordable = rate.affords_ns(budget.limit)
        if budget.wall_clock_ns is not None:
            affordable = min(affordable, budget.wall_clock_ns * self.workers)
        steps = steps_a_trial(replace(self.spec, fidelity=fidelity))
        trial_ns = steps * step_ns + delays.setup_ns + delays.idle_ns + delays.save_ns
        trials = affordable / trial_ns
        if budget.trials is not None:
            trials = min(trials, budget.trials)
        small = max(STEPS_A_RUN / steps, TRIALS_AT_LEAST, SLICES_AT_LEAST * self.slice_ns / trial_ns)
        size = max(Fraction(1), Fraction(trials) / Fraction(small))
        if budget.trials is not None:
            # The number of simulated trials must be whole. Multiplied by the result, it must be exactly the budget's number of trials.
            return Fraction(budget.trials, max(1, int(budget.trials / size)))
        return size.limit_denominator(1000)


def steps_a_trial(spec: JobSpec) -> float:
    """Return the mean number of steps of a trial, assuming that the best 1/η of the trials continue after each rung."""
    ends, factor = compared_steps(spec), ladder(spec).reduction_factor
    parts = zip(ends, [0, *ends], strict=False)
    return math.fsum((stop - below) / factor**k for k, (stop, below) in enumerate(parts))


def coarsened(spec: JobSpec) -> tuple[float, Fidelity]:
    """Return the number of the job's steps in a simulated step, and the job's fidelity in simulated steps."""
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


def compared_steps(spec: JobSpec) -> list[int]:
    """Return the steps at which trials are compared, and the last step."""
    return [*rungs_of(spec), spec.fidelity.max or 1]


def real_steps_of(spec: JobSpec) -> list[int]:
    """Return the steps of the job that correspond to the rungs and to the last step of its simulation."""
    coarse, fidelity = coarsened(spec)
    simulated, real = compared_steps(replace(spec, fidelity=fidelity)), compared_steps(spec)
    return real if len(real) == len(simulated) else [round(step * coarse) for step in simulated]


def for_planning(spec: JobSpec, *, steps: int | None, knows_curves: bool) -> JobSpec:
    """Return a simplified copy of a job for the simulation.

    The copy differs from the job as follows:

    - It always has a last step, and it always maximizes a score.
    - It has at most as many trials as the search space has configurations whose result the user has not given.
    - It has no target and no plateau if no learning curves are known, because scores would not be meaningful.
    - It has no `stop.worth`, no `confirm`, no constraints, no second objective, no limits of single trials and no time window.
    - It does not begin with configurations of the user. Given results remain, so that samplers do not suggest them.
    - It finishes when its budget is exhausted.

    Args:
        spec: The job.
        steps: The last step if the job has none. None means DEFAULT_STEPS.
        knows_curves: Whether learning curves of earlier trials are known.
    """
    fidelity = spec.fidelity
    if fidelity.max is None:
        last = max(1, steps or DEFAULT_STEPS)
        fidelity = replace(fidelity, min=min(fidelity.min, last), max=last)
    target = spec.objective.target if knows_curves else None
    score = None if target is None else spec.objective.score(target)
    known = tuple(point for point in spec.start if point.metric is not None)
    size = spec.space.size()
    budget = spec.budget
    if size is not None:
        untried = max(1, size - len(known))
        budget = replace(budget, trials=min(untried, budget.trials or untried))
    return replace(
        spec,
        fidelity=fidelity,
        objective=replace(spec.objective, mode="max", target=score),
        plateau=spec.plateau if knows_curves else None,
        worth_micro_usd=None,
        confirm=None,
        budget=replace(budget, on_exhausted="finish"),
        start=known,
        constraints=(),
        second=None,
        trial_limits=None,
        window=None,
    )


def grown(
    outcome: SimulatedOutcome, size: Fraction, longer: Fraction, reduction_factor: int, budget: Budget
) -> SimulatedOutcome:
    """Scale the outcome of a simulation up to the whole job.

    1. Multiply the trials, times and costs of each rung by `size`. A rung that at most one simulated trial reached is multiplied by at
       most the number of trials that the whole job is expected to bring to this rung.
    2. Rescale all rungs and the number of trials so that the total cost is `size` times the cost of the simulated job. If the machines cost
       nothing, GPU time or else training time takes the place of the cost. Skip this if the simulated job ended because of its number of
       trials, its target or its plateau.
    3. If a limit in dollars or GPU-hours ended the simulated job, correct the total: the whole job leaves the same amount of its budget
       unspent as the simulated job did, not `size` times as much.

    The duration is multiplied by `longer`. The number of trials stays within the budget.

    Args:
        outcome: The outcome of the simulation.
        size: The number of the job's trials divided by the number of simulated trials.
        longer: The duration of the job divided by the duration of the simulation.
        reduction_factor: The job's η.
        budget: The budget of the simulation.
    """
    if size == 1 == longer:
        return outcome
    trials = round(outcome.trials * size)
    factors = [
        size if rung.trials > 1 else min(size, max(Fraction(1), Fraction(trials, reduction_factor**i)))
        for i, rung in enumerate(outcome.rungs)
    ]
    rungs = _grown(outcome.rungs, factors)
    if outcome.reason not in ("trials", "target", "plateau"):
        # `left` is the unspent amount divided by the spent amount.
        left = Fraction(0)
        paid, used_ms = outcome.cost.usd.micro_usd, outcome.cost.gpu_ms
        if outcome.reason == "budget_usd" and budget.usd is not None and paid:
            left = Fraction(budget.usd.micro_usd - paid, paid)
        elif outcome.reason == "budget_gpu_hours" and budget.gpu_ms is not None and used_ms:
            left = Fraction(budget.gpu_ms - used_ms, used_ms)
        uses = zip(_use(rungs, total_of(rungs)), _use(outcome.rungs, outcome.cost), strict=True)
        spent, simulated = next((pair for pair in uses if all(pair)), (1, 0))
        by = simulated * (1 + left * (1 - 1 / size)) * size / spent
        rungs, trials = _grown(rungs, [by] * len(rungs)), round(trials * by)
    if budget.trials is not None:
        trials = min(trials, round(budget.trials * size))
    rungs = tuple(replace(rung, trials=min(rung.trials, trials)) for rung in rungs)
    return replace(
        outcome,
        cost=total_of(rungs),
        elapsed_ns=int(outcome.elapsed_ns * longer),
        trials=trials,
        rungs=rungs,
        preemptions=round(outcome.preemptions * size),
        size=float(size),
    )


def _use(rungs: Sequence[RungUse], cost: Cost) -> tuple[int, int, int]:
    """Return what rungs with this cost used: micro-dollars, GPU-milliseconds and nanoseconds of training."""
    return cost.usd.micro_usd, cost.gpu_ms, sum(rung.train_ns for rung in rungs)


def total_of(rungs: Sequence[RungUse]) -> Cost:
    usd = sum(rung.train.micro_usd + rung.overhead.micro_usd for rung in rungs)
    return Cost(Money(usd), sum(rung.gpu_ms for rung in rungs))


def _grown(rungs: Sequence[RungUse], factors: Sequence[Fraction]) -> tuple[RungUse, ...]:
    return tuple(
        RungUse(
            round(rung.trials * by),
            round(rung.steps * by),
            int(rung.train_ns * by),
            int(rung.price_ns * by),
            Money(int(rung.overhead.micro_usd * by)),
            int(rung.gpu_ms * by),
        )
        for rung, by in zip(rungs, factors, strict=True)
    )


def mean(values: Sequence[int]) -> int:
    """Return the mean, rounded to the nearest integer. Rounded down, the number of trials would be too low by a half on average."""
    return (2 * sum(values) + len(values)) // (2 * len(values))
