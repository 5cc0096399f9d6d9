"""The nodes on which Ray would place work now, and those that its autoscaler may start."""

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
    """A callable that returns the machines as of about a second ago. Call `ray.init` before creating it.

    A call returns at once, because callers are within a transaction. A thread asks Ray, which can take a
    minute if the head does not answer. Meanwhile the last known machines are returned.

    Nodes that drain, or are known to be dead, are not included. `types` are the machines that may still be started.
    """

    def __init__(self, types: NodeTypes) -> None:
        self._types = types
        self._found = _look(self._types)
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="machines", daemon=True)
        self._watcher.start()
        # runs before Ray's own exit handler, which closes the connection that the thread uses
        atexit.register(self.close)

    def __call__(self) -> list[Machine]:
        return self._found

    def _watch(self) -> None:
        while not self._over.wait(FRESH_S):
            with contextlib.suppress(Exception):  # if the head is away, it is asked again
                self._found = _look(self._types)

    def close(self) -> None:
        self._over.set()
        self._watcher.join(FRESH_S)


def _look(types: NodeTypes) -> list[Machine]:
    leaving = cluster_state.get_draining_nodes()
    alive = [node for node in ray.nodes() if node["Alive"]]
    # A draining node still counts toward the autoscaler's limit.
    workers = [_machine(node) for node in alive if HEAD not in node["Resources"]]
    there = [_machine(node) for node in alive if node["NodeID"] not in leaving]
    return [*there, *types.machines_to_come(workers)]


def _machine(node: Mapping[str, Any]) -> Machine:
    return Machine(node["Labels"], node["Resources"].get("CPU", 0), node["Resources"].get("GPU", 0))
