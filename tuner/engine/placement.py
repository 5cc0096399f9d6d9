"""Where an attempt is to run, and what that costs: the port through which a loop asks, and a simple answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.domain.job import Resources
from tuner.domain.money import Rate
from tuner.domain.offer import Offer
from tuner.domain.time import NS

# So long an attempt waits for a machine of one kind while there should be one of another.
PATIENCE_NS = 60 * NS
Taken = Mapping[Offer, int]
"""How many machines' worth of each kind the job's other attempts have, or wait for."""


@dataclass(frozen=True, slots=True)
class Place:
    """`offer` None: any machine of the cluster."""

    offer: Offer | None
    rate: Rate


class Placement(Protocol):
    """Asked by the loop's thread in the midst of a transaction: must answer within milliseconds, and not raise."""

    def choose(self, trial: str, taken: Taken) -> Sequence[Place]:
        """For an attempt that begins: where it may run, best first, never empty. The first that the budget allows is taken."""

    def elsewhere(self, trial: str, at: Place, waited_ns: int, taken: Taken) -> Place | None:
        """For one that has waited for a machine for so long; None: it waits on."""


@dataclass(frozen=True, slots=True)
class Anywhere:
    """Every machine is as good as any other."""

    rate: Rate

    def choose(self, trial: str, taken: Taken) -> Sequence[Place]:
        return [Place(None, self.rate)]

    def elsewhere(self, trial: str, at: Place, waited_ns: int, taken: Taken) -> Place | None:
        return None


@dataclass(frozen=True, slots=True)
class Machine:
    """One that attempts could be placed on now."""

    labels: Mapping[str, str]
    cpus: float
    gpus: float

    def fits(self, wanted: Resources) -> int:
        """How many trials of this size it holds."""
        by_cpu = int(self.cpus / wanted.cpus + 1e-9)
        return min(by_cpu, int(self.gpus / wanted.gpus + 1e-9)) if wanted.gpus else by_cpu


class CheapestFree:
    """The cheapest kind of which a machine is there that this job has not filled itself. Where none is, the cheapest, for which
    the attempt waits; whether other jobs have filled it shows in the wait."""

    def __init__(
        self,
        offers: Sequence[Offer],
        wanted: Resources,
        machines: Callable[[], Sequence[Machine]],
        *,
        patience_ns: int = PATIENCE_NS,
    ) -> None:
        places = [Place(offer, offer.rate(cpus=wanted.cpus, gpus=wanted.gpus)) for offer in offers]
        self._places = sorted(places, key=lambda place: place.rate.price)
        self._wanted, self._machines, self._patience_ns = wanted, machines, patience_ns

    def choose(self, trial: str, taken: Taken) -> Sequence[Place]:
        return sorted(self._places, key=lambda place: self._room(place, taken) <= 0)

    def elsewhere(self, trial: str, at: Place, waited_ns: int, taken: Taken) -> Place | None:
        if waited_ns < self._patience_ns and self._room(at, taken) > 0:
            return None
        free = (place for place in self._places if place != at and self._room(place, taken) > 0)
        return next(free, None)

    def _room(self, place: Place, taken: Taken) -> int:
        assert place.offer is not None
        found = [machine for machine in self._machines() if place.offer.is_of(machine.labels)]
        return sum(machine.fits(self._wanted) for machine in found) - taken.get(place.offer, 0)
