"""List the machines of a cluster.

The list is used to refuse a request that fits on no node, which would wait indefinitely.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from tuner.engine.ray_cluster import labels as its
from tuner.engine.ray_cluster.dashboard import Dashboard

# The limit of Ray's state API. Our clusters are far smaller.
NODES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Node:
    """A machine and its total resources, both used and free."""

    id: str
    cpus: float
    gpus: float
    memory_bytes: int  #: The memory that Ray may assign.
    labels: Mapping[str, str] = field(default_factory=dict)
    alive: bool = True
    is_head: bool = False
    name: str = ""

    @property
    def market(self) -> its.Market:
        return its.market_of(self.labels)

    @property
    def instance_type(self) -> str:
        return its.instance_type_of(self.labels)

    @property
    def region(self) -> str | None:
        return its.region_of(self.labels)

    @property
    def usd_per_hour(self) -> Decimal | None:
        """The price in the node's own labels."""
        return its.usd_per_hour(self.labels)


def nodes(dashboard: Dashboard) -> list[Node]:
    """Return all nodes that the cluster knows, including dead ones. Raise RayUnavailable if it does not answer."""
    answer = dashboard.get(f"/api/v0/nodes?detail=1&limit={NODES_MAX}")
    return [_node(row) for row in answer["data"]["result"]["result"]]


def fits(found: Iterable[Node], *, cpus: float, gpus: float, memory_bytes: int = 0) -> bool:
    """Return whether some living node is large enough for a worker of this size."""
    return any(
        node.alive and node.cpus >= cpus and node.gpus >= gpus and node.memory_bytes >= memory_bytes
        for node in found
    )


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
