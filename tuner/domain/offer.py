"""Offers: the machines on which a job's trials may run, with their prices when the job was admitted.

An attempt pays the price of the machine that it actually runs on.

See docs/money.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tuner.domain.job import Resources
from tuner.domain.money import Price, Rate, trial_rate

MARKET_LABEL = "ray.io/market-type"


def market_selector(market: str) -> tuple[str, str]:
    """Return the label selector of the nodes of a market. Nodes without a market label count as on demand."""
    return MARKET_LABEL, "spot" if market == "spot" else "!spot"


@dataclass(frozen=True, slots=True)
class Offer:
    """A type of node in one market and region, and its price.

    `price` is for the whole node, and `source` is the origin and date of the price. `labels` select the nodes of the offer, in the form
    of Ray's label selectors: a value `!spot` matches any value except `spot`, and a missing label. Without labels, every node matches.
    """

    instance_type: str
    price: Price
    cpus: float
    gpus: float
    market: str = "on_demand"
    region: str | None = None
    source: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    #: The price of the whole node on demand when the job was admitted, for offers on spot. None if it was not known.
    on_demand_price: Price | None = field(default=None, compare=False, metadata={"new": True})

    def rate(self, wanted: Resources) -> Rate:
        """Return the rate of one trial with the resources `wanted`, summed over its nodes."""
        return trial_rate(
            node_price=self.price,
            node_cpus=self.cpus,
            node_gpus=self.gpus,
            cpus=wanted.cpus,
            gpus=wanted.gpus,
            nodes=wanted.nodes,
        )

    def is_of(self, labels: Mapping[str, str]) -> bool:
        """Return whether a node with these labels matches this offer."""
        return all(
            labels.get(name) != value[1:] if value.startswith("!") else labels.get(name) == value
            for name, value in self.labels
        )


@dataclass(frozen=True, slots=True)
class WorkerMachine:
    """A machine on which attempts can be placed."""

    labels: Mapping[str, str]
    cpus: float
    gpus: float
    to_come: bool = False  #: Whether the machine does not exist yet. The autoscaler starts it once an attempt waits for it.
    #: If an attempt on several nodes is placed here, the machines of its other nodes.
    others: tuple["WorkerMachine", ...] = ()

    def fits(self, wanted: Resources) -> int:
        """Return how many workers of this size the machine has room for at once.

        A worker runs one trial, or up to `pack` trials. If each trial runs on several nodes, this is the number of trials that can have one
        of their nodes on the machine.
        """
        by_cpu = int(self.cpus / wanted.cpus + 1e-9)
        return min(by_cpu, int(self.gpus / wanted.gpus + 1e-9)) if wanted.gpus else by_cpu


def trials_that_fit(machines: Iterable[WorkerMachine], wanted: Resources) -> int:
    """Return how many trials of this size can run on the machines at once. The nodes of a trial are on different machines.

    If trials share workers, count `pack` trials for each worker that fits.

    >>> trials_that_fit([WorkerMachine({}, 4, 0), WorkerMachine({}, 1, 0)], Resources(cpus=1, nodes=2))
    1
    >>> trials_that_fit([WorkerMachine({}, 4, 0), WorkerMachine({}, 1, 0)], Resources(cpus=2, pack=3))
    6
    """
    places = [machine.fits(wanted) for machine in machines]
    count = sum(places) // wanted.nodes
    # The nodes of a trial are on different machines. For `count` trials, a machine can therefore use at most `count` of its places.
    while (useful := sum(min(place, count) for place in places) // wanted.nodes) < count:
        count = useful
    return count * wanted.pack
