"""Test spot with fallback: a bounded wait for spot, on-demand when time runs out or preemptions repeat, and the
way back.
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from tuner.domain.job import Resources
from tuner.domain.money import Price
from tuner.domain.offer import Offer, WorkerMachine
from tuner.domain.time import NS, Instant
from tuner.driver.fallback import FULL_NS, SERIES_LENGTH, SpotWithFallback
from tuner.driver.placement import AllowedPlaces, Place, TrialSnapshot

MARKET = "ray.io/market-type"
SPOT = Offer("m", Price(30_000), 1, 0, "spot", labels=((MARKET, "spot"),))
EXPENSIVE = Offer("l", Price(60_000), 1, 0, "spot", labels=((MARKET, "spot"), ("instance-type", "l")))
DEMAND = Offer("m", Price(100_000), 1, 0, labels=((MARKET, "!spot"),))
SPOT_MACHINE = WorkerMachine({MARKET: "spot"}, 1, 0)
EXPENSIVE_MACHINE = WorkerMachine({MARKET: "spot", "instance-type": "l"}, 1, 0)
DEMAND_MACHINE = WorkerMachine({MARKET: "on-demand"}, 1, 0)
WAIT_NS = 60 * NS


def place_at(offer: Offer) -> Place:
    return Place(offer, offer.rate(Resources()))


@dataclass
class Cluster:
    """A trial on machines that come and go. `trial.at` is its place, as the job's loop would record it."""

    machines: list[WorkerMachine]
    offers: tuple[Offer, ...] = (DEMAND, SPOT)
    trial: TrialSnapshot = field(
        default_factory=lambda: TrialSnapshot(trial="trial_00000", changeover_ns=5 * NS)
    )

    def __post_init__(self) -> None:
        places = AllowedPlaces(self.offers, Resources(), lambda: self.machines)
        self.placement = SpotWithFallback(places, spot_wait_ns=WAIT_NS)

    def stands(self, **more: Any) -> None:
        self.trial = replace(self.trial, **more)

    def passes(self, seconds: float) -> None:
        ns = round(seconds * NS)
        waited = None if self.trial.waited_ns is None else self.trial.waited_ns + ns
        left = None if self.trial.time_ns is None else self.trial.time_ns - ns
        self.stands(now=Instant(self.trial.now + ns), waited_ns=waited, time_ns=left)

    def begins(self) -> Offer | None:
        """Begin the trial. Return the offer on which it runs, or for which it waits if there is no machine."""
        self.stands(at=None, waited_ns=None)
        place = self.placement.choose(self.trial)[0]
        assert place.offer is not None
        runs = any(place.offer.is_of(machine.labels) for machine in self.machines)
        self.stands(at=place, waited_ns=None if runs else 0)
        return place.offer

    def relocation(self) -> Offer | None:
        place = self.placement.relocation(self.trial)
        return None if place is None else place.offer

    def moves(self) -> Offer | None:
        offer = self.relocation()
        if offer is not None:
            self.stands(at=place_at(offer), waited_ns=None)
        return offer


def test_available_spot_is_chosen_first() -> None:
    cluster = Cluster([SPOT_MACHINE, DEMAND_MACHINE])
    assert [place.offer for place in cluster.placement.choose(cluster.trial)] == [SPOT, DEMAND]


def test_wait_for_spot_is_bounded() -> None:
    cluster = Cluster([DEMAND_MACHINE])
    assert cluster.begins() == SPOT
    cluster.passes(59)
    assert cluster.relocation() is None
    cluster.passes(2)
    assert cluster.relocation() == DEMAND


def test_next_trial_does_not_wait_for_unavailable_spot() -> None:
    cluster = Cluster([DEMAND_MACHINE])
    cluster.begins()
    cluster.passes(61)
    assert cluster.moves() == DEMAND
    cluster.stands(trial="trial_00001")
    assert cluster.begins() == DEMAND
    cluster.stands(trial="trial_00002")
    cluster.passes(FULL_NS / NS)
    assert cluster.begins() == SPOT


def test_wait_for_spot_starts_when_the_machine_is_lost() -> None:
    cluster = Cluster([SPOT_MACHINE, DEMAND_MACHINE])
    cluster.stands(left_ns=1000 * NS, target=9)
    assert cluster.begins() == SPOT
    cluster.passes(200)
    cluster.stands(unsaved_ns=200 * NS)
    assert cluster.relocation() is None
    cluster.machines = [DEMAND_MACHINE]
    cluster.stands(unsaved_ns=0, preemptions_without_progress=1)
    assert cluster.begins() == SPOT
    cluster.passes(59)
    assert cluster.relocation() is None
    cluster.passes(2)
    assert cluster.relocation() == DEMAND


