"""Look up machines of the cluster: the machines that can get work, the machine of an attempt, and whether a machine was taken away."""

import atexit
import contextlib
import logging
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray._private.state import state as cluster_state
from ray.core.generated.common_pb2 import NodeDeathInfo
from ray.core.generated.gcs_pb2 import ActorTableData

from tuner.cluster.node_types import NodeTypes
from tuner.cluster.nodes import corrected
from tuner.domain.offer import MARKET_LABEL, WorkerMachine
from tuner.driver.messages import WorkerMessage

log = logging.getLogger("tuner.driver")


class AssignedMachines:
    """Look up the machines that attempts were given. Only the driver's thread may use it.

    If Ray does not answer, the methods return None, and `note_message` looks the machine up again at the worker's next message.
    """

    def __init__(self) -> None:
        # The nodes as Ray describes them, by Ray's node id. While a node lives, neither its labels nor its resources change.
        self._nodes: dict[str, WorkerMachine] = {}
        # The facts that the cloud reports about each node (machine type, market, region, zone), by Ray's node id.
        self._facts: dict[str, Mapping[str, str]] = {}
        # The nodes of each attempt, and the facts about each node that were used when its machine was last returned.
        self._known: dict[tuple[str, int], tuple[list[str], list[Mapping[str, str]]]] = {}

    def machine_of(self, trial: str, attempt: int, nodes: Sequence[str]) -> WorkerMachine | None:
        """Return the machine that a new attempt was given, or None if Ray does not answer.

        Call it before the attempt begins.

        Args:
            trial: The trial.
            attempt: The number of its attempt.
            nodes: Ray's ids of its worker's nodes. Empty if Ray did not answer.
        """
        with contextlib.suppress(Exception):
            if (machine := self._machine_of(trial, attempt, nodes)) is not None:
                return machine
        log.warning(
            "%s: Ray did not describe the machine of the attempt; the lookup is repeated with the worker's next message",
            trial,
        )
        return None

    def note_message(self, progress: WorkerMessage) -> WorkerMachine | None:
        """Return the attempt's machine if the message adds facts about it. Otherwise return None."""
        machines = [(progress.node, progress.machine), *progress.others]
        self._facts |= {node: facts for node, facts in machines if facts}
        known, used = self._known.get((progress.trial, progress.attempt), ([], []))
        # Keep the nodes that are known from the assignment. The worker's message lacks those that have not answered the worker yet.
        nodes = list(dict.fromkeys([*known, *(node for node, _ in machines)]))
        if not progress.node or (nodes == known and used == self._facts_of(nodes)):
            return None
        with contextlib.suppress(Exception):
            return self._machine_of(progress.trial, progress.attempt, nodes)
        return None

    def forget(self, trial: str, attempt: int) -> None:
        """Forget an attempt that ended."""
        self._known.pop((trial, attempt), None)

    def _machine_of(self, trial: str, attempt: int, node_ids: Sequence[str]) -> WorkerMachine | None:
        if any(node_id not in self._nodes for node_id in node_ids):
            self._nodes = {node["NodeID"]: _machine(node) for node in ray.nodes()}
        if not node_ids or not all(node_id in self._nodes for node_id in node_ids):
            return None
        facts = self._facts_of(node_ids)
        self._known[trial, attempt] = list(node_ids), facts
        machines = [self._nodes[node_id] for node_id in node_ids]
        first, *others = (
            replace(machine, labels=corrected(machine.labels, its_facts))
            for machine, its_facts in zip(machines, facts, strict=True)
        )
        return replace(first, others=tuple(others))

    def _facts_of(self, node_ids: Iterable[str]) -> list[Mapping[str, str]]:
        return [self._facts.get(node_id, {}) for node_id in node_ids]


def machine_of_node(node_id: str, facts: Mapping[str, str]) -> WorkerMachine | None:
    """Return the machine of a node of the cluster, or None if the cluster has no such node.

    Args:
        node_id: Ray's id of the node.
        facts: The facts that the cloud reports about the machine. They take the place of its labels.
    """
    for node in ray.nodes():
        if node["NodeID"] == node_id:
            machine = _machine(node)
            return replace(machine, labels=corrected(machine.labels, facts))
    return None


FRESH_S = 1.0
HEAD = "node:__internal_head__"


