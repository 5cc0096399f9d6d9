"""Choose the machine that an attempt runs on, and its rate.

This module has the `Placement` port and its implementations without fallback; `tuner.driver.fallback` has the one with
fallback to on-demand machines. `interruption_risk` estimates the risk that an attempt is lost, from its market and from how the
job's attempts have ended so far. Workers decide from it when to save.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tuner.domain.checkpointing import Hazard, InterruptionRisk, Losses, Notices
from tuner.domain.job import Resources
from tuner.domain.money import Rate
from tuner.domain.offer import Offer, WorkerMachine, trials_that_fit
from tuner.domain.time import NS, Instant

# How long an attempt waits for a machine of one offer, in nanoseconds, before it may move to another offer.
OFFER_WAIT_NS = 60 * NS
EPOCH = Instant(0)
OccupiedOffers = Mapping[Offer, int]
"""For each offer, how many attempts of the job's other trials run on it, wait for it or are about to move to it."""


@dataclass(frozen=True, slots=True)
class Place:
    """An offer on which an attempt may run, and the rate that it pays there."""

    offer: Offer | None  #: None means any machine of the cluster.
    rate: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSnapshot:
    """The snapshot of a trial from which placement decides where it runs."""

    trial: str
    now: Instant = EPOCH  #: The time of the snapshot, on a monotonic clock.
    occupied: OccupiedOffers = field(default_factory=dict)
    at: Place | None = None  #: Where its attempt runs or waits. None if it has no attempt.
    waited_ns: int | None = None  #: How long its attempt has waited for a machine. None if it runs.
    target: int | None = None  #: The step up to which the trial may train now.
    #: Upper bound for the training time from the newest checkpoint to `target`, in nanoseconds. None if it is not known.
    left_ns: int | None = None
    least_ns: int = 0  #: Lower bound for the training time from the current step to `target`, in nanoseconds.
    unsaved_ns: int = 0  #: The part of `left_ns` that the current attempt has trained but not saved.
    changeover_ns: int = 0  #: How long a move to another machine takes.
    time_ns: int | None = None  #: Time left of the wall clock. None if there is no limit.
    preemptions_without_progress: int = (
        0  #: How many preemptions in a row the trial had without saving a newer checkpoint.
    )

    @property
    def runs_at(self) -> Offer | None:
        """The offer on which the trial's attempt runs. None if it has no attempt or waits for a machine."""
        return self.at.offer if self.at is not None and self.waited_ns is None else None


class Placement(Protocol):
    """Decide on which offer each attempt runs.

    The loop's thread calls the methods within a transaction, so they must return within milliseconds and must not
    raise.
    """

    def choose(self, trial: TrialSnapshot) -> Sequence[Place]:
        """Return at least one place for the trial's next attempt, the best first. The loop uses the first one that the budget can pay for."""

    def relocation(self, trial: TrialSnapshot) -> Place | None:
        """Return the place to which a running or waiting attempt should move. Return None if it should stay."""

    def paid(self, place: Place, paid_ns: int, *, gained_ns: int, now: Instant) -> None:
        """Learn what progress costs on an offer, from an attempt that ran there and has ended.

        Args:
            place: Where the attempt ran.
            paid_ns: The time that the attempt is billed for.
            gained_ns: The part of `paid_ns` that was training and need not be repeated.
            now: The time, on the same monotonic clock as `TrialSnapshot.now`.
        """


@dataclass(frozen=True, slots=True)
class AnyMachine:
    """Placement without offers: every machine is as good as any other."""

    rate: Rate

    def choose(self, trial: TrialSnapshot) -> Sequence[Place]:
        return [Place(None, self.rate)]

    def relocation(self, trial: TrialSnapshot) -> Place | None:
        return None

    def paid(self, place: Place, paid_ns: int, *, gained_ns: int, now: Instant) -> None:
        pass


