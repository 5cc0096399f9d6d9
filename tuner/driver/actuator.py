"""Carry out the loop's commands: keep the attempts that wait for a worker, and make the orders for the workers.

A worker receives its orders as the argument of Tune's next call of its `train()`. So this call already returns a message of an attempt that it
begins.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from tuner.database.database import Connection
from tuner.domain.checkpointing import Losses
from tuner.domain.cost import Meter
from tuner.domain.job import Resources, config_values
from tuner.driver.messages import WorkerMessage
from tuner.driver.placement import interruption_risk
from tuner.driver.ports import Assignment
from tuner.store import answers, jobs
from tuner.store.jobs import JobRow
from tuner.training.artifacts import MAX_JOB_BYTES
from tuner.training.channel import MAX_JOB_METRICS_BYTES
from tuner.tuning.rungs import ladder
from tuner.worker.orders import BeginOrder, ContinueOrder, Order
from tuner.worker.packages import Stored

Send = Callable[[Order], None]
T = TypeVar("T")


class Actuator:
    """Carry out the loop's commands on real workers (the port `World`). Only one thread may use it. `clock` is the loop's monotonic clock."""

    def __init__(
        self, begin_message: Callable[[Assignment], BeginOrder], clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._begin_message, self._clock = begin_message, clock
        self.room: Callable[[], int] = lambda: 0  # set by the pool of workers, which has none at first
        # The attempts that wait for a worker, by trial. The first has waited longest.
        self._waiting: dict[str, Assignment] = {}
        # The running attempt of each trial, and how to send messages to its worker.
        self._actors: dict[str, tuple[int, Send]] = {}
        # Trials whose waiting attempt was cancelled, with the outcome.
        self._withdrawn: dict[str, Literal["paused", "stopped"]] = {}

    # Commands of the loop

    def begin(self, assignment: Assignment) -> None:
        self._waiting[assignment.trial] = assignment

    def continue_to(self, trial: str, target_step: int | None, lease_ns: int, job_best: float | None) -> None:
        order: ContinueOrder = {
            "order": "continue",
            "trial": trial,
            "target_step": target_step,
            "lease_ns": lease_ns,
            "job_best": job_best,
        }
        self._send(order)

    def pause(self, trial: str) -> None:
        if not self._send({"order": "pause", "trial": trial}):
            self._call_off(trial, "paused")

    def finish(self, trial: str) -> None:
        self._send({"order": "finish", "trial": trial})

    def stop(self, trial: str, *, keep_best: bool) -> None:
        if not self._send({"order": "stop", "trial": trial, "keep_best": keep_best}):
            self._call_off(trial, "stopped")

    def _call_off(self, trial: str, how: Literal["paused", "stopped"]) -> None:
        """Cancel the trial's attempt if it still waits for a worker. `how` is the outcome to report for it.

        Do nothing if the trial has no waiting attempt. `WorkerPool` reports the end of attempts that already had a worker.
        """
        if trial in self._waiting:
            self._withdrawn[trial] = how

    def _send(self, order: Order) -> bool:
        """Send an order to the worker of the order's trial. Return False if the trial has no worker."""
        actor = self._actors.get(order["trial"])
        if actor is not None:
            actor[1](order)
        return actor is not None

    # Events of the workers

    def waiting(self) -> list[Assignment]:
        """Return the attempts that wait for a worker. The first has waited longest.

        Cancelled attempts are left out, and also attempts whose earliest start (`not_before_ns`) has not passed yet.
        """
        now = self._clock()
        return [
            assignment
            for trial, assignment in self._waiting.items()
            if assignment.not_before_ns <= now and trial not in self._withdrawn
        ]

    def started(self, trial: str, send: Send, lease_ns: int) -> None:
        """Begin the trial's waiting attempt on a worker. Call this before the next `train()` of that worker.

        Args:
            trial: The trial.
            send: Adds an order to those that the worker's next `train()` receives.
            lease_ns: The length of the attempt's lease at the price of the worker's machine, in nanoseconds.
        """
        assignment = replace(self._waiting.pop(trial), lease_ns=lease_ns)
        self._actors[trial] = (assignment.attempt, send)
        send(self._begin_message(assignment))
        if trial in self._withdrawn:
            outcome = self._withdrawn.pop(trial)
            send({"order": "pause" if outcome == "paused" else "stop", "trial": trial})

    def ended(self, trial: str, attempt: int) -> None:
        """Forget an attempt that has ended or will never begin. A later attempt of the same trial is kept."""
        if self._actors.get(trial, (0,))[0] == attempt:
            del self._actors[trial]
        if trial in self._waiting and self._waiting[trial].attempt == attempt:
            del self._waiting[trial]
            self._withdrawn.pop(trial, None)

    def withdraw(self) -> list[WorkerMessage]:
        """Remove the attempts that were cancelled before they had a worker. For each, return the message that reports its end."""
        cancelled = [(self._waiting.pop(trial), state) for trial, state in self._withdrawn.items()]
        self._withdrawn.clear()
        return [
            WorkerMessage(attempt.trial, attempt.attempt, state, Meter(), saved_step=attempt.restore_step)
            for attempt, state in cancelled
        ]


def task_name(orders: Iterable[Order]) -> str:
    """Return a name for the Ray task that carries these orders to a worker, or "" if none of them begins an attempt.

    The name contains the trial, the attempt and the step to train to. Ray's dashboard shows it. The actor's name cannot show these, because
    an actor that is reused keeps its first name.
    """
    for order in orders:
        if order["order"] == "begin":
            target = "its end" if order["target_step"] is None else f"step {order['target_step']}"
            return f"{order['trial']}, attempt {order['attempt']}, to {target}"
    return ""


