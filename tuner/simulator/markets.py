"""The markets of a simulated job: spot machines, on-demand machines that are always available, and their prices."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.domain.job import Resources
from tuner.domain.money import Rate
from tuner.domain.offer import Offer, WorkerMachine
from tuner.domain.time import Instant
from tuner.driver.fallback import placement_of
from tuner.driver.placement import KIND_WAIT_NS, AllowedPlaces, Placement
from tuner.simulator.fleet import Fleet, SimulatedWorker
from tuner.simulator.journal import Committed, Tables
from tuner.store.evidence import Losses

LABEL = "ray.io/market-type"
ONE = Resources()  # each trial takes a whole machine


@dataclass(frozen=True, slots=True)
class Markets:
    """The offers that a simulated job may use."""

    offers: tuple[Offer, ...]  #: One per market that the job may use, spot first.
    spot_wait_ns: int = (
        KIND_WAIT_NS  #: A trial falls back to on-demand after this time without a spot machine.
    )
    wanted: Resources = ONE  #: The resources of a trial, which are those of a whole machine.

    @property
    def are_several(self) -> bool:
        return len(self.offers) > 1

    @property
    def rate(self) -> Rate:
        """The rate of the most expensive offer. The job's decisions estimate costs with it."""
        rates = [offer.rate(self.wanted) for offer in self.offers]
        return max(rates, key=lambda rate: rate.price)

    def workers(self, count: int) -> list[SimulatedWorker]:
        """Return `count` workers per offer."""
        return [SimulatedWorker(offer) for offer in self.offers for _ in range(count)]

    def placement(self, fleet: Fleet) -> Placement:
        """Return the placement policy of a real driver, for the machines of the fleet that are up."""
        return placement_of(
            AllowedPlaces(self.offers, self.wanted, lambda: machines(fleet.workers, self.wanted)),
            spot_wait_ns=self.spot_wait_ns,
        )


def machines(workers: Sequence[SimulatedWorker], wanted: Resources = ONE) -> list[WorkerMachine]:
    """Return the machines on which attempts may be placed, as Ray would list them."""
    there = (worker.offer for worker in workers if worker.offer is not None and worker.there)
    return [WorkerMachine(_labels(offer), wanted.cpus, wanted.gpus) for offer in there]


def _labels(offer: Offer) -> dict[str, str]:
    return {name: value for name, value in offer.labels if not value.startswith("!")}


@dataclass(slots=True)
class LossesSeen:
    """Count how the attempts of a job ended and how long they held machines, as `tuner.store.evidence` does from the database."""

    _machine_ns: int = 0
    _outcomes: dict[str, int] = field(default_factory=dict)
    _since: dict[tuple[str, int], Instant] = field(default_factory=dict)

    def recorded(self, tables: Tables, committed: Committed) -> None:
        for row in committed.attempts:
            key = row.trial, row.attempt
            if row.ended_at is None or row.end is None:
                if row.assigned_at is not None:
                    self._since[key] = row.assigned_at
                continue
            since = self._since.pop(key, row.ended_at)
            self._machine_ns += max(0, row.ended_at - since)
            self._outcomes[row.end] = self._outcomes.get(row.end, 0) + 1

    def at(self, now: Instant) -> Losses:
        machine_ns = self._machine_ns + sum(max(0, now - since) for since in self._since.values())
        return Losses(machine_ns, dict(self._outcomes))
