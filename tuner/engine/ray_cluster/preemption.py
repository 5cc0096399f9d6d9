"""A node of a local cluster is taken away: with a notice, as a cloud's spot machine, or without one, as a power cut.

announce to its workers ──▶ Ray gives it no new work (drain) ──▶ SIGKILL of all its processes at the deadline
"""

import json
import math
import subprocess
import time
from pathlib import Path

from tuner.domain.time import NS, Instant
from tuner.engine.ray_cluster.cluster_file import KeptNode
from tuner.engine.ray_cluster.dashboard import RayUnavailable, last_line
from tuner.engine.ray_cluster.launch import ray_command, ray_environment
from tuner.engine.ray_cluster.processes import kill_marked, marked

DRAIN_TIMEOUT_S = 30.0
LOOK_S = 0.1


def announce(home: Path, node: KeptNode, deadline: Instant) -> None:
    """Leaves word for the workers on the node until when they may run."""
    folder = home / "notices"
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{node.node_id}"
    draft.write_text(json.dumps({"node": node.name, "kind": "terminate", "deadline_ns": deadline}))
    draft.replace(folder / f"{node.node_id}.json")


def kill(node: KeptNode) -> int:
    """All its processes at once; nobody is told. Answers how many there were."""
    return kill_marked(node.session)


def drain(node: KeptNode, *, address: str, token_path: Path, deadline: Instant) -> None:
    """Tells Ray that the node is to be preempted: nothing new is placed on it, what runs goes on. Raises RayUnavailable.

    By Ray's own command, as the service imports no Ray: takes a second or two.
    """
    left_s = math.ceil(max(0, deadline - time.time_ns()) / NS)
    reason = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "preempted by an operator")
    where = ("--address", address, "--node-id", node.node_id, "--deadline-remaining-seconds", str(left_s))
    try:
        done = subprocess.run(
            ray_command("drain-node", *where, *reason),
            env=ray_environment("", token_path),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DRAIN_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as problem:
        raise RayUnavailable(f"Ray does not drain {node.name} in {DRAIN_TIMEOUT_S:.0f} s") from problem
    if done.returncode:
        raise RayUnavailable(f"Ray does not drain {node.name}: {last_line(done.stderr or done.stdout)}")


def wait_until(node: KeptNode, deadline: Instant) -> bool:
    """Until the deadline, or until the node has ended by itself, as one that is drained does once nothing runs on it: then
    True."""
    while time.time_ns() < deadline:
        if next(marked(node.session), None) is None:
            return True
        time.sleep(LOOK_S)
    return False
