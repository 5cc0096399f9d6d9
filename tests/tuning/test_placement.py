"""Test where a training runs: each rule once, and the deadline against the worst markets that Hypothesis finds."""

from dataclasses import dataclass, field, replace
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import examples
from tuner.domain.job import MarketPolicy
from tuner.domain.money import Price
from tuner.domain.offer import Offer
from tuner.domain.time import Instant
from tuner.tuning.placement import (
    HALF_LIFE_NS,
    RETRY_NS,
    SPOT_WAIT_NS,
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
    market: MarketPolicy = "spot_with_fallback",
    *,
    work: int = 800,
    time: int | None = 1000,
    offers: tuple[Offer, ...] = (),
) -> PlacementRequest:
    """Return the request. `work` and `time` are in minutes, and the training begins at 0."""
    deadline = None if time is None else Instant(time * MINUTE)
    allowed = offers or (DEMAND, SPOT, OTHER)
    return PlacementRequest(
        market=market, offers=allowed, begun=Instant(0), work_ns=work * MINUTE, deadline=deadline
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
    request: PlacementRequest, seen: Observation, memory: PlacementMemory = FRESH
) -> tuple[Offer | None, Why]:
    choice = choose(request, memory, seen)[1]
    return choice.offer, choice.why


def storm(memory: PlacementMemory, now: int, minutes: int) -> PlacementMemory:
    """Return the memory after both spot offers were paid for `minutes` without any progress."""
    for offer in (SPOT, OTHER):
        memory = memory.after(offer, now=Instant(now), paid_ns=minutes * MINUTE, gained_ns=0)
    return memory


@pytest.mark.parametrize("market", ["on_demand", "spot", "spot_with_fallback"])
@pytest.mark.parametrize("at", [None, DEMAND, SPOT])
def test_finished_trial_gets_no_machine(market: MarketPolicy, at: Offer | None) -> None:
    assert chosen(placement_request(market), observation(left=0, at=at, there=(SPOT,))) == (None, "done")


def test_a_market_without_an_offer_is_refused() -> None:
    with pytest.raises(ValueError, match="on_demand needs at least one offer"):
        placement_request(offers=(SPOT,))
    with pytest.raises(ValueError, match="spot needs at least one offer"):
        placement_request("spot", offers=(DEMAND,))
    placement_request("on_demand", offers=(DEMAND,))


