"""The nodes that Ray would place something on now, and those that its autoscaler may bring up for it."""

import atexit
import contextlib
import threading
from collections.abc import Mapping
from typing import Any

import ray
from ray._private.state import state as cluster_state

from tuner.engine.placement import Machine
from tuner.engine.ray_cluster import NodeTypes

FRESH_S = 1.0
HEAD = "node:__internal_head__"


class Machines:
    """Call it for what there was a second ago. It answers at once, as it is asked in the midst of transactions, while Ray is asked
    beside: that takes a minute where the head does not answer, and what was known is the answer meanwhile. One that is draining,
    or known to be dead, is none. What may come is counted by `types`. To be made after `ray.init`."""

    def __init__(self, types: NodeTypes) -> None:
        self._types = types
        self._found = _look(self._types)
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="machines", daemon=True)
        self._watcher.start()
        atexit.register(self.close)  # before Ray's own, which takes away what it is asked through

    def __call__(self) -> list[Machine]:
        return self._found

    def _watch(self) -> None:
        while not self._over.wait(FRESH_S):
            with contextlib.suppress(Exception):  # a head that is away is asked again
                self._found = _look(self._types)

    def close(self) -> None:
        self._over.set()
        self._watcher.join(FRESH_S)


def _look(types: NodeTypes) -> list[Machine]:
    leaving = cluster_state.get_draining_nodes()
    alive = [node for node in ray.nodes() if node["Alive"]]
    # One that is on its way out still counts against how many there may be.
    workers = [_machine(node) for node in alive if HEAD not in node["Resources"]]
    there = [_machine(node) for node in alive if node["NodeID"] not in leaving]
    return [*there, *types.machines_to_come(workers)]


def _machine(node: Mapping[str, Any]) -> Machine:
    return Machine(node["Labels"], node["Resources"].get("CPU", 0), node["Resources"].get("GPU", 0))
