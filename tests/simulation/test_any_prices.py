"""Test money with different prices for all kinds of machines, under any faults: the ledger's invariants hold,
and no limit is exceeded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.test_simulated_jobs import QuickCurves, check_books, spec
from tests.strategies import examples
from tuner.domain.cost import total
from tuner.domain.money import Money, Price, Rate
from tuner.domain.offer import Offer
from tuner.domain.time import NS, Instant
from tuner.driver.placement import Place, TrialSnapshot
from tuner.driver.ports import LoopConfig
from tuner.simulator.invariants import watch
from tuner.simulator.traces import UpTimes
from tuner.simulator.world import Faults, SimulatedRun, SpotMachines

WORKERS = 3


@dataclass(frozen=True)
class Market:
    """Prices in micro-dollars per hour, some of them zero. Each machine is up and down by turns."""

    prices: list[int]
    milli_gpus: int
    usd: int
    gpu_ms: int | None
    faults: Faults
    up_s: list[list[float]]
    notice_s: float | None
    seed: int

    @property
    def places(self) -> list[Place]:
        offers = [Offer(f"m{n}", Price(price), 1, 0) for n, price in enumerate(self.prices)]
        return [Place(offer, Rate(offer.price, self.milli_gpus)) for offer in offers]

    def up_times(self) -> list[Iterator[UpTimes]]:
        return [iter(_spans(spans)) for spans in self.up_s]


def _spans(seconds: Sequence[float]) -> list[UpTimes]:
    """Return spans in which a machine is up for so many seconds each, with two seconds down in between, and up
    indefinitely at the end.
    """
    up_times, at = [], 0.0
    for up in seconds:
        up_times.append(UpTimes(round(at * NS), round((at + up) * NS)))
        at += up + 2
    return [*up_times, UpTimes(round(at * NS), None)]


chances = st.sampled_from([0.0, 0.0, 0.02])
markets = st.builds(
    Market,
    prices=st.lists(
        st.sampled_from([0, 1, 999, 30_000, 100_000, 777_777, 5_000_000]), min_size=2, max_size=4
    ),
    milli_gpus=st.sampled_from([0, 333, 1000]),
    usd=st.integers(1, 4_000),
    gpu_ms=st.none() | st.integers(500, 60_000),
    faults=st.builds(Faults, crash=chances, repeat=chances, driver_restart=chances, loss=chances),
    up_s=st.lists(st.lists(st.floats(0.5, 20), max_size=4), min_size=WORKERS, max_size=WORKERS),
    notice_s=st.none() | st.floats(0.1, 5),
    seed=st.integers(0, 99),
)


class Whims:
    """A placement policy that chooses machines at random and sometimes moves. It checks that no more
    time is gained than was paid for.
    """

    def __init__(self, market: Market) -> None:
        self._places, self._rng = market.places, Random(f"whims/{market.seed}")

    def choose(self, trial: TrialSnapshot) -> Sequence[Place]:
        return self._rng.sample(self._places, len(self._places))

    def relocation(self, trial: TrialSnapshot) -> Place | None:
        assert trial.at is not None
        others = [place for place in self._places if place != trial.at]
        return self._rng.choice(others) if others and self._rng.random() < 0.05 else None

    def paid(self, place: Place, paid_ns: int, *, gained_ns: int, now: Instant) -> None:
        assert 0 <= gained_ns <= paid_ns


def check_purses(run: SimulatedRun) -> None:
    """Check that each running attempt has posted its time to the nanosecond at its own rate, and holds the
    money for the rest of its lease.
    """
    for lease in run.loop.leases.values():
        posted, rate = total(lease.posted), lease.place.rate
        assert posted == rate.cost(lease.settled.total_ns)
        assert lease.held == rate.cost(lease.lease_ns) - posted
        assert lease.meter.total_ns <= lease.lease_ns


@examples(60, gate=25)
@given(market=markets)
def test_no_limit_is_exceeded_with_attempts_at_any_prices(market: Market) -> None:
    most_expensive = max(market.places, key=lambda place: place.rate.price).rate
    limits = {"trials": 12} if market.gpu_ms is None else {"trials": 12, "gpu_ms": market.gpu_ms}
    run = SimulatedRun(
        spec(str(Money(market.usd).usd), seed=market.seed, **limits),
        LoopConfig("job_0", most_expensive, WORKERS, 10 * NS),
        QuickCurves(),
        seed=market.seed,
        faults=market.faults,
        machines=SpotMachines(
            up_times=market.up_times(),
            notice_ns=None if market.notice_s is None else round(market.notice_s * NS),
        ),
        placement=Whims(market),
    )
    invariants = watch(run)
    check, limit = run.on_turn, run.journal.tables.account.limit

    def each_turn() -> None:
        check()
        check_purses(run)
        account = run.journal.tables.account
        assert (account.posted + account.held).fits(limit)

    run.on_turn = each_turn
    run.run()
    invariants.at_end(run)
    check_books(run)
    assert run.journal.tables.account.held == type(limit)()
    assert run.loop.end is not None