T = (SPOT,)
BOTH = (SPOT, OTHER)
ENDLESS, LOOSE, IMPOSSIBLE = (
    placement_request(time=None),
    placement_request(work=300),
    placement_request(work=2000),
)
STORMY, WASTEFUL = (
    storm(FRESH, 0, 120),
    FRESH.after(SPOT, now=Instant(0), paid_ns=60 * MINUTE, gained_ns=30 * MINUTE),
)
FAST = replace(SPOT, instance_type="a100", price=Price(1_800_000))
CAPPED = replace(SPOT, price=DEMAND.price)
IS_FAST = FRESH.after(FAST, now=Instant(0), paid_ns=300 * MINUTE, gained_ns=600 * MINUTE)
NEARLY_DONE = replace(FRESH, current_offer=key_of(DEMAND), left_at_start_ns=800 * MINUTE)
# By rule: the request, the observation, the expected offer and reason, and the memory if it is not fresh.
Case = (
    tuple[PlacementRequest, Observation, Offer | None, Why]
    | tuple[PlacementRequest, Observation, Offer | None, Why, PlacementMemory]
)
CASES: dict[str, list[Case]] = {
    "the requested market is used": [
        (placement_request("on_demand"), observation(there=T), DEMAND, "asked for"),
        (placement_request("spot"), observation(there=T), SPOT, "cheapest"),
        (placement_request("spot"), observation(now=990), None, "waits"),
        (placement_request("spot"), observation(now=990, at=OTHER, there=T), OTHER, "stays"),
        (placement_request("spot"), observation(there=BOTH), SPOT, "cheapest", STORMY),
    ],
    "the safety net keeps time for two moves of an idle trial": [
        (placement_request(), observation(180, 800, there=T), SPOT, "cheapest"),
        (placement_request(), observation(180 + 1 / MINUTE, 800, there=T), DEMAND, "safety net"),
    ],
    "a late trial stays on demand": [
        (placement_request(), observation(200, 790, at=DEMAND, there=T), DEMAND, "catches up"),
        (placement_request(), observation(600, 395, at=DEMAND, there=T), DEMAND, "catches up"),
        (placement_request(), observation(900, 95, at=DEMAND, there=T), DEMAND, "catches up"),
    ],
    "a trial on spot stays there": [
        (placement_request(), observation(10, 795, at=OTHER, there=BOTH), OTHER, "stays"),
        (placement_request(), observation(180, 800, at=OTHER, there=BOTH), OTHER, "stays"),
        (placement_request(), observation(500, 400, at=OTHER, there=BOTH), OTHER, "stays"),
    ],
    "a trial leaves spot while one move is still possible": [
        (placement_request(), observation(190, 800, at=SPOT), SPOT, "stays"),
        (placement_request(), observation(190 + 1 / MINUTE, 800, at=SPOT), DEMAND, "safety net"),
    ],
    "spot is chosen even if the trial is behind": [
        (placement_request(), observation(100, 800, there=T), SPOT, "cheapest"),
    ],
    "an idle trial that is behind the line goes on demand": [
        (placement_request(), observation(100, 719), None, "waits"),
        (placement_request(), observation(100, 721), DEMAND, "behind"),
    ],
    # At 100 min, the progress line 2d later is at 96 min of work.
    "a trial on demand stays there until it is two moves ahead": [
        (placement_request(), observation(100, 705, at=DEMAND, there=T), DEMAND, "catches up"),
        (placement_request(), observation(100, 704, at=DEMAND, there=T), SPOT, "cheapest"),
        (placement_request(), observation(100, 704, at=DEMAND), None, "ahead"),
        (placement_request(), observation(100, 714, at=DEMAND, there=T, unsaved=10), SPOT, "cheapest"),
    ],
    "a trial with much spare time waits for spot": [
        (LOOSE, observation(500, 300), None, "waits"),
        (LOOSE, observation(572, 300), DEMAND, "behind"),
    ],
    "a trial that cannot meet its deadline goes on demand at once": [
        (IMPOSSIBLE, observation(left=2000, there=T), DEMAND, "safety net"),
        (IMPOSSIBLE, observation(2000, 500, at=DEMAND, there=T), DEMAND, "catches up"),
        (
            IMPOSSIBLE,
            observation(0, 990, at=DEMAND, there=T),
            DEMAND,
            "catches up",
            PlacementMemory(Instant(0), 2000 * MINUTE),
        ),
    ],
    # With d = 10 min and a third of the price, a move pays off if 5 min or more are left.
    "a trial with little work left does not move": [
        (request, observation(500, left, at=DEMAND, there=T), offer, why, NEARLY_DONE)
        for request, why_after in ((ENDLESS, "cheapest"), (placement_request(), "cheapest"))
        for left, offer, why in ((4, DEMAND, "stays"), (6, SPOT, why_after))
    ],
    "spot at the price of on demand is not waited for": [
        (
            placement_request(time=time, offers=(DEMAND, CAPPED)),
            observation(there=(CAPPED,)),
            DEMAND,
            "cheapest",
        )
        for time in (None, 1000)
    ],
    "the cheapest offer comes first, and a wasteful one later": [
        (placement_request(), observation(there=(OTHER, SPOT)), SPOT, "cheapest"),
        (placement_request(), observation(there=(OTHER, SPOT)), OTHER, "cheapest", WASTEFUL),
        (
            placement_request(),
            observation(there=(OTHER, SPOT)),
            SPOT,
            "cheapest",
            WASTEFUL.after(OTHER, now=Instant(0), paid_ns=60 * MINUTE, gained_ns=0),
        ),
    ],
    "a faster machine wins despite its higher price": [
        (
            placement_request(offers=(DEMAND, SPOT, FAST)),
            observation(there=(SPOT, FAST)),
            FAST,
            "cheapest",
            IS_FAST,
        ),
    ],
    "spot with repeated preemptions counts as unavailable": [
        (placement_request(), observation(1, 790, there=BOTH), None, "waits", STORMY),
        (placement_request(), observation(30, 790, there=BOTH), DEMAND, "behind", STORMY),
        (ENDLESS, observation(1, there=BOTH), None, "waits", STORMY),
        (ENDLESS, observation(30, there=BOTH), DEMAND, "waited too long", STORMY),
    ],
}


