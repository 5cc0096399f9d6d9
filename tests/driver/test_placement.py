"""Test where an attempt runs: on the cheapest free offer, or on another offer after it has waited."""

from collections import Counter
from dataclasses import replace

import pytest

from tuner.domain.job import Resources
from tuner.domain.money import Price, Rate
from tuner.domain.offer import Offer, WorkerMachine
from tuner.domain.time import NS, Instant
from tuner.driver.placement import (
    OFFER_WAIT_NS,
    AllowedPlaces,
    AnyMachine,
    CheapestFree,
    OccupiedOffers,
    Place,
    TrialSnapshot,
)

MARKET = "ray.io/market-type"
SPOT = Offer("m7i", Price(16_000), 1, 0, "spot", labels=((MARKET, "spot"), ("instance-type", "m7i")))
OTHER_SPOT = Offer("m5", Price(17_000), 1, 0, "spot", labels=((MARKET, "spot"), ("instance-type", "m5")))
DEMAND = Offer("m7i", Price(50_000), 1, 0, labels=((MARKET, "!spot"), ("instance-type", "m7i")))
SPOT_MACHINE = WorkerMachine({MARKET: "spot", "instance-type": "m7i"}, 1, 0)
OTHER_SPOT_MACHINE = WorkerMachine({MARKET: "spot", "instance-type": "m5"}, 1, 0)
DEMAND_MACHINE = WorkerMachine({MARKET: "on-demand", "instance-type": "m7i"}, 1, 0)
TRIAL = "trial_00000"


def placement(
    *machines: WorkerMachine, offers: tuple[Offer, ...] = (DEMAND, OTHER_SPOT, SPOT)
) -> CheapestFree:
    return CheapestFree(AllowedPlaces(offers, Resources(), lambda: machines))


def begins(occupied: OccupiedOffers | None = None) -> TrialSnapshot:
    return TrialSnapshot(trial=TRIAL, occupied=occupied or {})


def waits(at: Place, waited_ns: int, occupied: OccupiedOffers | None = None) -> TrialSnapshot:
    return TrialSnapshot(trial=TRIAL, occupied=occupied or {}, at=at, waited_ns=waited_ns)


def place(offer: Offer) -> Place:
    return Place(offer, offer.rate(Resources()))


def first(placement: CheapestFree, **occupied: Offer) -> Offer | None:
    return placement.choose(begins(Counter(occupied.values())))[0].offer


def test_cheapest_available_offer_comes_first_then_others_by_price() -> None:
    there = placement(DEMAND_MACHINE, OTHER_SPOT_MACHINE, SPOT_MACHINE)
    assert [choice.offer for choice in there.choose(begins())] == [SPOT, OTHER_SPOT, DEMAND]
    assert [choice.offer for choice in placement(DEMAND_MACHINE).choose(begins())] == [
        DEMAND,
        SPOT,
        OTHER_SPOT,
    ]


def test_machines_occupied_by_other_attempts_are_not_free() -> None:
    there = placement(DEMAND_MACHINE, OTHER_SPOT_MACHINE, SPOT_MACHINE)
    assert first(there, a=SPOT) == OTHER_SPOT
    assert first(there, a=SPOT, b=OTHER_SPOT) == DEMAND


def test_attempt_waits_for_cheapest_offer_if_none_is_free() -> None:
    assert first(placement()) == SPOT
    assert first(placement(DEMAND_MACHINE), a=DEMAND) == SPOT


def test_one_machine_holds_as_many_trials_as_fit() -> None:
    wanted, large = Resources(cpus=2, gpus=0.5), Offer("g6", Price(1), 4, 1, labels=((MARKET, "spot"),))
    there = CheapestFree(AllowedPlaces([large], wanted, lambda: [WorkerMachine({MARKET: "spot"}, 4, 1)]))
    either = [large, replace(large, labels=())]
    other = CheapestFree(AllowedPlaces(either, wanted, lambda: [WorkerMachine({MARKET: "spot"}, 4, 1)]))
    assert there.relocation(waits(there.choose(begins())[0], 0, {large: 1})) is None
    assert other.choose(begins({large: 1}))[0].offer == large
    assert other.choose(begins({large: 2}))[0].offer != large
    assert WorkerMachine({}, 4, 1).fits(Resources(cpus=2, gpus=0.5)) == 2
    assert WorkerMachine({}, 4, 1).fits(Resources(cpus=3)) == 1
    assert WorkerMachine({}, 4, 0).fits(Resources(cpus=1, gpus=1)) == 0


def test_each_worker_has_room_for_a_pack_of_trials() -> None:
    wanted, offer = Resources(cpus=2, pack=3), Offer("m6", Price(1), 4, 0)
    places = AllowedPlaces((offer,), wanted, lambda: [WorkerMachine({}, 4, 0)])
    assert [places.room(places.all[0], {offer: occupied}) for occupied in (0, 1, 6)] == [6, 5, 0]
    assert places.all[0].rate == offer.rate(Resources(cpus=2))


