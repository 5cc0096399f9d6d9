"""Why a worker died: with its machine, which was taken away, or otherwise."""

import contextlib
import socket
from collections.abc import Mapping
from typing import Any

import ray
from ray._private.state import state
from ray.core.generated.common_pb2 import NodeDeathInfo

MARKET = "ray.io/market-type"
REACH_S = 1.0


def went_with_its_machine(error: Exception | None, node_id: str) -> bool:
    """Whether this counts as a preemption: the node was drained for one, whether Ray knows of its death by now or not; or it is a spot
    machine's, and gone without a word. `node_id` "": unknown. Takes a second at most, where nothing answers at the node's
    address."""
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
    """Where the actor was that the error tells of, which may have died before its first word; "" where Ray does not know. An error
    out of the actor's own code names none: it is the trial's then."""
    actor_id = getattr(error, "actor_id", None)
    if not isinstance(actor_id, str) and actor is not None:
        actor_id = actor._actor_id.hex()
    found = state.actor_table(actor_id) if isinstance(actor_id, str) else {}
    return str(found.get("Address", {}).get("NodeID", ""))


def kill_worker(actor: Any) -> None:
    """Kill a worker's process, also one that is stopped (SIGSTOP)."""
    with contextlib.suppress(Exception):
        ray.kill(actor)


def _answers(node: Mapping[str, Any]) -> bool:
    """Ray takes seconds to notice that a node is gone, and a driver hears of its worker's end before. A worker that dies alone leaves
    its node behind, which still takes calls."""
    with contextlib.suppress(OSError):
        address = (node["NodeManagerAddress"], node["NodeManagerPort"])
        with socket.create_connection(address, timeout=REACH_S):
            return True
    return False
