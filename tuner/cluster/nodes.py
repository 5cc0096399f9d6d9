"""List the machines of a cluster, with the market, machine type and price from their Ray labels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any

from tuner.cluster.dashboard import Dashboard
from tuner.domain.listing import Market
from tuner.domain.offer import MARKET_LABEL

PRICE = "usd-per-hour"
INSTANCE_TYPE = ("node.kubernetes.io/instance-type", "ray.io/instance-type", "instance-type")
REGION = ("topology.kubernetes.io/region", "ray.io/availability-region", "ray.io/region", "region")
# The label with the zone's id comes before those with the zone's name, because on AWS the same name means different zones in different accounts.
ZONE = ("topology.k8s.aws/zone-id", "topology.kubernetes.io/zone", "ray.io/availability-zone", "zone")
LOCAL = "local"
# Ray's name of each market.
RAY_MARKETS: Mapping[Market, str] = {"on_demand": "on-demand", "spot": "spot"}
USD_PER_HOUR_MAX = 100_000


def first(labels: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the name and value of the first label in `names` that is set, or None if none is."""
    return next(((name, labels[name]) for name in names if labels.get(name)), None)


def market_of(labels: Mapping[str, str]) -> Market:
    """Return the node's market.

    A node without a market label counts as on demand, because it is not expected to be taken away.
    """
    return "spot" if labels.get(MARKET_LABEL) == RAY_MARKETS["spot"] else "on_demand"


def instance_type_of(labels: Mapping[str, str]) -> str:
    label = first(labels, INSTANCE_TYPE)
    return label[1] if label else LOCAL


def region_of(labels: Mapping[str, str]) -> str | None:
    label = first(labels, REGION)
    return label[1] if label else None


def zone_of(labels: Mapping[str, str]) -> str | None:
    label = first(labels, ZONE)
    return label[1] if label else None


def corrected(labels: Mapping[str, str], facts: Mapping[str, str]) -> dict[str, str]:
    """Return the labels, corrected by the facts that the machine's cloud reports, because the cloud bills by these facts.

    `facts` may contain `instance_type`, `market`, `region` and `zone`. If they show another market, machine type or region than the
    labels, the price label is dropped, because it is the price of another machine.
    """
    names = {"instance_type": INSTANCE_TYPE[0], "region": REGION[0], "zone": ZONE[0]}
    billed = {**labels, **{name: facts[fact] for fact, name in names.items() if facts.get(fact)}}
    if facts.get("market") in ("spot", "on_demand"):
        billed[MARKET_LABEL] = RAY_MARKETS["spot" if facts["market"] == "spot" else "on_demand"]
    labelled, region = first(labels, INSTANCE_TYPE), region_of(labels)
    if (
        market_of(labels) != market_of(billed)
        or (labelled is not None and labelled[1] != instance_type_of(billed))
        or (region is not None and region.casefold() != (facts.get("region") or region).casefold())
    ):
        billed.pop(PRICE, None)
    return billed


def usd_per_hour(labels: Mapping[str, str]) -> Decimal | None:
    """Return the price in the labels in USD per hour, rounded up to the micro-dollar, or None if it is missing or not a valid price."""
    try:
        price = Decimal(labels.get(PRICE, ""))
    except InvalidOperation:
        return None
    if not price.is_finite() or not 0 <= price <= USD_PER_HOUR_MAX:
        return None
    return price.quantize(Decimal("0.000001"), ROUND_CEILING)


# The most nodes that Ray's state API returns. Our clusters are far smaller.
NODES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Node:
    """A machine and its total resources, both used and free."""

    id: str
    cpus: float
    gpus: float
    memory_bytes: int  #: The memory that Ray may assign to work on the node.
    labels: Mapping[str, str] = field(default_factory=dict)
    alive: bool = True
    is_head: bool = False
    name: str = ""

    @property
    def market(self) -> Market:
        return market_of(self.labels)

    @property
    def instance_type(self) -> str:
        return instance_type_of(self.labels)

    @property
    def region(self) -> str | None:
        return region_of(self.labels)

    @property
    def usd_per_hour(self) -> Decimal | None:
        """The price in the node's own labels, in USD per hour. None if they have no valid price."""
        return usd_per_hour(self.labels)


def nodes(dashboard: Dashboard) -> list[Node]:
    """Return all nodes that the cluster knows, including dead ones. Raise RayUnavailable if it does not answer."""
    answer = dashboard.get(f"/api/v0/nodes?detail=1&limit={NODES_MAX}")
    return [_node(row) for row in answer["data"]["result"]["result"]]


def _node(row: Mapping[str, Any]) -> Node:
    total = row.get("resources_total") or {}
    return Node(
        id=str(row["node_id"]),
        cpus=float(total.get("CPU", 0)),
        gpus=float(total.get("GPU", 0)),
        memory_bytes=int(total.get("memory", 0)),
        labels=dict(row.get("labels") or {}),
        alive=row.get("state") == "ALIVE",
        is_head=bool(row.get("is_head_node")),
        name=str(row.get("node_name") or ""),
    )
