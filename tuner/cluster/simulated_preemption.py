"""Simulate the preemption of a node of a local cluster.

The node is taken away without notice, as in a power failure, or with a notice, as a cloud gives it:

    notify its workers ──▶ Ray places no new work on it (drain) ──▶ SIGKILL to all its processes at the deadline
"""

import os
import time

from tuner.cluster.cluster_file import KeptNode
from tuner.cluster.dashboard import RayUnavailable
from tuner.cluster.head import LocalHead
from tuner.cluster.launch import ray_environment
from tuner.cluster.notices.notice import Notice
from tuner.cluster.processes import kill_marked, marked
from tuner.domain.time import Instant, system_now

LOOK_S = 0.1


def kill(node: KeptNode) -> int:
    """Kill all processes of the node at once, without notice. Return how many processes were killed."""
    return kill_marked(node.session)


def announce(head: LocalHead, node: KeptNode, notice_ns: int) -> Instant:
    """Notify the node's workers and Ray that the node will be taken away, and return the deadline.

    The notice period of `notice_ns` nanoseconds starts only after this process has imported Ray, because that takes a second,
    and much longer on a busy machine. Ray places no new work on the node.

    Raises:
        RayUnavailable, NotFound, Conflict: The node could not be notified. No notice is in effect.
    """
    running = head.running()
    if running is None:
        raise RayUnavailable(
            "the head of the local cluster has ended: try again when `tuner cluster` has restarted it"
        )
    # Ray reads these variables when it connects.
    os.environ.update(
        {
            name: value
            for name, value in ray_environment("", head.token_path).items()
            if name.startswith("RAY_")
        }
    )
    from tuner.cluster.drain import give_notice

    deadline = Instant(system_now() + notice_ns)
    text = f"{node.name} will be taken away by its operator"
    notice = Notice(f"operator/{node.session}", deadline, text)
    give_notice(running.address, node.node_id, notice)
    return deadline


def wait_until(node: KeptNode, deadline: Instant) -> bool:
    """Wait until the deadline, or until the node ends before it. Return whether the node has ended.

    A drained node ends by itself once nothing runs on it.
    """
    while system_now() < deadline:
        if next(marked(node.session), None) is None:
            return True
        time.sleep(LOOK_S)
    return False
