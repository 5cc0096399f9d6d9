"""Run a cluster of several nodes on this machine, and preempt a node of this cluster or of a cluster that tuner did not start."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

import psutil

from tuner.cluster import simulated_preemption
from tuner.cluster.cluster_file import ClusterFile
from tuner.cluster.cluster_file import KeptNode as KeptNode
from tuner.cluster.dashboard import Dashboard, RayUnavailable, cluster_token, dashboard_url
from tuner.cluster.head import LocalHead
from tuner.cluster.jobs import RayJobs
from tuner.cluster.local_cluster import TURN_S, LocalCluster
from tuner.cluster.local_node import NodeSpec
from tuner.cluster.local_watch import Metadata
from tuner.cluster.nodes import Node, nodes
from tuner.domain.errors import Conflict, NotFound, Unavailable
from tuner.domain.listing import Market
from tuner.domain.money import MICRO
from tuner.domain.time import NS, system_now
from tuner.service.cluster import import_path
from tuner.service.node_prices import named_price, price_by_size
from tuner.settings import Settings

INSTANCE_TYPE = "local"
LOOK_S = 0.2  # Seconds between checks of the Ray job that notifies a node.


@dataclass(frozen=True, slots=True)
class LocalClusterPlan:
    """The number and size of the nodes of a local cluster."""

    spot: int  #: Number of spot nodes.
    on_demand: int  #: Number of on-demand nodes.
    cpus_per_node: int
    gpus_per_node: int
    replace_after_s: float | None  #: Seconds after which a lost node is replaced; None if it is not.


def keep(
    settings: Settings,
    plan: LocalClusterPlan,
    *,
    on_change: Callable[[Sequence[KeptNode], list[str]], None],
    over: threading.Event,
) -> None:
    """Run a local cluster until `over` is set.

    Args:
        on_change: Called when all nodes have joined, and after each change of a node or of the head. The first argument is all nodes.
            The second has one text for users about each change.
        over: Set this event to end the cluster.

    Raises:
        Conflict: A local cluster already runs for this home, or TUNER_RAY_ADDRESS names another cluster.
        RayUnavailable: The cluster does not start.
    """
    if settings.ray_address:
        raise Conflict("TUNER_RAY_ADDRESS names an existing cluster; unset it to run a local cluster")
    settings.make_home()
    metadata = Metadata(settings.cloud, settings.metadata_url)
    cluster = LocalCluster(
        settings.home, specs(settings, plan), metadata, replace_after_s=plan.replace_after_s, over=over
    )
    try:
        with cluster.kept():
            on_change(cluster.kept_nodes(), [])
            while not over.wait(TURN_S):
                if changes := cluster.turn():
                    on_change(cluster.kept_nodes(), changes)
    except RayUnavailable:
        if not over.is_set():
            raise


def specs(settings: Settings, plan: LocalClusterPlan) -> list[NodeSpec]:
    """Return a description of each node of a plan.

    With n nodes, each node gets 1 / (n + 1) of this machine's memory. The same share remains for other processes.
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
    price, _ = named_price(settings, INSTANCE_TYPE, market) or price_by_size(
        cpus=plan.cpus_per_node, gpus=plan.gpus_per_node, market=market
    )
    return Decimal(price.micro_usd_per_hour) / MICRO


def preempt(settings: Settings, name: str, *, notice_ns: int, say: Callable[[str], None]) -> None:
    """Preempt a node of the local cluster, or send a preemption notice to a node of the cluster that TUNER_RAY_ADDRESS names.

    After a notice with TUNER_RAY_ADDRESS, the operator must take away the node's machine.

    Args:
        name: The name of the node, or at least the first 4 characters of its id.
        notice_ns: Nanoseconds from the notice until the node is taken away. 0 means no notice, which only the local cluster allows.
        say: Called with each line of progress.

    Raises:
        NotFound: No node or more than one node matches the name.
        Conflict: No local cluster runs, or the node is not alive. With TUNER_RAY_ADDRESS: the node is the head, or `notice_ns` is 0.
        Unavailable: The node could not be notified, or the cluster that TUNER_RAY_ADDRESS names does not answer.
    """
    (_drain if settings.ray_address else _kill)(settings, name, notice_ns=notice_ns, say=say)


