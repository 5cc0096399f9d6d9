"""The nodes that Ray would place something on now."""

import time

import ray
from ray._private.state import state as cluster_state

from tuner.engine.placement import Machine

FRESH_S = 1.0


class Machines:
    """Call it for what there is; Ray is asked again after a second. One that is draining, or known to be dead, is none. From one
    thread, after `ray.init`."""

    def __init__(self) -> None:
        self._found: list[Machine] = []
        self._looked_at = float("-inf")

    def __call__(self) -> list[Machine]:
        now = time.monotonic()
        if now - self._looked_at > FRESH_S:
            self._found, self._looked_at = _look(), now
        return self._found


def _look() -> list[Machine]:
    leaving = cluster_state.get_draining_nodes()
    return [
        Machine(node["Labels"], node["Resources"].get("CPU", 0), node["Resources"].get("GPU", 0))
        for node in ray.nodes()
        if node["Alive"] and node["NodeID"] not in leaving
    ]