def test_each_node_of_a_trial_needs_room_on_another_machine() -> None:
    wanted, offer = Resources(cpus=2, nodes=2), Offer("m6", Price(1), 4, 0)
    machines = list[WorkerMachine]()
    places = AllowedPlaces((offer,), wanted, lambda: machines)
    assert places.all[0].rate.price == Price(1)
    rooms = []
    for cpus in (4, 2, 2):
        machines.append(WorkerMachine({}, cpus, 0))
        rooms.append(places.room(places.all[0], {}))
    assert rooms == [0, 1, 2]


def test_attempt_waits_a_limited_time_for_its_offer() -> None:
    there = placement(SPOT_MACHINE, DEMAND_MACHINE)
    assert there.relocation(waits(place(SPOT), OFFER_WAIT_NS - 1)) is None
    new_place = there.relocation(waits(place(SPOT), OFFER_WAIT_NS))
    assert new_place is not None
    assert new_place.offer == DEMAND


def test_attempt_moves_immediately_if_its_machines_are_gone() -> None:
    new_place = placement(DEMAND_MACHINE).relocation(waits(place(SPOT), NS))
    assert new_place is not None
    assert new_place.offer == DEMAND


@pytest.mark.parametrize("occupied", [{}, {DEMAND: 1}])
def test_attempt_stays_if_no_other_offer_is_free(occupied: dict[Offer, int]) -> None:
    machines = [DEMAND_MACHINE] if occupied else []
    assert placement(*machines).relocation(waits(place(SPOT), 10 * OFFER_WAIT_NS, occupied)) is None
    assert placement(SPOT_MACHINE, offers=(SPOT,)).relocation(waits(place(SPOT), 10 * OFFER_WAIT_NS)) is None


def test_running_attempt_is_not_moved() -> None:
    there = placement(SPOT_MACHINE, DEMAND_MACHINE)
    assert there.relocation(TrialSnapshot(trial=TRIAL, at=place(DEMAND))) is None


def test_attempt_results_do_not_change_the_order_of_offers() -> None:
    policy = placement(WorkerMachine({}, 4, 0))
    before = list(policy.choose(begins()))
    policy.paid(before[0], 3600 * NS, gained_ns=0, now=Instant(3600 * NS))
    assert list(policy.choose(begins())) == before


def test_any_machine_placement_has_one_price_and_never_moves() -> None:
    rate = Rate(Price(7))
    assert AnyMachine(rate).choose(begins()) == [Place(None, rate)]
    assert AnyMachine(rate).relocation(waits(Place(None, rate), 10**18)) is None


@pytest.mark.parametrize(
    ("labels", "is_one"),
    [({MARKET: "spot"}, False), ({MARKET: "on-demand"}, True), ({}, True)],
)
def test_negated_label_matches_any_machine_but_spot(labels: dict[str, str], is_one: bool) -> None:
    assert Offer("local", Price(1), 1, 0, labels=((MARKET, "!spot"),)).is_of(labels) is is_one


def test_autoscaled_machine_gets_longer_wait_and_offers_take_turns() -> None:
    kinds = [replace(machine, to_come=True) for machine in (SPOT_MACHINE, OTHER_SPOT_MACHINE, DEMAND_MACHINE)]
    coming = CheapestFree(
        AllowedPlaces((DEMAND, OTHER_SPOT, SPOT), Resources(), lambda: kinds), coming_ns=5 * OFFER_WAIT_NS
    )
    assert first(coming) == SPOT
    assert coming.relocation(waits(place(SPOT), 5 * OFFER_WAIT_NS - 1)) is None
    turns = []
    at = place(SPOT)
    for _ in range(3):
        new_place = coming.relocation(waits(at, 5 * OFFER_WAIT_NS))
        assert new_place is not None
        turns.append(new_place.offer)
        at = new_place
    assert turns == [OTHER_SPOT, DEMAND, SPOT]


def test_machine_that_has_not_started_does_not_count_as_existing() -> None:
    for to_come in (False, True):
        machines = [replace(SPOT_MACHINE, to_come=to_come)]
        places = AllowedPlaces((SPOT, DEMAND), Resources(), lambda machines=machines: machines)  # type: ignore[misc]
        assert places.has_machine(SPOT) is not to_come
        assert not places.has_machine(DEMAND)


def test_existing_machine_is_preferred_to_autoscaled_one_after_a_wait() -> None:
    kinds = [SPOT_MACHINE, replace(OTHER_SPOT_MACHINE, to_come=True), DEMAND_MACHINE]
    new_place = placement(*kinds).relocation(waits(place(SPOT), OFFER_WAIT_NS))
    assert new_place is not None
    assert new_place.offer == DEMAND
