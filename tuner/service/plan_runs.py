"""Simulate a scenario of a plan with the code that runs a real job."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from random import Random

from tuner.domain.cost import total
from tuner.domain.job import Resources
from tuner.domain.money import Money
from tuner.domain.offer import Offer, market_selector
from tuner.domain.time import HOUR_NS, NS
from tuner.driver.ports import LoopConfig
from tuner.planning.alternatives import GRID_LISTED
from tuner.planning.pace_evidence import Delays
from tuner.planning.paces import DrawnTraining
from tuner.planning.simulations import (
    KnowingSampler,
    RungUse,
    Scenario,
    SimulatedOutcome,
    SpotLife,
    compared_steps,
)
from tuner.simulator.fleet import Markets
from tuner.simulator.traces import UpTimes
from tuner.simulator.worker import Overheads
from tuner.simulator.world import ALWAYS_UP, SimulatedRun, SpotMachines, pace_of
from tuner.tuning.samplers import Sampler, known_results, uses_model
from tuner.tuning.samplers.simple import GridSampler, RandomSampler

TURNS_MAX = 2_000_000  # a simulation that takes more events has hung
# Samplers that learn from results. In a simulation, `KnowingSampler` takes their place.
LEARNING = ("auto", "tpe", "gp", "cmaes")
SPOT_HEARTBEAT_NS = 60 * NS
# While a trial waits for a spot machine, the simulation checks this many times whether the trial should move to the other market. With a
# check every second, planning a job of a million steps took 36 s instead of 6 s.
LOOKS = 6


def simulate(scenario: Scenario) -> SimulatedOutcome:
    """Simulate a scenario. The same scenario always has the same outcome."""
    run = _run(scenario)
    run.run(turns_max=TURNS_MAX)
    return _outcome(run, scenario)


def _run(scenario: Scenario) -> SimulatedRun:
    wanted = scenario.spec.resources
    rates = [offer.rate(wanted) for offer in scenario.offers]
    most_expensive = max(rates, key=lambda rate: rate.price)
    step_ns = round(scenario.paces.evidence.step_ns * scenario.factor * scenario.coarse)
    training = DrawnTraining(
        scenario.paces, seed=scenario.seed, factor=scenario.factor, coarse=scenario.coarse
    )
    life = scenario.spot
    pace = pace_of(step_ns)
    heartbeat_ns = pace.heartbeat_ns
    machines = ALWAYS_UP
    if life is not None:
        heartbeat_ns = min(heartbeat_ns, max(SPOT_HEARTBEAT_NS, step_ns))
        machines = SpotMachines(
            markets=_markets(scenario, life),
            up_times=None if life.mean_ns is None else _up_times(scenario, life, life.mean_ns),
            notice_ns=life.notice_ns,
            look_ns=max(NS, life.spot_wait_ns // LOOKS),
        )
    return SimulatedRun(
        scenario.spec,
        LoopConfig(
            "job_planned", most_expensive, scenario.concurrency, max(scenario.slice_ns, pace.slice_ns)
        ),
        training,
        overheads=_overheads(scenario.delays, spot=life is not None),
        seed=scenario.seed,
        sampler=lambda: _sampler(scenario, training),
        heartbeat_ns=heartbeat_ns,
        machines=machines,
    )


def _sampler(scenario: Scenario, training: DrawnTraining) -> Sampler:
    """Return the sampler of the simulation.

    Model-based samplers are too slow for a plan, so a cheap substitute imitates their learning. The substitute needs the learning curves
    of earlier trials. If there are none, configurations are drawn at random.
    """
    spec, seed = scenario.spec, scenario.seed
    name = spec.algorithm.sampler
    if name == "grid":
        return GridSampler(spec.space, seed, known_results(spec), listed=GRID_LISTED)
    if name in LEARNING and scenario.paces.knows_curves:
        last, thrifty = spec.fidelity.max or 1, uses_model(spec)
        return KnowingSampler(spec.space, seed, training, last=last, thrifty=thrifty, size=scenario.size)
    return RandomSampler(spec.space, seed, known_results(spec))


def _overheads(delays: Delays, *, spot: bool) -> Overheads:
    """Return the overheads of simulated attempts. The driver of a simulation answers at once, so the idle time is part of the setup."""
    return Overheads(
        warming_ns=delays.warming_ns,
        setup_ns=delays.setup_ns + delays.idle_ns,
        resumed_setup_ns=0,
        restore_ns=delays.restore_ns + delays.idle_ns,
        save_ns=delays.save_ns,
        stall_ns=delays.save_ns // 10 if spot else 0,
        save_every_ns="auto" if spot else None,
    )


def _markets(scenario: Scenario, life: SpotLife) -> Markets:
    """Return the markets of the simulation.

    Each machine has the size of one trial, and the price that a trial pays on the real machines.
    """
    wanted = scenario.spec.resources
    trial_size = Resources(cpus=1, gpus=wanted.all_gpus)
    offers = []
    for offer in sorted(scenario.offers, key=lambda scenario_offer: scenario_offer.market != "spot"):
        price = offer.rate(wanted).price
        # as for a real job, see `offers_of`
        labels = (market_selector(offer.market), ("instance-type", offer.instance_type))
        offers.append(Offer(offer.instance_type, price, 1, wanted.all_gpus, offer.market, labels=labels))
    return Markets(tuple(offers), life.spot_wait_ns, trial_size)


def _up_times(scenario: Scenario, life: SpotLife, mean_ns: int) -> list[Iterator[UpTimes]]:
    """Return the periods in which each spot machine is up. Each spot offer has as many machines as trials may run at once."""
    machines = scenario.concurrency * sum(offer.market == "spot" for offer in scenario.offers)
    return [_lives(life, mean_ns, Random(f"{scenario.seed}/{n}")) for n in range(machines)]


def _lives(life: SpotLife, mean_ns: int, rng: Random) -> Iterator[UpTimes]:
    begin = 0 if rng.random() < life.share else round(rng.random() * life.wait_ns)
    while True:
        end = begin + max(NS, round(rng.expovariate(1 / mean_ns)))
        yield UpTimes(begin, end)
        begin = end + life.wait_ns


def _outcome(run: SimulatedRun, scenario: Scenario) -> SimulatedOutcome:
    tables, state = run.journal.tables, run.loop.state
    best = state.leader_score if state.leader is not None and scenario.paces.knows_curves else None
    return SimulatedOutcome(
        tables.account.posted,
        run.clock.elapsed_ns(),
        run.loop.end.reason if run.loop.end else None,
        len({trial for trial, _ in tables.attempts}),
        _rungs(run, scenario),
        best,
        run.preemptions,
    )


def _rungs(run: SimulatedRun, scenario: Scenario) -> tuple[RungUse, ...]:
    """Return the trials, steps, time and cost of each rung.

    A step belongs to the first rung at or above it. The overhead of an attempt, such as setup, belongs to the rung of the
    attempt's first step.

    A step may cost much less than a micro-dollar. The costs are therefore added up exactly, in micro-dollars per hour times nanoseconds,
    and then rounded so that the rungs add up to the cost of the job.
    """
    steps_of = compared_steps(scenario.spec)
    tables, uses = run.journal.tables, [_Use() for _ in steps_of]
    reached: Counter[str] = Counter()
    trained: Counter[tuple[str, int]] = Counter()
    on_gpus: Counter[tuple[str, int]] = Counter()
    gpus = scenario.spec.resources.all_gpus
    for (trial, step), row in tables.reports.items():
        ns = run.training.step_ns(run.loop.state.trial(trial).config, step)
        price = tables.attempts[trial, row.attempt].price
        exact = ns * price.micro_usd_per_hour
        use = uses[_index_of(steps_of, step)]
        use.steps, use.train_ns, use.price_ns = use.steps + 1, use.train_ns + ns, use.price_ns + exact
        gpu_ms = round(1000 * gpus) * ns // (1000 * 1_000_000)
        use.gpu_ms += gpu_ms
        trained[trial, row.attempt] += exact
        on_gpus[trial, row.attempt] += gpu_ms
        reached[trial] = max(step, reached[trial])
    for key, attempt in tables.attempts.items():
        paid = total(tables.bills.get(key, {}))
        use = uses[_index_of(steps_of, attempt.from_step + 1)]
        use.overhead += paid.usd.micro_usd * HOUR_NS - trained[key]
        use.gpu_ms += paid.gpu_ms - on_gpus[key]
    money = _rounded([use.price_ns + use.overhead for use in uses])
    return tuple(
        RungUse(
            sum(step >= stop for step in reached.values()),
            round(use.steps * scenario.coarse),
            use.train_ns,
            use.price_ns,
            Money(paid.micro_usd - use.price_ns // HOUR_NS),
            use.gpu_ms,
        )
        for stop, use, paid in zip(steps_of, uses, money, strict=True)
    )


def _rounded(exact: Sequence[int]) -> list[Money]:
    """Convert costs in micro-dollars per hour times nanoseconds into whole micro-dollars, so that their sum is rounded only once."""
    sums = [cost // HOUR_NS for cost in accumulate(exact, initial=0)]
    return [Money(after - before) for before, after in pairwise(sums)]


class _Use:
    def __init__(self) -> None:
        self.steps = self.train_ns = self.price_ns = self.overhead = self.gpu_ms = 0


def _index_of(steps: list[int], step: int) -> int:
    return next((i for i, end in enumerate(steps) if step <= end), len(steps) - 1)