class ClusterMachines:
    """A list of the cluster's machines, which a thread refreshes about once a second. A call of the object returns the list.

    The call does not wait for Ray, because callers are within a transaction. While Ray's head does not answer, which can take a
    minute, the list does not change. Call `ray.init` before creating the object.

    The list has no nodes that drain or are known to be dead. It includes machines that the autoscaler may still start: `types` are the
    node types that it may start.
    """

    def __init__(self, types: NodeTypes) -> None:
        self._types = types
        self._machines = _list_machines(self._types)
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="machines", daemon=True)
        self._watcher.start()
        # Stop the thread before Ray's own exit handler closes the connection that it uses. Handlers run in reverse order of registration.
        atexit.register(self.close)

    def __call__(self) -> list[WorkerMachine]:
        return self._machines

    def _watch(self) -> None:
        while not self._over.wait(FRESH_S):
            with contextlib.suppress(Exception):  # if Ray's head does not answer, the next pass asks again
                self._machines = _list_machines(self._types)

    def close(self) -> None:
        self._over.set()
        self._watcher.join(FRESH_S)


def _list_machines(types: NodeTypes) -> list[WorkerMachine]:
    leaving = cluster_state.get_draining_nodes()
    alive = [node for node in ray.nodes() if node["Alive"]]
    # A draining node gets no work, but it still counts toward the autoscaler's limit on new machines.
    workers = [_machine(node) for node in alive if HEAD not in node["Resources"]]
    there = [_machine(node) for node in alive if node["NodeID"] not in leaving]
    return [*there, *types.machines_to_come(workers)]


def _machine(node: Mapping[str, Any]) -> WorkerMachine:
    return WorkerMachine(node["Labels"], node["Resources"].get("CPU", 0), node["Resources"].get("GPU", 0))


REACH_S = 1.0


def was_preempted(error: Exception | None, node_id: str) -> bool:
    """Return whether a worker's death counts as a preemption.

    A death counts if the worker's node drains or was drained for a preemption, even if Ray does not know of the node's death yet. It
    also counts if the node is a spot machine that disappeared without notice. To find out whether a spot machine still exists, the
    function connects to it, which takes up to a second if nothing answers.

    Args:
        error: The error that Ray reported for the worker.
        node_id: Ray's id of the worker's node. Empty if it is not known.
    """
    if getattr(error, "preempted", False):
        return True
    node = next((node for node in ray.nodes() if node["NodeID"] == node_id), None)
    if node is None:
        return False
    if (
        node_id in cluster_state.get_draining_nodes()
        or node["DeathReason"] == NodeDeathInfo.AUTOSCALER_DRAIN_PREEMPTED
    ):
        return True
    return node["Labels"].get(MARKET_LABEL) == "spot" and not (node["Alive"] and _answers(node))


def nodes_of(error: Exception | None, actor: Any = None, *, several: bool = False) -> list[str]:
    """Return Ray's ids of a worker's nodes, the node of its actor first. Return an empty list if Ray does not know them.

    This also works for a worker that died before its first message. With `several`, the other nodes are those of the actor's placement
    group.

    Args:
        error: The error that Ray reported. If it has the id of an actor, the worker is looked up by this id.
        actor: The worker's actor. It is used if the error has no actor id, such as an error that the actor's own code raised.
        several: Whether the worker has several nodes.
    """
    actor_id = getattr(error, "actor_id", None)
    if not isinstance(actor_id, str) and actor is not None:
        actor_id = actor._actor_id.hex()
    actor_entry = cluster_state.actor_table(actor_id) if isinstance(actor_id, str) else {}
    node = actor_entry.get("Address", {}).get("NodeID", "")
    if not node:
        return []
    others = list[str]()
    if several:
        with contextlib.suppress(Exception):  # return at least the first node
            others = _nodes_of_group(str(actor_id))
    return list(dict.fromkeys([node, *others]))


def _nodes_of_group(actor_id: str) -> list[str]:
    """Return the nodes of an actor's placement group, in the order of its bundles. A bundle whose node was lost is skipped."""
    data = cluster_state._connect_and_get_accessor().get_actor_info(ray.ActorID(bytes.fromhex(actor_id)))
    group_id = ActorTableData.FromString(data).placement_group_id
    group = cluster_state.placement_group_table(ray.PlacementGroupID(group_id))
    return [node for _, node in sorted(group["bundles_to_node_id"].items()) if node]


def kill_worker(actor: Any) -> None:
    """Kill a worker's process, even if it is stopped (SIGSTOP)."""
    with contextlib.suppress(Exception):
        ray.kill(actor)


def _answers(node: Mapping[str, Any]) -> bool:
    """Return whether the node still accepts connections. If it does, only the worker died and not its node.

    Ray's own list of nodes shows this too late: Ray takes seconds to notice that a node is gone, and the driver learns of the worker's
    death before that.
    """
    with contextlib.suppress(OSError):
        address = (node["NodeManagerAddress"], node["NodeManagerPort"])
        with socket.create_connection(address, timeout=REACH_S):
            return True
    return False
