"""Where an attempt is to run, and what that costs: the port through which a loop asks, and simple answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tuner.domain.job import Resources
from tuner.domain.money import Rate
from tuner.domain.offer import Offer
from tuner.domain.time import NS, Instant

# So long an attempt waits for a machine of one kind while there should be one of another.
PATIENCE_NS = 60 * NS
EPOCH = Instant(0)
Taken = Mapping[Offer, int]
"""How many machines' worth of each kind the job's other attempts have, or wait for."""


@dataclass(frozen=True, slots=True)
class Place:
    """`offer` None: any machine of the cluster."""

    offer: Offer | None
    rate: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a trial stands of which is asked where it is to run. `now` is of a monotonic clock.

    `at` is where its attempt is, None: it has none. One that waits for a machine there has done so for `waited_ns`; None: it runs.
    `target` is the step up to which it may go now, and `left_ns` the training up to there since its newest checkpoint, None:
    unknown. `unsaved_ns` of that is done. `left_ns` counts with its slowest steps; from where it is now `least_ns` may do.
    `changeover_ns` is what a move takes, `time_ns` what is left of the wall clock (None: it has no limit). `in_vain`: so many
    preemptions in a row brought no newer checkpoint.
    """

    trial: str
    now: Instant = EPOCH
    taken: Taken = field(default_factory=dict)
    at: Place | None = None
    waited_ns: int | None = None
    target: int | None = None
    left_ns: int | None = None
    least_ns: int = 0
    unsaved_ns: int = 0
    changeover_ns: int = 0
    time_ns: int | None = None
    in_vain: int = 0

    @property
    def runs_at(self) -> Offer | None:
        return self.at.offer if self.at is not None and self.waited_ns is None else None


class Placement(Protocol):
    """Asked by the loop's thread in the midst of a transaction: must answer within milliseconds, and not raise."""

    def choose(self, trial: Standing) -> Sequence[Place]:
        """For an attempt that begins: where it may run, best first, never empty. The first that the budget allows is taken."""

    def elsewhere(self, trial: Standing) -> Place | None:
        """For one that waits for a machine, or runs: where it should be instead; None: it stays."""

    def paid(self, place: Place, paid_ns: int, *, gained_ns: int, now: Instant) -> None:
        """An attempt ended. Of the time that was paid for, so much was training that need not be done again."""


@dataclass(frozen=True, slots=True)
class Anywhere:
    """Every machine is as good as any other."""

    rate: Rate

    def choose(self, trial: Standing) -> Sequence[Place]:
        return [Place(None, self.rate)]

    def elsewhere(self, trial: Standing) -> Place | None:
        return None

    def paid(self, place: Place, paid_ns: int, *, gained_ns: int, now: Instant) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Machine:
    """One that attempts could be placed on now; or, `to_come`, one that the cluster's autoscaler starts once something waits for it."""

    labels: Mapping[str, str]
    cpus: float
    gpus: float
    to_come: bool = False

    def fits(self, wanted: Resources) -> int:
        """How many trials of this size it holds."""
        by_cpu = int(self.cpus / wanted.cpus + 1e-9)
        return min(by_cpu, int(self.gpus / wanted.gpus + 1e-9)) if wanted.gpus else by_cpu


class Places:
    """The kinds of machines that a job may have, the cheapest first, and how much room there is on each."""

    def __init__(
        self, offers: Sequence[Offer], wanted: Resources, machines: Callable[[], Sequence[Machine]]
    ) -> None:
        found = [Place(offer, offer.rate(cpus=wanted.cpus, gpus=wanted.gpus)) for offer in offers]
        self.all = sorted(found, key=lambda place: place.rate.price)
        self._wanted, self._machines = wanted, machines

    def of(self, offer: Offer) -> Place:
        return next(place for place in self.all if place.offer == offer)

    def room(self, place: Place, taken: Taken, *, now: bool = False) -> int:
        """For how many more trials of the job; whether other jobs have filled it shows in the wait. `now`: on machines that are there."""
        assert place.offer is not None
        found = [
            one for one in self._machines() if place.offer.is_of(one.labels) and not (now and one.to_come)
        ]
        return sum(machine.fits(self._wanted) for machine in found) - taken.get(place.offer, 0)


class CheapestFree:
    """The cheapest kind of which a machine is there, or may come, that this job has not filled itself. Where none is, the cheapest, for
    which the attempt waits. One that has yet to come is waited for longer, for `coming_ns`."""

    def __init__(
        self, places: Places, *, patience_ns: int = PATIENCE_NS, coming_ns: int = PATIENCE_NS
    ) -> None:
        self._places, self._patience_ns = places, patience_ns
        self._coming_ns = max(patience_ns, coming_ns)

    def choose(self, trial: Standing) -> Sequence[Place]:
        return sorted(self._places.all, key=lambda place: self._places.room(place, trial.taken) <= 0)

    def elsewhere(self, trial: Standing) -> Place | None:
        at, waited_ns = trial.at, trial.waited_ns
        if at is None or waited_ns is None:
            return None
        room = self._places.room(at, trial.taken)
        comes = room > 0 >= self._places.room(at, trial.taken, now=True)
        if room > 0 and waited_ns < (self._coming_ns if comes else self._patience_ns):
            return None
        return self._another(at, trial.taken)

    def _another(self, at: Place, taken: Taken) -> Place | None:
        """The cheapest that is there; or else the next one that may come, so that all have their turn."""
        others = [place for place in self._places.all if place != at]
        free = next((place for place in others if self._places.room(place, taken, now=True) > 0), None)
        if free is not None:
            return free
        after = sum(place.rate.price <= at.rate.price for place in others)
        return next(
            (one for one in [*others[after:], *others[:after]] if self._places.room(one, taken) > 0), None
        )

    def paid(self, place: Place, paid_ns: int, *, gained_ns: int, now: Instant) -> None:
        pass