def test_wait_for_spot_leaves_enough_wall_clock_for_the_work() -> None:
    cluster = Cluster([DEMAND_MACHINE])
    cluster.stands(left_ns=100 * NS, target=9, time_ns=165 * NS)
    assert cluster.begins() == SPOT
    cluster.passes(22)
    assert cluster.relocation() is None
    cluster.passes(1)  # seven tenths of the remaining time are needed now
    assert cluster.relocation() == DEMAND


def test_long_wall_clock_does_not_extend_the_wait_for_spot() -> None:
    cluster = Cluster([DEMAND_MACHINE])
    cluster.stands(left_ns=100 * NS, target=9, time_ns=10_000 * NS)
    assert cluster.begins() == SPOT
    cluster.passes(61)
    assert cluster.moves() == DEMAND
    cluster.passes(15)
    assert cluster.relocation() is None


def test_trial_with_little_time_begins_on_demand() -> None:
    late = Cluster([SPOT_MACHINE, DEMAND_MACHINE])
    late.stands(left_ns=100 * NS, target=9, time_ns=105 * NS)
    assert late.begins() == DEMAND


def test_trial_that_cannot_finish_in_time_uses_spot() -> None:
    cluster = Cluster([SPOT_MACHINE, DEMAND_MACHINE])
    cluster.stands(left_ns=130 * NS, least_ns=100 * NS, target=9, time_ns=99 * NS)
    assert cluster.begins() == SPOT
    cluster.passes(60)
    assert cluster.relocation() is None


def test_trial_that_may_finish_in_time_only_on_demand_starts_there() -> None:
    cluster = Cluster([SPOT_MACHINE, DEMAND_MACHINE])
    cluster.stands(left_ns=130 * NS, least_ns=90 * NS, target=9, time_ns=100 * NS)
    assert cluster.begins() == DEMAND
    cluster.passes(5)
    cluster.stands(left_ns=90 * NS)
    assert cluster.relocation() is None
    cluster.stands(left_ns=50 * NS)  # steps took less time than expected
    assert cluster.relocation() == SPOT


def test_first_step_runs_on_demand_if_wall_clock_is_limited() -> None:
    cluster = Cluster([SPOT_MACHINE, DEMAND_MACHINE])
    cluster.stands(time_ns=10_000 * NS)
    assert cluster.begins() == DEMAND
    cluster.passes(500)
    assert cluster.relocation() is None
    cluster.stands(left_ns=900 * NS, least_ns=300 * NS, target=9, unsaved_ns=100 * NS)
    assert cluster.relocation() == SPOT


def test_spot_is_used_if_all_on_demand_machines_are_occupied() -> None:
    cluster = Cluster([SPOT_MACHINE, DEMAND_MACHINE])
    cluster.stands(left_ns=100 * NS, target=9, time_ns=105 * NS, occupied={DEMAND: 1})
    assert cluster.begins() == SPOT
    assert cluster.relocation() is None
    cluster.stands(preemptions_without_progress=SERIES_LENGTH)
    assert cluster.begins() == SPOT


def test_trial_moves_from_spot_to_on_demand_in_time() -> None:
    cluster = Cluster([SPOT_MACHINE, DEMAND_MACHINE])
    cluster.stands(left_ns=100 * NS, target=9, time_ns=200 * NS)
    assert cluster.begins() == SPOT
    cluster.passes(90)  # nothing was saved in the meantime
    assert cluster.relocation() is None
    cluster.passes(6)
    assert cluster.relocation() == DEMAND


def test_trial_returns_to_spot_after_some_work_on_demand() -> None:
    cluster = Cluster([DEMAND_MACHINE])
    cluster.stands(left_ns=1000 * NS, target=9)
    cluster.begins()
    cluster.passes(61)
    assert cluster.moves() == DEMAND
    cluster.machines = [SPOT_MACHINE, DEMAND_MACHINE]
    cluster.passes(9)
    cluster.stands(unsaved_ns=9 * NS)
    assert cluster.relocation() is None
    cluster.passes(2)
    cluster.stands(unsaved_ns=11 * NS)
    assert cluster.relocation() == SPOT


def test_trial_with_little_work_left_does_not_return_to_spot() -> None:
    cluster = Cluster([DEMAND_MACHINE])
    cluster.stands(left_ns=20 * NS, target=9)
    cluster.begins()
    cluster.passes(61)
    assert cluster.moves() == DEMAND
    cluster.machines = [SPOT_MACHINE, DEMAND_MACHINE]
    cluster.passes(18)
    cluster.stands(unsaved_ns=18 * NS)
    assert cluster.relocation() is None