# The fraction of a node's memory that user code may use. The rest is for Ray, our own processes and the system's cache.
USABLE_MEMORY = 0.9
FRESH_S = 1.0
READ_FRESH_S = 10.0


@dataclass(frozen=True)
class BeginMessages:
    """Make the messages that order workers to begin the attempts of one job."""

    row: JobRow
    storage: str
    memory_limit: Callable[[], int | None]
    #: Returns value and step of a trial's best checkpoint.
    best_checkpoint: Callable[[str], tuple[float, int] | None]
    #: Returns the attempt that wrote a trial's checkpoint of a step.
    saved_by: Callable[[str, int], int | None]
    losses: Callable[[str], Losses]  #: Returns how the job's attempts on a market have ended so far.
    artifact_bytes: Callable[[str], int]  #: Returns the size of the artifacts of a job.
    metrics_bytes: Callable[[], int]  #: Returns the size of the metrics that the job has reported, as JSON.
    teacher: Mapping[str, Any] | None = None  #: What a worker needs to fetch the job's teacher.

    def begin(self, assignment: Assignment) -> BeginOrder:
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
            "entry": spec.entry,
            "config": spec.begin_config(assignment.config),
            "kind": spec.kind,
            "seed": spec.algorithm.seed + assignment.seed,
            "target_step": assignment.target_step,
            "max_step": spec.fidelity.max,
            "lease_ns": assignment.lease_ns,
            "storage": self.storage,
            "restore_step": step,
            "reported_step": assignment.reported_step,
            "restore_attempt": self.saved_by(assignment.trial, step) if step else None,
            "keep": spec.checkpoint.keep,
            "metric": spec.objective.metric,
            "mode": spec.objective.mode,
            "constraints": spec.constraints,
            "best": best,
            "job_best": assignment.job_best,
            "checkpoint_interval_ns": spec.checkpoint.interval_ns,
            "exposure": interruption_risk(market, self.losses(market), spec.resources.nodes),
            "memory_limit_bytes": self.memory_limit(),
            "rungs": ladder(spec).rungs(),
            "proxies": spec.fidelity.proxies,
            "usd_per_hour": self.row.offer.rate(spec.resources.on_one_node).price.usd_per_hour,
            "serving_metrics": spec.serving_metrics,
            "resources": {"CPU": spec.resources.cpus, "GPU": spec.resources.gpus},
            "artifact_room": max(0, MAX_JOB_BYTES - self.artifact_bytes(self.row.id)),
            "metrics_room": max(0, MAX_JOB_METRICS_BYTES - self.metrics_bytes()),
            "processes": spec.resources.processes,
            "nodes": spec.resources.nodes,
            "teacher": self.teacher,
        }


def package_of(row: JobRow, storage: str) -> dict[str, str] | None:
    """Return the message from which a worker loads the job's package, or None if the job has no package."""
    package = row.spec.package
    return None if package is None else Stored(storage, row.project, package).message()


def teacher_of(db: Connection, row: JobRow, storage: str) -> Mapping[str, Any] | None:
    """Return the message from which a worker fetches the job's teacher. Return None if the job has no teacher.

    A teacher is a trial of an earlier job, from which the trials of this job learn (distillation).
    """
    teacher = row.spec.teacher
    if teacher is None:
        return None
    source = jobs.get(db, teacher.job).spec
    trial = answers.trial(db, teacher.job, source.objective.mode, teacher.trial)
    config = {} if trial is None else config_values(trial.config, source.constants, source.kind)
    return {"storage": storage, "project": row.project, **asdict(teacher), "config": config}


class RecentRead(Generic[T]):
    """A cache for `read(name)`, which queries the database. Each result is used for `READ_FRESH_S` seconds.

    The driver caches how the attempts on a market have ended, and the size of a job's artifacts. Without this cache, the queries before
    each attempt took 8 % of the driver's processor time in a job of short trials.
    """

    def __init__(self, read: Callable[[str], T], clock: Callable[[], float] = time.monotonic) -> None:
        self._read, self._clock = read, clock
        self._known: dict[str, tuple[float, T]] = {}

    def __call__(self, name: str) -> T:
        now, known = self._clock(), self._known.get(name)
        if known is None or now - known[0] >= READ_FRESH_S:
            known = self._known[name] = now, self._read(name)
        return known[1]


class MemoryLimit:
    """Compute the memory limit of a trial from the nodes that exist now. `size` is what the trial requests.

    The limit can change: the cluster may be empty when a driver starts, and larger nodes may join later. `nodes` returns Ray's list
    of nodes and is called at most once per second. If it raises, the last known limit is returned.
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
        """Return the memory that the trial may use, in bytes, on the node where it may use the most. Return None if it fits on no node."""
        now = self._clock()
        if self._asked_at is None or now - self._asked_at >= FRESH_S:
            self._asked_at = now
            with contextlib.suppress(Exception):
                nodes = [node.get("Resources", {}) for node in self._nodes() if node.get("Alive")]
                self._known = max(filter(None, map(self._share, nodes)), default=None)
        return self._known

    def _share(self, has: Mapping[str, float]) -> int:
        """Return how many bytes of a node's memory the trial may use, or 0 if the trial does not fit on the node.

        A worker requests a fraction of the node's CPUs and a fraction of its GPUs. Its trials together may use the larger of these two
        fractions of the node's usable memory (see `USABLE_MEMORY`). `has` lists the node's resources.
        """
        cpus, gpus = self._size.cpus, self._size.gpus
        if has.get("CPU", 0) < cpus or has.get("GPU", 0) < gpus:
            return 0
        share = max(cpus / has["CPU"] if has.get("CPU") else 0, gpus / has["GPU"] if gpus else 0)
        return int(has.get("memory", 0) * USABLE_MEMORY * min(1, share)) // self._size.pack
