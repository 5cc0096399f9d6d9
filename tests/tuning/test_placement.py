"""Test where a training runs: each rule once, and the deadline against the worst markets that Hypothesis finds."""

from dataclasses import dataclass, field, replace
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import examples
from tuner.domain.job import Market
from tuner.domain.money import Price
from tuner.domain.offer import Offer
from tuner.domain.time import Instant
from tuner.tuning.placement import (
    HALF_LIFE_NS,
    PATIENCE_NS,
    RETRY_NS,
    Observation,
    PlacementChoice,
    PlacementMemory,
    PlacementRequest,
    Why,
    choose,
    key_of,
)

DEMAND = Offer("v100", Price(3_000_000), 8, 1, "on_demand")
SPOT = Offer("v100", Price(1_000_000), 8, 1, "spot", "near")
OTHER = Offer("v100", Price(1_100_000), 8, 1, "spot", "far")
MINUTE = 60 * 10**9
D = 10 * MINUTE


def placement_request(
    market: Market = "spot_with_fallback",
    *,
    work: int = 800,
    time: int | None = 1000,
    offers: tuple[Offer, ...] = (),
) -> PlacementRequest:
    """Return the request. `work` and `time` are in minutes, and the training begins at 0."""
    deadline = None if time is None else Instant(time * MINUTE)
    found = offers or (DEMAND, SPOT, OTHER)
    return PlacementRequest(
        market=market, offers=found, begun=Instant(0), work_ns=work * MINUTE, deadline=deadline
    )


def observation(
    now: float = 0,
    left: float = 800,
    *,
    at: Offer | None = None,
    there: tuple[Offer, ...] = (),
    unsaved: float = 0,
) -> Observation:
    return Observation(
        now=Instant(round(now * MINUTE)),
        left_ns=round(left * MINUTE),
        changeover_ns=D,
        unsaved_ns=round(unsaved * MINUTE),
        at=at,
        there=there,
    )


FRESH = PlacementMemory(Instant(0), 800 * MINUTE)


def chosen(
    asked: PlacementRequest, seen: Observation, memory: PlacementMemory = FRESH
) -> tuple[Offer | None, Why]:
    choice = choose(asked, memory, seen)[1]
    return choice.offer, choice.why


@pytest.mark.parametrize("market", ["on_demand", "spot", "spot_with_fallback"])
@pytest.mark.parametrize("at", [None, DEMAND, SPOT])
def test_finished_trial_gets_no_machine(market: Market, at: Offer | None) -> None:
    assert chosen(placement_request(market), observation(left=0, at=at, there=(SPOT,))) == (None, "done")


def test_requested_market_is_used() -> None:
    assert chosen(placement_request("on_demand"), observation(there=(SPOT,))) == (DEMAND, "asked for")
    assert chosen(placement_request("spot"), observation(there=(SPOT,))) == (SPOT, "cheapest")
    late = observation(now=990)
    assert chosen(placement_request("spot"), late) == (None, "waits")
    assert chosen(placement_request("spot"), observation(now=990, at=OTHER, there=(SPOT,))) == (
        OTHER,
        "stays",
    )


def test_a_market_without_an_offer_is_refused() -> None:
    with pytest.raises(ValueError, match="no on_demand offer"):
        placement_request(offers=(SPOT,))
    with pytest.raises(ValueError, match="no spot offer"):
        placement_request("spot", offers=(DEMAND,))
    placement_request("on_demand", offers=(DEMAND,))


def test_safety_net_keeps_time_for_two_moves_when_idle() -> None:
    """R(t) = C(t) + 2d is enough for spot; one nanosecond less is not."""
    enough = observation(now=180, left=800, there=(SPOT,))
    assert chosen(placement_request(), enough) == (SPOT, "cheapest")
    short = replace(enough, now=Instant(enough.now + 1))
    assert chosen(placement_request(), short) == (DEMAND, "safety net")


def test_safety_net_keeps_late_trial_on_demand() -> None:
    for now, left in ((200, 790), (600, 395), (900, 95)):
        assert chosen(placement_request(), observation(now, left, at=DEMAND, there=(SPOT,)))[0] is DEMAND


def test_exploitation_keeps_trial_on_its_spot_machine() -> None:
    for now, left in ((10, 795), (180, 800), (500, 400)):
        assert chosen(placement_request(), observation(now, left, at=OTHER, there=(SPOT, OTHER))) == (
            OTHER,
            "stays",
        )