def test_repeated_preemptions_move_the_trial_on_demand_until_it_saves() -> None:
    cluster = Cluster([SPOT_MACHINE, DEMAND_MACHINE])
    cluster.stands(left_ns=1000 * NS, target=9, preemptions_without_progress=SERIES_LENGTH - 1)
    assert cluster.begins() == SPOT
    cluster.stands(preemptions_without_progress=SERIES_LENGTH)
    assert cluster.relocation() is None
    assert cluster.begins() == DEMAND
    cluster.passes(60)
    cluster.stands(unsaved_ns=60 * NS)
    assert cluster.relocation() is None
    cluster.stands(preemptions_without_progress=0, left_ns=940 * NS, unsaved_ns=0)
    assert cluster.relocation() is None
    cluster.passes(11)
    cluster.stands(unsaved_ns=11 * NS)
    assert cluster.relocation() == SPOT


def test_markets_alternate_if_neither_provides_a_machine() -> None:
    """Other jobs hold all machines, although there seems to be room."""
    cluster = Cluster([SPOT_MACHINE, DEMAND_MACHINE])
    cluster.stands(left_ns=10**5 * NS, target=9)
    cluster.begins()
    offers, waited = [], []
    for _ in range(5):
        cluster.stands(waited_ns=0)
        began = cluster.trial.now
        while (to := cluster.moves()) is None:
            cluster.passes(1)
        offers.append(to)
        waited.append((cluster.trial.now - began) // NS)
    assert offers == [DEMAND, SPOT, DEMAND, SPOT, DEMAND]
    assert waited[:3] == [60, 60, 120]  # and then the first backoffs have expired


def test_each_further_series_of_preemptions_doubles_the_backoff() -> None:
    cluster = Cluster([SPOT_MACHINE, DEMAND_MACHINE])
    left_ns, waited = 10**5 * NS, list[int]()
    cluster.stands(left_ns=left_ns, target=9)
    for _ in range(4):
        cluster.stands(at=None, preemptions_without_progress=SERIES_LENGTH)
        assert cluster.begins() == DEMAND
        began = cluster.trial.now
        cluster.stands(preemptions_without_progress=0)
        while cluster.relocation() is None:
            cluster.passes(10)
            cluster.stands(unsaved_ns=cluster.trial.now - began)
        waited.append((cluster.trial.now - began) // NS)
        left_ns -= cluster.trial.unsaved_ns
        cluster.stands(unsaved_ns=0, left_ns=left_ns)
        assert cluster.begins() == SPOT
    assert waited == [10, 900, 1800, 3600]


def test_wasteful_spot_is_avoided_until_its_record_fades() -> None:
    cluster = Cluster([SPOT_MACHINE, DEMAND_MACHINE])
    spot, hour = Place(SPOT, SPOT.rate(Resources())), 3600 * NS
    cluster.placement.paid(spot, 2 * hour, gained_ns=0, now=Instant(0))
    assert cluster.begins() == SPOT  # it would wait there: it is not late yet
    cluster.stands(waited_ns=0)
    cluster.passes(61)
    assert cluster.relocation() == DEMAND
    cluster.passes(24 * 3600)
    assert cluster.begins() == SPOT


def test_spot_offer_with_cheapest_progress_comes_first() -> None:
    cluster = Cluster([SPOT_MACHINE, EXPENSIVE_MACHINE, DEMAND_MACHINE], (DEMAND, EXPENSIVE, SPOT))
    assert cluster.begins() == SPOT
    spot = Place(SPOT, SPOT.rate(Resources()))
    cluster.placement.paid(spot, 3600 * NS, gained_ns=0, now=Instant(0))
    assert cluster.begins() == EXPENSIVE


def test_spot_that_does_not_start_counts_as_full_for_a_while() -> None:
    cluster = Cluster([SPOT_MACHINE, DEMAND_MACHINE])
    cluster.begins()
    cluster.stands(waited_ns=0)
    cluster.passes(59)
    assert cluster.relocation() is None
    cluster.passes(2)
    assert cluster.moves() == DEMAND
    cluster.passes(FULL_NS / NS - 1)
    cluster.stands(left_ns=1000 * NS, unsaved_ns=200 * NS)
    assert cluster.relocation() is None


def asked_for_spot(cluster: Cluster, seconds: int) -> list[int]:
    """Return the seconds at which the trial moved to spot. The only spot machine is held by another job."""
    moved_at = []
    for second in range(seconds):
        cluster.passes(1)
        if cluster.trial.waited_ns is None:
            cluster.stands(unsaved_ns=cluster.trial.unsaved_ns + NS)
        went = cluster.moves()
        if went is not None:
            left = (cluster.trial.left_ns or 0) - cluster.trial.unsaved_ns
            cluster.stands(left_ns=left, unsaved_ns=0, waited_ns=0 if went == SPOT else None)
        if went == SPOT:
            moved_at.append(second)
    return moved_at


def test_spot_held_by_another_job_is_retried_with_growing_intervals() -> None:
    cluster = Cluster([SPOT_MACHINE, DEMAND_MACHINE])
    cluster.stands(left_ns=100_000 * NS, target=9)
    assert cluster.begins() == SPOT
    cluster.stands(waited_ns=0)
    asked = asked_for_spot(cluster, 2 * 3600)
    between = [later - earlier for earlier, later in pairwise(asked)]
    assert len(asked) == 4
    assert all(gap > 2 * FULL_NS / NS for gap in between)
    assert all(later > 1.8 * earlier for earlier, later in pairwise(between))
    spot, left = place_at(SPOT), (cluster.trial.left_ns or 0) - cluster.trial.unsaved_ns
    cluster.stands(at=spot, waited_ns=0, left_ns=left, unsaved_ns=0)
    assert cluster.relocation() is None
    cluster.stands(waited_ns=None)
    assert cluster.relocation() is None
    cluster.stands(at=spot, waited_ns=0)
    assert len(asked_for_spot(cluster, 400)) == 1


def test_occupied_machine_counts_as_unavailable() -> None:
    cluster = Cluster([SPOT_MACHINE, DEMAND_MACHINE])
    cluster.stands(occupied={SPOT: 1})
    assert cluster.placement.choose(cluster.trial)[0].offer == SPOT  # it waits for its turn
    cluster.stands(at=place_at(SPOT), waited_ns=0)
    cluster.passes(61)
    assert cluster.relocation() == DEMAND


@pytest.mark.parametrize(
    ("spot", "demand", "chosen"), [((16, 260), (4, 200), "spot"), ((4, 200), (16, 260), "on_demand")]
)
def test_machines_are_compared_by_the_price_of_a_trials_share(
    spot: tuple[int, int], demand: tuple[int, int], chosen: str
) -> None:
    """`spot` and `demand` are CPUs and thousandths of a dollar per hour. The larger machine costs more, but the
    trial's share of it does not.
    """
    offers = tuple(
        replace(offer, cpus=size[0], price=Price(1000 * size[1]))
        for offer, size in ((SPOT, spot), (DEMAND, demand))
    )
    cluster = Cluster([replace(SPOT_MACHINE, cpus=spot[0]), replace(DEMAND_MACHINE, cpus=demand[0])], offers)
    begun = cluster.begins()
    assert begun in offers
    assert begun.market == chosen
    cluster.stands(left_ns=1000 * NS, target=9)
    assert cluster.relocation() is None


def test_record_of_an_offer_does_not_affect_offers_with_other_labels() -> None:
    first, second = (replace(SPOT, labels=(*SPOT.labels, ("zone", zone))) for zone in "ab")
    machines = [WorkerMachine(dict(offer.labels), 1, 0) for offer in (first, second)]
    cluster = Cluster([*machines, DEMAND_MACHINE], (DEMAND, first, second))
    assert cluster.begins() == first
    cluster.placement.paid(Place(first, first.rate(Resources())), 3600 * NS, gained_ns=0, now=Instant(0))
    assert cluster.begins() == second


def test_wait_for_autoscaled_spot_is_bounded() -> None:
    cluster = Cluster([replace(SPOT_MACHINE, to_come=True), replace(DEMAND_MACHINE, to_come=True)])
    assert cluster.begins() == SPOT
    cluster.stands(waited_ns=0)
    cluster.passes(59)
    assert cluster.relocation() is None
    cluster.passes(2)
    assert cluster.relocation() == DEMAND


def test_running_trial_returns_only_to_existing_spot_machines() -> None:
    cluster = Cluster([DEMAND_MACHINE])
    cluster.stands(left_ns=1000 * NS, target=9)
    cluster.begins()
    cluster.passes(61)
    assert cluster.moves() == DEMAND
    cluster.machines = [replace(SPOT_MACHINE, to_come=True), DEMAND_MACHINE]
    cluster.passes(FULL_NS / NS)
    cluster.stands(unsaved_ns=FULL_NS)
    assert cluster.relocation() is None
    cluster.machines = [SPOT_MACHINE, DEMAND_MACHINE]
    assert cluster.relocation() == SPOT