def _kill(settings: Settings, name: str, *, notice_ns: int, say: Callable[[str], None]) -> None:
    """Send a preemption notice to a node of the local cluster, and kill the node `notice_ns` later. Block until it is gone.

    If `notice_ns` is 0, kill the node at once without a notice. If this call is interrupted after the notice was sent, the
    node is killed at once, because a notice cannot be withdrawn.

    Raises:
        NotFound: No node or more than one node matches the name.
        Conflict: No local cluster runs, or the node is not alive.
        RayUnavailable: The node could not be notified.
    """
    node = _kept(settings, name)
    deadline = simulated_preemption.announce(LocalHead(settings.home), node, notice_ns) if notice_ns else None
    try:
        if deadline is not None:
            say(f"{node.name} was notified that it will be taken away in {notice_ns / NS:g} s")
            simulated_preemption.wait_until(node, deadline)
    finally:
        killed = simulated_preemption.kill(node)
    say(f"{node.name} is gone ({killed} processes killed)" if killed else f"{node.name} had already ended")


def _kept(settings: Settings, name: str) -> KeptNode:
    kept = ClusterFile(settings.home).read()
    if kept is None:
        raise Conflict(
            f"no `tuner cluster` runs for {settings.home}: start a cluster, or set TUNER_HOME to the home of a running one"
        )
    matching = [node for node in kept.nodes if _is_named(name, node.name, node.node_id)]
    if len(matching) != 1:
        there = ", ".join(node.name for node in kept.nodes)
        raise NotFound(f"{name!r} does not match exactly one node; name one of these nodes: {there}")
    if matching[0].state != "alive":
        raise Conflict(
            f"the node {matching[0].name} is {matching[0].state}; only a node that is alive can be preempted"
        )
    return matching[0]


def _drain(settings: Settings, name: str, *, notice_ns: int, say: Callable[[str], None]) -> None:
    """Drain a node: its trials save checkpoints and continue on other nodes, and Ray places no new work on it.

    This call blocks only until the node was notified. Ray ends the node once nothing runs on it, but does not stop the
    machine: the operator must take the machine away.

    Raises:
        NotFound: No node that is alive matches the name, or more than one does.
        Conflict: `notice_ns` is 0, or the node is the head.
        Unavailable: The cluster does not answer, or the node could not be notified.
    """
    if not notice_ns:
        raise Conflict(
            "on the cluster that TUNER_RAY_ADDRESS names, this command only sends a notice and does not remove the machine: "
            "set --notice to the time until you remove it, more than 0s"
        )
    deadline = system_now() + notice_ns
    with contextlib.closing(Dashboard(dashboard_url(settings.ray_address), cluster_token())) as dashboard:
        node, jobs = _living(dashboard, name), RayJobs(dashboard)
        if node.is_head:
            raise Conflict(
                f"{name} is the head, which cannot be drained because the whole cluster would end; name another node"
            )
        job = f"preempt-{node.id[:12]}-{deadline}"
        program = f"{sys.executable} -m tuner.cluster.notify_node"
        env = {"PYTHONPATH": os.pathsep.join(import_path())}
        jobs.submit(job, f"exec {program} --node-id {node.id} --deadline {deadline}", env=env)
        while (status := jobs.status(job)) in ("pending", "running"):
            time.sleep(LOOK_S)
        if status != "succeeded":
            output = (jobs.logs(job) or jobs.message(job) or f"its job {job} is {status}").strip()
            raise Unavailable(f"{name} could not be notified: {output.splitlines()[-1]}")
    say(f"{name} was notified that it will be preempted in {(deadline - system_now()) / NS:.1f} s")


def _living(dashboard: Dashboard, name: str) -> Node:
    there = [node for node in nodes(dashboard) if node.alive]
    matching = [node for node in there if _is_named(name, node.name, node.id)]
    if len(matching) != 1:
        known = ", ".join(f"{node.name} ({node.id[:12]})" for node in there)
        raise NotFound(f"{len(matching)} nodes match {name!r}; name one of the nodes that are alive: {known}")
    return matching[0]


def _is_named(given: str, name: str, id_: str) -> bool:
    """Return whether `given` is the name of a node, or at least the first 4 characters of its id."""
    return given == name or (len(given) >= 4 and id_.startswith(given))
