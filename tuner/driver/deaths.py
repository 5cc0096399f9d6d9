"""Find out whether a worker died because its machine was taken away, or for another reason."""

import contextlib
import socket
from collections.abc import Mapping
from typing import Any

import ray
from ray._private.state import state
from ray.core.generated.common_pb2 import NodeDeathInfo

MARKET = "ray.io/market-type"
REACH_S = 1.0


def was_preempted(error: Exception | None, node_id: str) -> bool:
    """Return whether a worker's death counts as a preemption.

    Takes up to a second if nothing answers at its node's address.

    It counts if the node was drained for a preemption, even if Ray does not know of the node's death yet. It
    also counts if the node is a spot machine that disappeared without notice.

    Args:
        error: The error that Ray reported for the worker.
        node_id: The worker's node. Empty: unknown.
    """
    if getattr(error, "preempted", False):
        return True
    node = next((node for node in ray.nodes() if node["NodeID"] == node_id), None)
    if node is None:
        return False
    if (
        node_id in state.get_draining_nodes()
        or node["DeathReason"] == NodeDeathInfo.AUTOSCALER_DRAIN_PREEMPTED
    ):
        return True
    return node["Labels"].get(MARKET) == "spot" and not (node["Alive"] and _answers(node))


def node_of(error: Exception | None, actor: Any = None) -> str:
    """Return the node of an actor, which may have died before its first message, or "" if Ray does not know it.

    Args:
        error: The error that Ray reported. If it names an actor, that actor is used.
        actor: The trial's actor. It is used if the error names none, as an error from the actor's own code does.
    """
    actor_id = getattr(error, "actor_id", None)
    if not isinstance(actor_id, str) and actor is not None:
        actor_id = actor._actor_id.hex()
    found = state.actor_table(actor_id) if isinstance(actor_id, str) else {}
    return str(found.get("Address", {}).get("NodeID", ""))


def kill_worker(actor: Any) -> None:
    """Kill a worker's process, even if it is stopped (SIGSTOP)."""
    with contextlib.suppress(Exception):
        ray.kill(actor)


def _answers(node: Mapping[str, Any]) -> bool:
    """Return whether the node still accepts connections.

    Ray takes seconds to notice that a node is gone, and a driver learns of its worker's end before that. If only the
    worker died, its node still accepts connections.
    """
    with contextlib.suppress(OSError):
        address = (node["NodeManagerAddress"], node["NodeManagerPort"])
        with socket.create_connection(address, timeout=REACH_S):
            return True
    return False
