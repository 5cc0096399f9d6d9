"""The message with which an attempt begins on a worker."""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.domain.job import Resources, config_values
from tuner.engine.interruption_risk import exposure
from tuner.engine.packages.stored import Stored
from tuner.engine.ray_driver.actuator import Message
from tuner.engine.world import Assignment
from tuner.store.jobs import JobRow
from tuner.store.losses import Losses

# The part of a node's memory for user code. The rest is for Ray, our own processes and the system's cache.
USABLE_MEMORY = 0.9
FRESH_S = 1.0


@dataclass(frozen=True)
class Orders:
    """The messages with which attempts of one job begin."""

    row: JobRow
    storage: str
    memory_limit: Callable[[], int | None]
    #: Returns value and step of a trial's best checkpoint.
    best_checkpoint: Callable[[str], tuple[float, int] | None]
    #: Returns the attempt that wrote a trial's checkpoint of a step.
    saved_by: Callable[[str, int], int | None]
    losses: Callable[[str], Losses]  #: Returns how the job's attempts on a market have ended so far.

    def begin(self, assignment: Assignment) -> Message:
        spec, step = self.row.spec, assignment.restore_step
        market = (assignment.offer or self.row.offer).market
        best = self.best_checkpoint(assignment.trial) if step else None
        if best is not None:
            best = (spec.objective.score(best[0]), best[1])
        return {
            "order": "begin",
            "project": self.row.project,
            "job": self.row.id,
            "trial": assignment.trial,
            "attempt": assignment.attempt,
            "entry": spec.trainable,
            "config": config_values(assignment.config, spec.constants),
            "seed": spec.algorithm.seed,
            "until": assignment.until,
            "max_step": spec.fidelity.max,
            "lease_ns": assignment.lease_ns,
            "storage": self.storage,
            "restore_step": step,
            "restore_attempt": self.saved_by(assignment.trial, step) if step else None,
            "keep": spec.checkpoint.keep,
            "metric": spec.objective.metric,
            "mode": spec.objective.mode,
            "best": best,
            "job_best": assignment.job_best,
            "checkpoint_interval_ns": spec.checkpoint.interval_ns,
            "exposure": exposure(market, self.losses(market)),
            "memory_limit_bytes": self.memory_limit(),
            "resources": {"CPU": spec.resources.cpus, "GPU": spec.resources.gpus},
        }


def package_of(row: JobRow, storage: str) -> dict[str, str] | None:
    """Return what a worker needs to load the job's package, or None if its trainable does not come from one."""
    package = row.spec.package
    return None if package is None else Stored(storage, row.project, package).message()


class MemoryLimit:
    """The memory limit of a trial of this size on the nodes that exist now.

    There may be no nodes when a driver starts, and larger ones may come later. `nodes` is called at most once per
    second. If it raises, the last known limit is returned.
    """

    def __init__(
        self,
        nodes: Callable[[], Iterable[Mapping[str, Any]]],
        size: Resources,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes, self._size, self._clock = nodes, size, clock
        self._asked_at: float | None = None
        self._known: int | None = None

    def __call__(self) -> int | None:
        now = self._clock()
        if self._asked_at is None or now - self._asked_at >= FRESH_S:
            self._asked_at = now
            with contextlib.suppress(Exception):
                self._known = memory_limit(self._nodes(), cpus=self._size.cpus, gpus=self._size.gpus)
        return self._known


def memory_limit(nodes: Iterable[Mapping[str, Any]], *, cpus: float, gpus: float) -> int | None:
    """Return a trial's share of the memory of the largest node that it fits on, in bytes, or None if none is known.

    The share is the larger of the trial's shares of the CPUs and GPUs.
    """
    found = []
    for node in nodes:
        has = node.get("Resources", {})
        if (
            node.get("Alive")
            and has.get("CPU", 0) >= cpus
            and has.get("GPU", 0) >= gpus
            and has.get("memory")
        ):
            share = max(cpus / has["CPU"] if has.get("CPU") else 0, gpus / has["GPU"] if gpus else 0)
            found.append(int(has["memory"] * USABLE_MEMORY * min(1, share)))
    return max(found, default=None)