class AllowedPlaces:
    """The offers that a job may use, cheapest first, and how many more of its trials fit on each offer."""

    def __init__(
        self, offers: Sequence[Offer], wanted: Resources, machines: Callable[[], Sequence[WorkerMachine]]
    ) -> None:
        places_by_offer = [Place(offer, offer.rate(wanted)) for offer in offers]
        self.all = sorted(places_by_offer, key=lambda place: place.rate.price)
        self._wanted, self._machines = wanted, machines

    def has_machine(self, offer: Offer) -> bool:
        """Return whether a machine of this offer exists now, with room for one node of a trial."""
        return any(
            offer.is_of(machine.labels) and not machine.to_come and machine.fits(self._wanted) > 0
            for machine in self._machines()
        )

    def room(self, place: Place, occupied: OccupiedOffers, *, now: bool = False) -> int:
        """Return how many more trials of the job fit on the machines of this offer.

        Trials of other jobs on these machines are not known, so they are not subtracted. An attempt may therefore have to wait even if
        the result was positive. With `now`, machines that the autoscaler has yet to start are not counted.

        Args:
            place: The offer.
            occupied: How many trials of this job use each offer.
            now: Whether to count existing machines only.
        """
        assert place.offer is not None
        machines = [
            machine
            for machine in self._machines()
            if place.offer.is_of(machine.labels) and not (now and machine.to_come)
        ]
        return trials_that_fit(machines, self._wanted) - occupied.get(place.offer, 0)


class CheapestFree:
    """Placement on the cheapest offer that has room for another trial of the job.

    Machines that the autoscaler may start count as room. If no offer has room, the cheapest offer is chosen, and the attempt waits.
    An attempt waits for a machine of its offer up to `OFFER_WAIT_NS` before it may move to another offer. If the autoscaler has yet to
    start the machine, the attempt waits up to `coming_ns` instead, if that is longer. If the job's other trials take all the room of
    the offer, the attempt may move at once.
    """

    def __init__(self, places: AllowedPlaces, *, coming_ns: int = OFFER_WAIT_NS) -> None:
        self._places, self._coming_ns = places, max(OFFER_WAIT_NS, coming_ns)

    def choose(self, trial: TrialSnapshot) -> Sequence[Place]:
        return sorted(self._places.all, key=lambda place: self._places.room(place, trial.occupied) <= 0)

    def relocation(self, trial: TrialSnapshot) -> Place | None:
        at, waited_ns = trial.at, trial.waited_ns
        if at is None or waited_ns is None:
            return None
        room = self._places.room(at, trial.occupied)
        comes = room > 0 >= self._places.room(at, trial.occupied, now=True)
        if room > 0 and waited_ns < (self._coming_ns if comes else OFFER_WAIT_NS):
            return None
        return self._another(at, trial.occupied)

    def _another(self, at: Place, occupied: OccupiedOffers) -> Place | None:
        """Return the cheapest offer other than `at` that has room for a trial on existing machines.

        Without such an offer, return the next more expensive one for which the autoscaler may start a machine. After the most expensive
        offer, begin again with the cheapest, so that an attempt that waits in vain tries all of them. Return None if no other offer has room.
        """
        others = [place for place in self._places.all if place != at]
        free = next((place for place in others if self._places.room(place, occupied, now=True) > 0), None)
        if free is not None:
            return free
        after = sum(place.rate.price <= at.rate.price for place in others)
        return next(
            (place for place in [*others[after:], *others[:after]] if self._places.room(place, occupied) > 0),
            None,
        )

    def paid(self, place: Place, paid_ns: int, *, gained_ns: int, now: Instant) -> None:
        pass


# The shortest notice before a preemption in any cloud: 15 s for a pod on GKE, 30 s for a machine on Azure and Google, two minutes on AWS.
# The shortest one is always assumed, because a worker cannot find out which of them applies.
NOTICE_NS = 15 * NS


def interruption_risk(market: str, seen: Losses, nodes: int = 1) -> InterruptionRisk:
    """Return the estimated risks that an attempt on this market is preempted or lost.

    Args:
        market: The market.
        seen: How the job's attempts on this market ended. On spot, a lost worker counts as a preemption without notice.
        nodes: The number of nodes of an attempt. It raises the risks, because the interruption of any node ends the attempt.
    """
    preempted, lost = seen.outcomes.get("preempted", 0), seen.outcomes.get("lost", 0)
    if market == "on_demand":
        # Until the first loss, the prior is one crash per machine and month, with the weight of a month of observations. After a loss,
        # this may be too low. From then on, the prior of spot machines is used: it has less weight, so the job's own losses count more.
        prior = Hazard.of_spot(nodes) if preempted + lost else Hazard.of_crashes(nodes)
        return InterruptionRisk(crash=prior.after(seen.machine_ns, preempted + lost))
    notices = Notices()
    notices = Notices(notices.preemptions + preempted + lost, notices.missed + lost)
    hazard = Hazard.of_spot(nodes).after(seen.machine_ns, preempted + lost)
    crash = Hazard.of_crashes(nodes)
    return InterruptionRisk(preemption=hazard, crash=crash, notice_ns=NOTICE_NS, notices=notices)