def test_trial_leaves_spot_while_one_move_is_still_possible() -> None:
    last = observation(now=190, left=800, at=SPOT)
    asked = choose(placement_request(), FRESH, last)[1]
    assert asked == PlacementChoice(SPOT, "stays", Instant(last.now + 1))
    assert chosen(placement_request(), replace(last, now=Instant(last.now + 1))) == (DEMAND, "safety net")


def test_spot_is_chosen_even_if_trial_is_behind() -> None:
    assert chosen(placement_request(), observation(now=100, left=800, there=(SPOT,))) == (SPOT, "cheapest")


def test_uniform_progress_moves_idle_trial_on_demand_if_behind() -> None:
    ahead, behind = observation(now=100, left=719), observation(now=100, left=721)
    assert chosen(placement_request(), behind) == (DEMAND, "behind")
    choice = choose(placement_request(), FRESH, ahead)[1]
    assert choice == PlacementChoice(
        None, "waits", Instant(101 * MINUTE + MINUTE // 4)
    )  # where C(t) is 0.8 R(t)


def test_hysteresis_keeps_trial_on_demand_until_two_moves_ahead() -> None:
    """At 100 min, the progress line 2d later is at 96 min of work."""
    there = (SPOT,)
    assert chosen(placement_request(), observation(100, 705, at=DEMAND, there=there)) == (
        DEMAND,
        "catches up",
    )
    assert chosen(placement_request(), observation(100, 704, at=DEMAND, there=there)) == (SPOT, "cheapest")
    assert chosen(placement_request(), observation(100, 704, at=DEMAND)) == (None, "ahead")
    assert chosen(placement_request(), observation(100, 714, at=DEMAND, there=there, unsaved=10)) == (
        SPOT,
        "cheapest",
    )
    until = choose(placement_request(), FRESH, observation(100, 705, at=DEMAND))[1].until
    assert until == 105 * MINUTE  # a minute is missing, and a fifth of a minute is gained per minute


def test_trial_with_much_spare_time_waits_for_spot() -> None:
    loose = placement_request(work=300)
    assert chosen(loose, observation(now=500, left=300)) == (None, "waits")
    assert choose(loose, FRESH, observation(now=500, left=300))[1].until == pytest.approx(
        1000 * MINUTE - 300 / 0.7 * MINUTE
    )
    assert chosen(loose, observation(now=572, left=300)) == (DEMAND, "behind")


def test_trial_that_cannot_meet_deadline_goes_on_demand_immediately() -> None:
    impossible = placement_request(work=2000)
    assert chosen(impossible, observation(left=2000, there=(SPOT,))) == (DEMAND, "safety net")
    assert chosen(impossible, observation(now=2000, left=500, at=DEMAND, there=(SPOT,)))[0] is DEMAND


def test_initial_work_beyond_deadline_does_not_loosen_progress_line() -> None:
    asked = placement_request(work=2000, time=1000)
    memory = PlacementMemory(Instant(0), 2000 * MINUTE)
    assert chosen(asked, observation(now=0, left=990, at=DEMAND, there=(SPOT,)), memory) == (
        DEMAND,
        "catches up",
    )


def test_wait_without_deadline_ends_after_patience() -> None:
    endless = placement_request(time=None)
    memory, choice = choose(endless, FRESH, observation(now=0))
    assert choice == PlacementChoice(None, "waits", Instant(PATIENCE_NS))
    assert chosen(endless, observation(now=30), memory) == (DEMAND, "out of patience")


def test_patience_is_counted_from_the_last_progress() -> None:
    """Time on machines that brought no progress is part of the wait."""
    endless = placement_request(time=None)
    memory, _ = choose(endless, FRESH, observation(now=100, left=750, at=SPOT))
    assert chosen(endless, observation(now=129, left=750), memory) == (None, "waits")
    memory, _ = choose(endless, memory, observation(now=110, left=750, at=SPOT))
    assert chosen(endless, observation(now=131, left=750), memory) == (DEMAND, "out of patience")


def test_trial_without_deadline_returns_to_spot_after_some_work() -> None:
    endless = placement_request(time=None)
    memory, _ = choose(endless, FRESH, observation(now=40, left=750, at=DEMAND, there=(SPOT,)))
    memory, choice = choose(endless, memory, observation(now=59, left=731, at=DEMAND, there=(SPOT,)))
    assert choice == PlacementChoice(DEMAND, "catches up", Instant(60 * MINUTE))
    assert chosen(endless, observation(now=60, left=750, unsaved=20, at=DEMAND, there=(SPOT,)), memory) == (
        SPOT,
        "cheapest",
    )
    assert chosen(endless, observation(now=60, left=730, at=DEMAND), memory)[0] is DEMAND


@pytest.mark.parametrize("time", [None, 1000])
def test_trial_with_little_work_left_does_not_move(time: int | None) -> None:
    """With d = 10 min and a third of the price, a move pays off if 5 min or more are left."""
    memory = replace(FRESH, current_offer=key_of(DEMAND), left_at_start_ns=800 * MINUTE)
    for left, place in ((4, DEMAND), (6, SPOT)):
        assert (
            chosen(
                placement_request(time=time),
                observation(now=500, left=left, at=DEMAND, there=(SPOT,)),
                memory,
            )[0]
            is place
        )


@pytest.mark.parametrize("time", [None, 1000])
def test_spot_at_on_demand_price_is_not_waited_for(time: int | None) -> None:
    capped = replace(SPOT, price=DEMAND.price)
    found = chosen(placement_request(time=time, offers=(DEMAND, capped)), observation(there=(capped,)))
    assert found == (DEMAND, "cheapest")


def test_cheapest_offer_comes_first_and_wasteful_offer_later() -> None:
    both = observation(there=(OTHER, SPOT))
    assert chosen(placement_request(), both)[0] is SPOT
    wasteful = FRESH.after(SPOT, now=Instant(0), paid_ns=60 * MINUTE, gained_ns=30 * MINUTE)
    assert chosen(placement_request(), both, wasteful)[0] is OTHER
    worse = wasteful.after(OTHER, now=Instant(0), paid_ns=60 * MINUTE, gained_ns=0)
    assert chosen(placement_request(), both, worse)[0] is SPOT


def test_faster_machine_wins_despite_higher_price() -> None:
    fast = replace(SPOT, instance_type="a100", price=Price(1_800_000))
    memory = FRESH.after(fast, now=Instant(0), paid_ns=300 * MINUTE, gained_ns=600 * MINUTE)
    assert memory.price(fast, Instant(0)) < memory.price(SPOT, Instant(0))
    assert (
        chosen(placement_request(offers=(DEMAND, SPOT, fast)), observation(there=(SPOT, fast)), memory)[0]
        is fast
    )


def storm(memory: PlacementMemory, now: int, minutes: int) -> PlacementMemory:
    """Return the memory after both spot offers were paid for `minutes` without any progress."""
    for offer in (SPOT, OTHER):
        memory = memory.after(offer, now=Instant(now), paid_ns=minutes * MINUTE, gained_ns=0)
    return memory


def test_spot_with_repeated_preemptions_counts_as_unavailable() -> None:
    there = (SPOT, OTHER)
    stormy = storm(FRESH, 0, 120)
    assert chosen(placement_request(), observation(now=1, left=790, there=there), stormy)[0] is None
    assert chosen(placement_request(), observation(now=30, left=790, there=there), stormy) == (
        DEMAND,
        "behind",
    )
    endless = placement_request(time=None)
    assert chosen(endless, observation(now=1, there=there), stormy)[0] is None
    assert chosen(endless, observation(now=30, there=there), stormy) == (DEMAND, "out of patience")
    assert (
        chosen(placement_request("spot"), observation(there=there), stormy)[0] is SPOT
    )  # there is no other offer


def test_spot_is_retried_after_preemptions_fade() -> None:
    stormy, there = storm(FRESH, 0, 600), (SPOT,)
    choice = choose(
        placement_request(time=100_000, work=50_000), stormy, observation(left=50_000, there=there)
    )[1]
    assert choice == PlacementChoice(None, "waits", Instant(RETRY_NS))
    later = observation(now=4 * HALF_LIFE_NS / MINUTE, left=50_000, there=there)
    assert chosen(placement_request(time=100_000, work=50_000), later, stormy)[0] is SPOT


@given(
    st.lists(
        st.tuples(st.sampled_from([SPOT, OTHER, DEMAND]), st.integers(0, 10**6), st.integers(0, 10**6)),
        max_size=30,
    ),
    st.integers(0, 2**62),
)
def test_memory_is_bounded_and_prices_are_positive_integers(
    told: list[tuple[Offer, int, int]], later: int
) -> None:
    memory = FRESH
    for n, (offer, paid, gained) in enumerate(told):
        memory = memory.after(
            offer, now=Instant(n * MINUTE), paid_ns=paid * MINUTE, gained_ns=gained * MINUTE
        )
    assert len(memory.records) <= 3
    for offer in (SPOT, OTHER, DEMAND):
        price = memory.price(offer, Instant(later)).micro_usd_per_hour
        assert isinstance(price, int)
        assert price > 0
    assert memory.price(SPOT, Instant(later)) >= Price(0)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_effective_price_fades_back_to_list_price(paid: int, gained: int, later: int) -> None:
    memory = FRESH.after(SPOT, now=Instant(0), paid_ns=paid * MINUTE, gained_ns=gained * MINUTE)
    distances = [
        abs(memory.price(SPOT, Instant(at * MINUTE)).micro_usd_per_hour - SPOT.price.micro_usd_per_hour)
        for at in (0, later, 2 * later)
    ]
    assert distances[0] + 1 >= distances[1]
    assert distances[1] + 1 >= distances[2]


@dataclass
class World:
    """A simulated worst-case market, minute by minute.

    Work is saved every `every` minutes on spot, where it proceeds at `speed` percent. A machine trains `launch`
    minutes after it was requested, and leaving it takes `saving` minutes. Looks are up to a minute late.
    `lives` lists for how long spot is available and unavailable, by turns. A machine that goes away loses its
    unsaved work.

    `saved` and `unsaved` are in hundredths of a minute of work.
    """

    work: int
    time: int
    launch: int
    every: int
    saving: int
    speed: int
    lives: list[int]
    now: int = 0
    saved: int = 0
    unsaved: int = 0
    at: Offer | None = None
    ready: int = 0
    leaves: int | None = None
    memory: PlacementMemory = field(init=False)
    visited: set[Why] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.memory = PlacementMemory(Instant(0), self.work * MINUTE)
        self._turns = cycle(self.lives)
        self._there, self._changes = True, next(self._turns)

    @property
    def changeover(self) -> int:
        """Return the duration of a move, with at most the work of `every` minutes and one minute in progress."""
        return self.launch + self.every + self.saving + 2

    def run(self) -> int:
        """Run to the end, and return the minute in which the work was finished."""
        asked = placement_request(work=self.work, time=self.time, offers=(DEMAND, SPOT))
        while self.saved < 100 * self.work and self.now < 10 * self.time:
            if self.leaves is None:
                self._move(asked)
            self._minute()
        return self.now

    def _move(self, asked: PlacementRequest) -> None:
        for _ in range(3):  # an attempt that ends at once is followed by another decision
            seen = replace(
                observation(
                    self.now, self.work - self.saved / 100, at=self.at, there=(SPOT,) if self._there else ()
                ),
                changeover_ns=self.changeover * MINUTE,
                unsaved_ns=self.unsaved * MINUTE // 100,
            )
            self.memory, choice = choose(asked, self.memory, seen)
            self.visited.add(choice.why)
            if choice.offer is self.at:
                return
            if self.at is None:
                self.at, self.ready = choice.offer, self.now + self.launch
            elif self.now < self.ready or self.saving == 0:
                self._leave()
            else:
                self.leaves = self.now + self.saving
                return

    def _leave(self) -> None:
        self.saved, self.unsaved, self.at, self.leaves = self.saved + self.unsaved, 0, None, None

    def _minute(self) -> None:
        self.now += 1
        if self.at is not None and self.now > self.ready and self.leaves is None:
            self.unsaved += 100 if self.at is DEMAND else self.speed
        done = self.saved + self.unsaved >= 100 * self.work
        if self.at is DEMAND or done or (self.unsaved and (self.now - self.ready) % self.every == 0):
            self.saved, self.unsaved = self.saved + self.unsaved, 0
        if self.now >= self._changes:
            self._there, self._changes = not self._there, self._changes + next(self._turns)
            if not self._there and self.at is SPOT:
                self.at, self.unsaved, self.leaves = None, 0, None
        if self.leaves is not None and self.now >= self.leaves:
            self._leave()


worlds = st.builds(
    World,
    work=st.integers(20, 300),
    time=st.just(0),
    launch=st.integers(0, 8),
    every=st.integers(1, 10),
    saving=st.integers(0, 2),
    speed=st.integers(0, 150),
    lives=st.lists(st.integers(1, 60), min_size=1, max_size=12),
)


@examples(300, gate=120)
@given(worlds, st.integers(0, 250))
def test_deadline_is_met_if_immediate_on_demand_would_meet_it(world: World, spare: int) -> None:
    world.time = world.work + world.launch + spare
    assert world.run() <= world.time


def test_realistic_market_exercises_the_main_rules() -> None:
    world = World(
        work=800, time=1000, launch=5, every=10, saving=1, speed=98, lives=[30, 20, 5, 60, 120, 10, 200, 30]
    )
    assert world.run() <= world.time
    assert world.visited >= {"cheapest", "stays", "waits", "behind", "catches up"}
