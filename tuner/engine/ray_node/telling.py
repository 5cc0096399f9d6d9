"""Telling a node, from anywhere in its cluster, that it is about to be taken away, or that it is not any more."""

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tuner.domain.errors import Conflict, Unavailable
from tuner.engine.notices.notice import Notice
from tuner.engine.ray_node.nodes import Gcs, own_board

REACH_S = 30.0


def tell(node_id: str, notice: Notice) -> bool:
    """Puts the notice up on the node, where its workers see it at once, and drains it: nothing new begins there. False: it is the
    head, which cannot be drained; its workers know all the same.

    For a process that has joined the cluster. Raises NotFound for a node that is not there, and Unavailable where it cannot be
    reached, as one that is drained already cannot: then nothing was changed.
    """
    gcs = Gcs(ray.get_runtime_context().gcs_address)
    is_head = gcs.node(node_id).is_head
    # First the workers: on a drained node nothing can be started that would tell them.
    _on(node_id, _announce, node_id, notice)
    if not is_head:
        gcs.drain(node_id, notice)
    return not is_head


def untell(node_id: str, notice_id: str) -> None:
    """Takes a notice of the head down; any other node ends with its drain. Raises NotFound, Unavailable, and Conflict."""
    if not Gcs(ray.get_runtime_context().gcs_address).node(node_id).is_head:
        raise Conflict(f"{node_id} is drained: that cannot be taken back, and it ends once it is idle")
    _on(node_id, _withdraw, node_id, notice_id)


def _announce(node_id: str, notice: Notice) -> None:
    own_board().announce(node_id, notice)


def _withdraw(node_id: str, notice_id: str) -> None:
    own_board().withdraw(node_id, notice_id)


def _on(node_id: str, work: object, *args: object) -> None:
    place = NodeAffinitySchedulingStrategy(node_id, soft=False)
    task = ray.remote(num_cpus=0, max_retries=0)(work).options(scheduling_strategy=place)
    try:
        ray.get(task.remote(*args), timeout=REACH_S)
    except ray.exceptions.RayError as error:
        raise Unavailable(f"node {node_id} cannot be reached: {error}") from error
