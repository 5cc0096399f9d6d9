"""Run a cluster of several nodes on this machine, and preempt one of its nodes."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

import psutil

from tuner.cluster import preemption
from tuner.cluster.cluster_file import ClusterFile
from tuner.cluster.cluster_file import KeptNode as KeptNode
from tuner.cluster.head import LocalHead
from tuner.cluster.local_cluster import TURN_S, LocalCluster
from tuner.cluster.local_node import NodeSpec
from tuner.cluster.local_watch import Metadata
from tuner.cluster.nodes import Market
from tuner.domain.errors import Conflict, NotFound
from tuner.domain.time import NS
from tuner.settings import Settings

INSTANCE_TYPE = "local"


@dataclass(frozen=True, slots=True)
class LocalClusterPlan:
    """The nodes of a local cluster."""

    spot: int
    on_demand: int
    cpus_per_node: int
    gpus_per_node: int
    replace_after_s: float | None  #: Seconds after which a lost node is replaced; None if it is not.


def keep(
    settings: Settings,
    plan: LocalClusterPlan,
    *,
    tell: Callable[[Sequence[KeptNode], list[str]], None],
    over: threading.Event,
) -> None:
    """Run a local cluster until `over` is set.

    Args:
        tell: Called with all nodes and a list of changes, when the nodes have joined and after each change.

    Raises:
        Conflict: This home has a cluster already or uses another one.
        RayUnavailable: The cluster does not start.
    """
    if settings.ray_address:
        raise Conflict(
            "TUNER_RAY_ADDRESS names a cluster that is there; a local one is for a home without it"
        )
    settings.make_home()
    metadata = Metadata(settings.cloud, settings.metadata_url)
    nodes = specs(settings, plan)
    cluster = LocalCluster(settings.home, nodes, metadata, replace_after_s=plan.replace_after_s)
    with cluster.kept():
        tell(cluster.kept_nodes(), [])
        while not over.wait(TURN_S):
            if changes := cluster.turn():
                tell(cluster.kept_nodes(), changes)


def specs(settings: Settings, plan: LocalClusterPlan) -> list[NodeSpec]:
    """Return the nodes of a plan.

    Each gets an equal share of this machine's memory; one more share is left for everything else.
    """
    wanted: list[tuple[str, Market]] = [
        *((f"spot-{number}", "spot") for number in range(1, plan.spot + 1)),
        *((f"on-demand-{number}", "on_demand") for number in range(1, plan.on_demand + 1)),
    ]
    share = psutil.virtual_memory().total // (len(wanted) + 1)
    return [
        NodeSpec(
            name,
            market,
            INSTANCE_TYPE,
            _price(settings, plan, market),
            plan.cpus_per_node,
            plan.gpus_per_node,
            share,
        )
        for name, market in wanted
    ]


def _price(settings: Settings, plan: LocalClusterPlan, market: Market) -> Decimal:
    named = settings.node_price(INSTANCE_TYPE, market)
    size = {"cpus": plan.cpus_per_node, "gpus": plan.gpus_per_node}
    return Decimal(str(settings.local_price(**size, market=market)[0] if named is None else named))


def preempt(settings: Settings, name: str, *, notice_ns: int, say: Callable[[str], None]) -> None:
    """Send a preemption notice to a node and remove it `notice_ns` later, or at once if that is 0. Block until it is gone.

    If this call is interrupted after the notice was sent, the node is killed at once, because a notice cannot be withdrawn.

    Raises:
        NotFound: Not exactly one node has this name.
        Conflict: No local cluster runs, or the node is not alive.
        RayUnavailable: The notice could not be given.
    """
    node = _find(settings, name)
    deadline = preemption.announce(LocalHead(settings.home), node, notice_ns) if notice_ns else None
    try:
        if deadline is not None:
            say(f"{node.name} has been told that it goes in {notice_ns / NS:g} s")
            preemption.wait_until(node, deadline)
    finally:
        killed = preemption.kill(node)
    say(f"{node.name} is gone ({killed} processes killed)" if killed else f"{node.name} had ended by itself")


def _find(settings: Settings, name: str) -> KeptNode:
    """Find a node by its name or by the beginning of its id."""
    kept = ClusterFile(settings.home).read()
    if kept is None:
        raise Conflict(
            f"no `tuner cluster` runs for {settings.home}: start one, or set TUNER_HOME to its home"
        )
    matching_nodes = [
        n for n in kept.nodes if n.name == name or (len(name) >= 4 and n.node_id.startswith(name))
    ]
    if len(matching_nodes) != 1:
        there = ", ".join(node.name for node in kept.nodes)
        raise NotFound(f"there is no node {name!r}; there is {there}")
    if matching_nodes[0].state != "alive":
        raise Conflict(f"{matching_nodes[0].name} is {matching_nodes[0].state}")
    return matching_nodes[0]
