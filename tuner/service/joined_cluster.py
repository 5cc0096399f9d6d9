"""Announce to Ray that the operator will take away a node of a cluster that tuner did not start."""

import contextlib
import os
import sys
import time
from collections.abc import Callable

from tuner.cluster.dashboard import Dashboard, cluster_token, dashboard_url
from tuner.cluster.jobs import RayJobs
from tuner.cluster.nodes import Node, nodes
from tuner.domain.errors import Conflict, NotFound, Unavailable
from tuner.domain.time import NS
from tuner.service.bootstrap import system_now
from tuner.service.cluster import import_path
from tuner.settings import Settings

LOOK_S = 0.2


def preempt(settings: Settings, name: str, *, notice_ns: int, say: Callable[[str], None]) -> None:
    """Drain a node: its trials save checkpoints and continue elsewhere, and Ray places nothing more on it.

    The Ray node ends once nothing runs on it. The operator must take away the machine itself. This call blocks until
    the node was notified.

    Raises:
        NotFound: Not exactly one living node has this name.
        Conflict: `notice_ns` is 0, or the node is the head.
        Unavailable: The cluster does not answer, or the node could not be notified.
    """
    if not notice_ns:
        raise Conflict("the machine is not ours to take: say with --notice how long it will still be there")
    deadline = system_now() + notice_ns
    with contextlib.closing(Dashboard(dashboard_url(settings.ray_address), cluster_token())) as dashboard:
        node, jobs = _find(dashboard, name), RayJobs(dashboard)
        if node.is_head:
            raise Conflict(f"{name} is the head, with which the cluster would end: it cannot be drained")
        job = f"preempt-{node.id[:12]}-{deadline}"
        program = f"{sys.executable} -m tuner.cluster.notify_node"
        env = {"PYTHONPATH": os.pathsep.join(import_path())}
        jobs.submit(job, f"exec {program} --node-id {node.id} --deadline {deadline}", env=env)
        while (status := jobs.status(job)) in ("pending", "running"):
            time.sleep(LOOK_S)
        if status != "succeeded":
            output = (jobs.logs(job) or jobs.message(job) or f"its job {job} is {status}").strip()
            raise Unavailable(f"{name} did not take the order: {output.splitlines()[-1]}")
    say(f"{name} has been told that it goes in {(deadline - system_now()) / NS:.1f} s")


def _find(dashboard: Dashboard, name: str) -> Node:
    """Find a living node by its name or by the beginning of its id."""
    there = [node for node in nodes(dashboard) if node.alive]
    matching_nodes = [
        node for node in there if node.name == name or (len(name) >= 4 and node.id.startswith(name))
    ]
    if len(matching_nodes) != 1:
        known = ", ".join(f"{node.name} ({node.id[:12]})" for node in there)
        raise NotFound(f"{len(matching_nodes)} living nodes are {name!r}; there is {known}")
    return matching_nodes[0]
