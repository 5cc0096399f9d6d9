"""The machine that an attempt was given, according to Ray and to the machine's own cloud."""

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ray

from tuner.engine.messages import Progress
from tuner.engine.placement import Machine
from tuner.engine.ray_cluster import labels
from tuner.engine.ray_driver.deaths import node_of

log = logging.getLogger("tuner.driver")


class Attached:
    """Look up the machines of attempts. Used by the driver's thread only.

    If Ray does not answer, return None. The machine is looked up again with the worker's next message.
    """

    def __init__(self) -> None:
        # The facts that the cloud reports about each node, by Ray's node id.
        self._facts: dict[str, Mapping[str, str]] = {}
        # The cloud's facts that were used when each attempt's machine was last returned.
        self._known: dict[tuple[str, int], Mapping[str, str]] = {}

    def machine_of(self, trial: str, attempt: int, actor: Any) -> Machine | None:
        """Return the machine that a new attempt was given, or None if Ray does not answer.

        Call it before the attempt begins.
        """
        with contextlib.suppress(Exception):
            return self._look(trial, attempt, node_of(None, actor))
        log.warning(
            "%s: Ray did not describe its machine; it is looked up again with the next message", trial
        )
        return None

    def heard(self, progress: Progress) -> Machine | None:
        """Return the attempt's machine if the message adds facts about it. Otherwise return None."""
        node, facts = progress.node, progress.machine
        if facts:
            self._facts[node] = facts
        known = self._known.get((progress.trial, progress.attempt))
        if not node or (known is not None and known == self._facts.get(node, {})):
            return None
        with contextlib.suppress(Exception):
            return self._look(progress.trial, progress.attempt, node)
        return None

    def gone(self, trial: str, attempt: int) -> None:
        """Forget an attempt that ended."""
        self._known.pop((trial, attempt), None)

    def _look(self, trial: str, attempt: int, node_id: str) -> Machine | None:
        node = next((one for one in ray.nodes() if one["NodeID"] == node_id), None)
        if node is None:
            return None
        facts = self._known[trial, attempt] = self._facts.get(node_id, {})
        has = node["Resources"]
        machine = Machine(node["Labels"], has.get("CPU", 0), has.get("GPU", 0))
        return replace(machine, labels=labels.corrected(machine.labels, facts))