@pytest.mark.parametrize("rule", CASES)
def test_rule_decides_where_the_trial_runs(rule: str) -> None:
    for request, seen, offer, why, *memory in CASES[rule]:
        assert chosen(request, seen, *memory) == (offer, why), seen


def test_choice_says_until_when_it_stays_the_same() -> None:
    def until(request: PlacementRequest, seen: Observation) -> Instant | None:
        return choose(request, FRESH, seen)[1].until

    assert until(placement_request(), observation(190, 800, at=SPOT)) == 190 * MINUTE + 1
    # C(t) is 0.8 R(t) then.
    assert until(placement_request(), observation(100, 719)) == 101 * MINUTE + MINUTE // 4
    # A minute is missing, and a fifth of a minute is gained per minute.
    assert until(placement_request(), observation(100, 705, at=DEMAND)) == 105 * MINUTE
    assert until(LOOSE, observation(500, 300)) == pytest.approx(1000 * MINUTE - 300 / 0.7 * MINUTE)


def test_wait_for_spot_without_deadline_is_limited() -> None:
    memory, choice = choose(ENDLESS, FRESH, observation(now=0))
    assert choice == PlacementChoice(None, "waits", Instant(SPOT_WAIT_NS))
    assert chosen(ENDLESS, observation(now=30), memory) == (DEMAND, "waited too long")


def test_wait_for_spot_counts_from_the_last_progress() -> None:
    """Time on machines that brought no progress is part of the wait."""
    memory, _ = choose(ENDLESS, FRESH, observation(now=100, left=750, at=SPOT))
    assert chosen(ENDLESS, observation(now=129, left=750), memory) == (None, "waits")
    memory, _ = choose(ENDLESS, memory, observation(now=110, left=750, at=SPOT))
    assert chosen(ENDLESS, observation(now=131, left=750), memory) == (DEMAND, "waited too long")


def test_trial_without_deadline_returns_to_spot_after_some_work() -> None:
    memory, _ = choose(ENDLESS, FRESH, observation(now=40, left=750, at=DEMAND, there=T))
    memory, choice = choose(ENDLESS, memory, observation(now=59, left=731, at=DEMAND, there=T))
    assert choice == PlacementChoice(DEMAND, "catches up", Instant(60 * MINUTE))
    back = observation(now=60, left=750, unsaved=20, at=DEMAND, there=T)
    assert chosen(ENDLESS, back, memory) == (SPOT, "cheapest")
    assert chosen(ENDLESS, observation(now=60, left=730, at=DEMAND), memory)[0] is DEMAND


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
    gains: list[tuple[Offer, int, int]], later: int
) -> None:
    memory = FRESH
    for n, (offer, paid, gained) in enumerate(gains):
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

    def _move(self, request: PlacementRequest) -> None:
        for _ in range(3):  # an attempt that ends at once is followed by another decision
            seen = replace(
                observation(
                    self.now, self.work - self.saved / 100, at=self.at, there=(SPOT,) if self._there else ()
                ),
                changeover_ns=self.changeover * MINUTE,
                unsaved_ns=self.unsaved * MINUTE // 100,
            )
            self.memory, choice = choose(request, self.memory, seen)
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
