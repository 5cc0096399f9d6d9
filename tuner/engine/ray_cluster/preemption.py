"""A node of a local cluster is taken away: with a notice, as a cloud's spot machine, or without one, as in a power cut.

announce to its workers ──▶ Ray gives it no new work (drain) ──▶ SIGKILL of all its processes at the deadline
"""

import os
import time

from tuner.domain.time import Instant
from tuner.engine.notices import Notice
from tuner.engine.ray_cluster.cluster_file import KeptNode
from tuner.engine.ray_cluster.dashboard import RayUnavailable
from tuner.engine.ray_cluster.head import LocalHead
from tuner.engine.ray_cluster.launch import ray_environment
from tuner.engine.ray_cluster.processes import kill_marked, marked

LOOK_S = 0.1


def kill(node: KeptNode) -> int:
    """All its processes at once; nobody is told. Answers how many there were."""
    return kill_marked(node.session)


def announce(head: LocalHead, node: KeptNode, notice_ns: int) -> Instant:
    """Tells the node's workers, and then Ray, which places nothing there any more, by when it goes, and answers that. Raises
    RayUnavailable, NotFound or Conflict; then no notice stands.

    Imports Ray into this process, which takes a second, and far more on a busy machine: the notice begins to run after that.
    """
    found = head.found()
    if found is None:
        raise RayUnavailable("the cluster's head is gone")
    # Ray reads it when it connects.
    os.environ.update(
        {
            name: value
            for name, value in ray_environment("", head.token_path).items()
            if name.startswith("RAY_")
        }
    )
    from tuner.engine.ray_node.nodes import give_notice

    deadline = Instant(time.time_ns() + notice_ns)
    text = f"{node.name} is taken away by its operator"
    notice = Notice("operator", "terminate", f"operator/{node.session}", deadline, text)
    give_notice(found.address, node.node_id, notice)
    return deadline


def wait_until(node: KeptNode, deadline: Instant) -> bool:
    """Until the deadline, or until the node has ended by itself, as one that is drained does once nothing runs on it: then
    True."""
    while time.time_ns() < deadline:
        if next(marked(node.session), None) is None:
            return True
        time.sleep(LOOK_S)
    return False
