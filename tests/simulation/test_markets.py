"""Test attempts of one job at different prices: each is held and billed at the price of its own machine, within
the budget.
"""

from collections.abc import Sequence
from random import Random

import pytest

from tests import seeds
from tests.simulation.test_simulated_jobs import QuickCurves, check_books, outcome, spec
from tests.simulation.watched import run_metered
from tuner.domain.money import Price, Rate
from tuner.domain.offer import Offer
from tuner.domain.time import Instant
from tuner.driver.placement import Place, TrialSnapshot
from tuner.driver.ports import LoopConfig
from tuner.simulator.invariants import watch
from tuner.simulator.world import Faults, SimulatedRun

SPOT = Offer("m", Price(30_000), 1, 0, "spot", labels=(("ray.io/market-type", "spot"),))
DEMAND = Offer("m", Price(100_000), 1, 0, labels=(("ray.io/market-type", "!spot"),))
PLACES = {offer: Place(offer, Rate(offer.price)) for offer in (SPOT, DEMAND)}


class Fickle:
    """A placement policy that chooses a market at random, and sometimes moves."""

    def __init__(self, seed: int, *, only: Offer | None = None) -> None:
        self._rng, self._only = Random(f"markets/{seed}"), only
        self.chosen: list[Offer] = []

    def choose(self, trial: TrialSnapshot) -> Sequence[Place]:
        first = self._only or self._rng.choice([SPOT, DEMAND])
        self.chosen.append(first)
        second = DEMAND if first == SPOT else SPOT
        return [PLACES[first]] if self._only else [PLACES[first], PLACES[second]]

    def relocation(self, trial: TrialSnapshot) -> Place | None:
        assert trial.at is not None
        other = DEMAND if trial.at.offer == SPOT else SPOT
        return PLACES[other] if self._rng.random() < (0.02 if trial.waited_ns is None else 0.3) else None

    def paid(self, place: Place, paid_ns: int, *, gained_ns: int, now: Instant) -> None:
        assert 0 <= gained_ns <= paid_ns


def run_of(seed: int, *, only: Offer | None = None, usd: str = "0.005", **faults: float) -> SimulatedRun:
    loop_config = LoopConfig("job_0", Rate(DEMAND.price), 3, 10 * 10**9)
    return SimulatedRun(
        spec(usd, seed=seed),
        loop_config,
        QuickCurves(),
        seed=seed,
        faults=Faults(**faults),
        placement=Fickle(seed, only=only),
    )


def restless(run: SimulatedRun) -> list[str]:
    """Ask every attempt that waits for a worker, at each turn, whether it would move. Return the trials that
    moved.
    """
    moved: list[str] = []
    before = run.on_turn

    def turn() -> None:
        for waiting in list(run.fleet._queue):
            if waiting in run.fleet._queue:
                run.fleet._queue.remove(waiting)  # otherwise it could be placed while it is asked
                if run.loop.relocate(waiting.trial, waiting.attempt):
                    moved.append(waiting.trial)
                else:
                    run.fleet._queue.append(waiting)
        before()

    run.on_turn = turn
    return moved


@pytest.mark.parametrize("seed", seeds.first(3, 20))
def test_budget_and_invariants_hold_with_random_placement(seed: int) -> None:
    run = run_of(seed, crash=0.02, repeat=0.02, driver_restart=0.01, loss=0.02)
    invariants = watch(run)
    moved = restless(run)
    run.fleet.workers[2].up = False  # so that an attempt always waits
    run.run()
    invariants.at_end(run)
    check_books(run)
    assert moved
    assert isinstance(run.placement, Fickle)
    assert set(run.placement.chosen) == {SPOT, DEMAND}


@pytest.mark.parametrize("seed", seeds.first(2, 5))
def test_an_attempt_is_billed_at_the_price_of_its_own_machine(seed: int) -> None:
    run = run_of(seed)
    metered = run_metered(run)
    bills = {(a.trial, a.attempt): a.costs for a in run.journal.tables.attempts.values()}
    prices = set()
    for where, costs in bills.items():
        paid = sum(cost.usd.micro_usd for cost in costs.values())
        at = [offer for offer in (SPOT, DEMAND) if offer.price.of(metered[where]).micro_usd == paid]
        assert at, (where, paid, metered[where])
        prices.update(at)
    assert prices == {SPOT, DEMAND}


def test_spot_buys_more_steps_for_the_same_budget() -> None:
    """About three times as many steps, because spot costs less than a third."""
    steps = {}
    for only in (SPOT, DEMAND):
        run = run_of(0, only=only, usd="0.003")
        run.run()
        steps[only] = run.loop.state.steps
        spent = run.journal.tables.account.posted.usd.micro_usd
        assert 0.97 * 3000 <= spent <= 3000
    assert steps[SPOT] > 2.5 * steps[DEMAND]


@pytest.mark.parametrize("seed", seeds.first(1, 3))
def test_decisions_depend_on_paid_price_and_not_on_highest_price(seed: int) -> None:
    """The reserve of `auto` is computed at the paid price, not at the highest price of the job's machines."""
    outcomes = []
    for most_expensive in (SPOT, DEMAND):
        run = SimulatedRun(
            spec("0.003", seed=seed, scheduler="auto"),
            LoopConfig("job_0", Rate(most_expensive.price), 4, 10 * 10**9),
            QuickCurves(),
            seed=seed,
            placement=Fickle(seed, only=SPOT),
        )
        run.run()
        outcomes.append((outcome(run), run.clock.elapsed_ns()))
    assert outcomes[0] == outcomes[1]


def test_unaffordable_offer_is_skipped_for_the_next() -> None:
    """The money is enough for some seconds on spot, but not for a step on demand."""

    class DearestFirst(Fickle):
        def choose(self, trial: TrialSnapshot) -> Sequence[Place]:
            return [Place(DEMAND, Rate(Price(100_000_000))), PLACES[SPOT]]

    loop_config = LoopConfig("job_0", Rate(SPOT.price), 1, 10 * 10**9)
    run = SimulatedRun(spec("0.0005"), loop_config, QuickCurves(), placement=DearestFirst(0))
    run.run()
    assert run.loop.state.steps > 5


def test_lost_attempt_that_waited_for_a_machine_costs_nothing() -> None:
    run = run_of(0)
    for worker in run.fleet.workers:
        worker.up = False
    run.fleet.end_all()
    run.clock.after(50 * 10**9, lambda: None)
    while run.clock.elapsed_ns() < 50 * 10**9:
        run.clock.run_next()
    waiting = next(lease for lease in run.loop.leases.values() if lease.slice == 1)
    waiting.assigned_at = None
    run.loop.lost(waiting.trial, waiting.attempt, "Tune gave up")
    (ended,) = (
        a for a in run.journal.tables.attempts.values() if a.trial == waiting.trial and a.attempt == 1
    )
    assert not any(cost.usd.micro_usd for cost in ended.costs.values())
