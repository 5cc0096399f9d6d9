"""The workers of a job, and which attempt each of them runs.

In Ray Tune, each worker is one trial, so `Trial` in this module means a worker. Tune finds a machine for the worker, starts it, calls it,
and reports its death. A worker has one slot for an attempt, or several if the job's resources have `pack`. When a slot is free, it gets the
attempt that has waited longest for a machine like the worker's. Attempts are not trials of Tune, because Tune uses 30 to 50 ms of
processor time for each of its trials.
"""

import contextlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray import cloudpickle

from tuner.driver.actuator import Actuator
from tuner.driver.loop import SILENT_NS, Loop
from tuner.driver.messages import ENDED, WorkerMessage
from tuner.driver.ports import Assignment
from tuner.driver.ray_display import RayDisplay
from tuner.driver.ray_machines import AssignedMachines, kill_worker, nodes_of, was_preempted
from tuner.driver.ray_tune import Trial
from tuner.worker.orders import ActorMessage, Order

# A requested worker that has a machine is expected to start there within this time. After it, an attempt may move to another offer instead
# of waiting for this worker. Ray gives up on a process after 60 s and starts another one. If the machine is taken away meanwhile, Ray
# silently looks for the next one.
STARTS_WITHIN_S = 120.0
# How many waiting attempts are checked per call for a better offer. Each check looks at all trials and
# machines of the job.
ASKED_AT_ONCE = 20

# If Tune has not called the scheduler for this long, the driver was busy or stopped.
UNRESPONSIVE_S = 2.0
# How long Ray may take to report that a worker that was killed is dead.
GONE_AFTER_S = 3.0
SILENT = "the worker was killed, because it sent nothing after its attempt should have ended"

Labels = tuple[tuple[str, str], ...]

log = logging.getLogger("tuner.driver")


class WorkerPool:
    """Request workers from Tune, and give each free worker the next attempt. Only the driver's thread may use it.

    Args:
        loop: The loop of the job.
        actuator: Keeps the attempts that wait for a worker.
        display: Shows in Ray's dashboard which attempt a worker runs.
        clock: Returns seconds of a monotonic clock.
        slots: How many attempts a worker runs at once.
    """

    def __init__(
        self,
        loop: Loop,
        actuator: Actuator,
        display: RayDisplay,
        clock: Callable[[], float] = time.monotonic,
        *,
        slots: int = 1,
    ) -> None:
        self._loop, self._actuator, self._display, self._clock = loop, actuator, display, clock
        self._slots, actuator.room = slots, self.room
        self._machines = AssignedMachines()
        # Workers that were requested from Tune and have not started, by the id of Tune's trial. The oldest is first.
        self._requested: dict[str, Trial] = {}
        # When a machine was first seen for a requested worker.
        self._found_at: dict[str, float] = {}
        # The worker of each running attempt, by trial and attempt.
        self._running: dict[tuple[str, int], Trial] = {}
        # The workers that have started and were not given back to Tune, and the attempts that each runs, by the id of Tune's trial.
        self._started: dict[str, Trial] = {}
        self._attempts = defaultdict[str, set[tuple[str, int]]](set)
        # The workers that get no further attempt, because a machine of theirs is lost or will be taken away.
        self._leaving = set[str]()
        self._nodes: dict[str, list[str]] = {}  # the nodes of each worker; its actor's node is first
        # The orders that were not sent yet, by the id of the worker's actor.
        self._orders = defaultdict[bytes, list[Order]](list)
        self._killed: dict[str, float] = {}  # when each silent worker was killed
        # When Tune last called `turn`, and since when these calls have come without a gap longer than UNRESPONSIVE_S.
        self._turned_at = self._responsive_since = clock()
        self._next = 0  # the index of the waiting attempt to check next for a better offer

    def room(self) -> int:
        """Return how many attempts can run at once on the workers that have started. Workers that get no further attempt do not count."""
        return self._slots * len(self._started.keys() - self._leaving - self._killed.keys())

    def to_request(self) -> Labels | None:
        """Return the node labels for a worker to request from Tune, or None if there is a slot for each waiting attempt.

        The slots of requested workers count. So do the free slots of running workers, if a worker has several.
        """
        requested = Counter[Labels]()
        for worker in self._requested.values():
            requested[_labels(worker)] += self._slots
        if self._slots > 1:
            for worker in self._started.values():
                requested[_labels(worker)] += self._free_slots(worker)
        for assignment in self._actuator.waiting():
            if not requested[assignment.labels]:
                return assignment.labels
            requested[assignment.labels] -= 1
        return None

    def requested(self, worker: Trial) -> None:
        """Record that this worker was requested: Tune now looks for a machine for it."""
        self._requested[worker.trial_id] = worker

    def started(self, worker: Trial) -> None:
        """Give a worker its first attempts, before Tune calls it. Do nothing if no attempt waits for it any more."""
        self._requested.pop(worker.trial_id, None)
        self._started[worker.trial_id] = worker
        self._fill(worker)

    def receive(self, worker: Trial, messages: Sequence[ActorMessage]) -> bool:
        """Pass a worker's messages to the loop. Give each free slot of the worker its next attempt.

        Args:
            worker: The worker.
            messages: The messages. Empty if the worker is idle.

        Returns:
            False if no attempt runs on the worker or waits for it. Tune may then stop the worker or keep it for reuse.
        """
        if not messages:
            self._leaving.discard(worker.trial_id)  # otherwise the worker would have refused the call
        for message in messages:
            self._receive(worker, message)
        # After False, Tune would keep the worker for reuse. So return True for a worker that was killed, because its actor is dead. If a
        # machine of the worker is about to be taken away, Tune calls the worker again, which refuses the call, and Tune removes it.
        if worker.trial_id in self._killed or worker.trial_id in self._leaving:
            return True
        self._fill(worker)
        if self._attempts[worker.trial_id]:
            return True
        self._ended(worker)
        return False

    def _receive(self, worker: Trial, message: ActorMessage) -> None:
        """Pass one message of a worker to the loop."""
        progress = WorkerMessage.parse(message)
        if progress.node:
            others = [node for node, _ in progress.others]
            known = self._nodes.get(worker.trial_id, [])
            self._nodes[worker.trial_id] = list(dict.fromkeys([progress.node, *known, *others]))
        machine = self._machines.note_message(progress)
        # Call this before `progress` counts the attempt's time, so that all of the time is billed at this machine's price.
        if machine is not None:
            self._loop.node_assigned(progress.trial, progress.attempt, machine)
        over = progress.state in ENDED
        if progress.has_notice or progress.retires:
            self._leaving.add(worker.trial_id)
        else:  # the notice may have been withdrawn
            self._leaving.discard(worker.trial_id)
        is_lost = progress.retires and progress.failure is not None and progress.failure.kind == "worker"
        if is_lost and _is_any_preempted(None, self._nodes_of(worker)):
            progress = replace(progress, state="preempted")
        if over:
            self._forget(progress.trial, progress.attempt)
            if self._loop.is_on_wrong_machine(progress.trial, progress.attempt):
                self._kill(
                    worker
                )  # otherwise the worker would run the other waiting attempts on this wrong machine
        self._loop.progress(progress)

    def _ended(self, worker: Trial) -> None:
        """Forget a worker that was given back to Tune, or is dead. Its attempts have ended, so none of its orders is needed."""
        actor = worker.temporary_state.ray_actor
        if actor is not None:
            self.take_orders(actor)
        for known in (self._nodes, self._started, self._attempts, self._killed):
            known.pop(worker.trial_id, None)
        self._leaving.discard(worker.trial_id)

    def _free_slots(self, worker: Trial) -> int:
        is_gone = worker.trial_id in self._killed or worker.trial_id in self._leaving
        return 0 if is_gone else self._slots - len(self._attempts[worker.trial_id])

    def _fill(self, worker: Trial) -> None:
        """Give each free slot of a worker its next attempt."""
        for _ in range(self._free_slots(worker)):
            if not self._assign(worker):
                return

    def _assign(self, worker: Trial) -> bool:
        """Give a worker the attempt that has waited longest for a machine with its labels. Return False if none waits."""
        waiting = self._longest_waiting(worker)
        if waiting is None:
            return False
        trial, attempt, actor = waiting.trial, waiting.attempt, worker.temporary_state.ray_actor
        machine = self._machines.machine_of(trial, attempt, self._nodes_of(worker))
        lease_ns = self._loop.node_assigned(trial, attempt, machine)
        self._running[trial, attempt] = worker
        self._attempts[worker.trial_id].add((trial, attempt))
        actor_id = actor._actor_id.binary()
        self._actuator.started(trial, lambda order: self._orders[actor_id].append(order), lease_ns)
        self._display.assign(actor_id, trial, attempt)
        return True

    def take_orders(self, actor: Any) -> list[Order]:
        """Return the orders for the worker with this actor, oldest first. Send them with Tune's next call of the worker."""
        return self._orders.pop(actor._actor_id.binary(), [])

    def _nodes_of(self, worker: Trial, error: Exception | None = None) -> list[str]:
        """Return the nodes of a worker, its actor's node first. Return an empty list if Ray does not answer."""
        nodes = self._nodes.get(worker.trial_id, [])
        if not nodes:
            with contextlib.suppress(Exception):
                several = worker.config.get("nodes", 1) > 1
                nodes = nodes_of(error, worker.temporary_state.ray_actor, several=several)
                self._nodes[worker.trial_id] = nodes
        return nodes

    def _longest_waiting(self, worker: Trial) -> Assignment | None:
        labels = _labels(worker)
        return next((waiting for waiting in self._actuator.waiting() if waiting.labels == labels), None)

    def died(self, tune: Any, worker: Trial) -> None:
        """Report the death of a worker to the loop, which decides what to do with the trial of the worker's attempt.

        If the worker died before it got an attempt, report as lost the attempt that has waited longest for a worker with the same labels.
        Otherwise workers that always die at their start would be requested indefinitely.

        Args:
            tune: Tune's controller.
            worker: The worker.
        """
        self._leaving.add(worker.trial_id)
        error = _error(worker)
        nodes = self._nodes.get(worker.trial_id, [])
        why = SILENT if worker.trial_id in self._killed else _why(error)
        attempts = sorted(self._attempts[worker.trial_id])
        if self._requested.pop(worker.trial_id, None) is not None:
            waiting = self._longest_waiting(worker)
            attempts = [] if waiting is None else [(waiting.trial, waiting.attempt)]
        _unstage(tune, worker)
        if any(self._loop.runs(*attempt) for attempt in attempts):
            nodes = nodes or self._nodes_of(worker, error)
            self._lost(attempts, why, nodes, preempted=_is_any_preempted(error, nodes))
        for attempt in attempts:
            self._forget(*attempt)
        self._ended(worker)

    def _lost(
        self, attempts: Sequence[tuple[str, int]], why: str, nodes: Sequence[str], *, preempted: bool
    ) -> None:
        """End all attempts of a dead worker as lost or preempted."""
        for attempt in attempts:
            self._forget(*attempt)
        for attempt in attempts:
            if self._loop.runs(*attempt):
                node = nodes[0] if nodes else ""
                self._loop.lost(*attempt, why, preempted=preempted, node=node, sharers=len(attempts))

    def _forget(self, trial: str, attempt: int) -> None:
        """Forget an attempt that has ended, or that never begins."""
        worker = self._running.pop((trial, attempt), None)
        if worker is not None:
            self._attempts[worker.trial_id].discard((trial, attempt))
        self._actuator.ended(trial, attempt)
        self._machines.forget(trial, attempt)

    # Every turn of Tune's loop

    def turn(self, tune: Any) -> Trial | None:
        """Do the periodic work, and return the oldest requested worker, or None if none is requested.

        Kill silent workers, end cancelled attempts, move waiting attempts to other offers, and cancel the requested workers that are
        not needed any more.

        Args:
            tune: Tune's controller.
        """
        self._kill_silent_workers(tune)
        self.withdraw()
        if self._slots > 1:
            for worker in list(self._started.values()):
                self._fill(worker)
        starting = self._starting(tune)
        for waiting in self._next_to_check(starting):
            if self._loop.relocate(waiting.trial, waiting.attempt):
                self._actuator.ended(waiting.trial, waiting.attempt)
        self._cancel_requests(tune)
        return next(iter(self._requested.values()), None)

    def withdraw(self) -> None:
        """End the attempts that were cancelled before they had a worker."""
        for progress in self._actuator.withdraw():
            self._loop.progress(progress)

    def _starting(self, tune: Any) -> Counter[Labels]:
        """Count, by labels, the requested workers that were given a machine less than `STARTS_WITHIN_S` ago and are starting there."""
        now, starting = self._clock(), Counter[Labels]()
        for name, worker in self._requested.items():
            actor = tune._trial_to_actor.get(worker)
            if actor is None or not tune._actor_manager.is_actor_started(actor):
                continue
            if now - self._found_at.setdefault(name, now) < STARTS_WITHIN_S:
                starting[_labels(worker)] += self._slots
        self._found_at = {name: at for name, at in self._found_at.items() if name in self._requested}
        return starting

    def _next_to_check(self, starting: Counter[Labels]) -> list[Assignment]:
        """Return the next `ASKED_AT_ONCE` waiting attempts to check for a better offer, round robin.

        Not all attempts are checked on each call, because a thousand of them may wait while machines start. Attempts that the starting
        workers will run are left out, because they will soon have a machine.
        """
        served, unserved = Counter[Labels](), list[Assignment]()
        for waiting in self._actuator.waiting():
            served[waiting.labels] += 1
            if served[waiting.labels] > starting[waiting.labels]:
                unserved.append(waiting)
        if self._next >= len(unserved):
            self._next = 0
        batch = unserved[self._next : self._next + ASKED_AT_ONCE]
        self._next += len(batch)
        return batch

    def _cancel_requests(self, tune: Any) -> None:
        """Have Tune cancel the requested workers that no attempt waits for any more."""
        if not self._requested:
            return
        wanted = Counter(waiting.labels for waiting in self._actuator.waiting())
        wanted = Counter({labels: -(-count // self._slots) for labels, count in wanted.items()})
        by_labels = defaultdict[Labels, list[Trial]](list)
        for worker in self._requested.values():
            by_labels[_labels(worker)].append(worker)
        for labels, workers in by_labels.items():
            # Cancel requests without a machine first. Workers that have a machine are more useful.
            workers.sort(key=lambda worker: worker.trial_id not in self._found_at)
            for worker in workers[wanted[labels] :]:
                del self._requested[worker.trial_id]
                tune.stop_trial(worker)
                _unstage(tune, worker)

    def _kill_silent_workers(self, tune: Any) -> None:
        """Kill workers that are overdue. User code may have stopped a worker's process, or the storage may block it.

        After the driver itself was busy or stopped, messages of workers may still be unread. So a worker is killed only if Tune has
        called `turn` regularly for `SILENT_NS` and has no undelivered message of the worker. If Ray does not report the death of a
        killed worker within `GONE_AFTER_S`, its attempt is ended as lost.
        """
        now = self._clock()
        if now - self._turned_at > UNRESPONSIVE_S:
            self._responsive_since = now
        self._turned_at = now
        if now - self._responsive_since < SILENT_NS / 1e9:
            return
        for attempt in self._loop.overdue():
            worker = self._running.get(attempt)
            if worker is None:  # the attempt still waits for a worker
                continue
            killed_at = self._killed.get(worker.trial_id)
            if killed_at is None and not _has_message(tune, worker):
                log.warning("%s, attempt %d: %s", *attempt, SILENT)
                self._kill(worker)
            elif killed_at is not None and now - killed_at > GONE_AFTER_S:
                self._give_up(tune, worker)

    def _kill(self, worker: Trial) -> None:
        self._killed[worker.trial_id] = self._clock()
        kill_worker(worker.temporary_state.ray_actor)

    def _give_up(self, tune: Any, worker: Trial) -> None:
        """End the attempts of a killed worker as lost, although Ray has not reported the worker's death."""
        tune.stop_trial(worker)
        _unstage(tune, worker)
        nodes, attempts = self._nodes.get(worker.trial_id, []), sorted(self._attempts[worker.trial_id])
        self._lost(attempts, SILENT, nodes, preempted=bool(nodes) and _is_any_preempted(None, nodes))
        self._ended(worker)


def _is_any_preempted(error: Exception | None, nodes: list[str]) -> bool:
    """Return whether a worker's death counts as a preemption: the preemption of any of its nodes ends the worker."""
    return any(was_preempted(error, node) for node in nodes or [""])


def _labels(worker: Trial) -> Labels:
    """Return the node labels that the worker's machine must have."""
    return tuple((name, value) for name, value in worker.config["labels"])


def _has_message(tune: Any, worker: Trial) -> bool:
    """Return True if the worker has sent a message that Tune has not delivered yet."""
    manager, actor = tune._actor_manager, tune._trial_to_actor.get(worker)
    # Tune's list of an actor's futures includes those whose results it has delivered. Only the others still have an event.
    futures = list(
        manager._tracked_actors_to_task_futures.get(actor, set()) & manager._actor_task_events.get_futures()
    )
    return bool(futures) and bool(ray.wait(futures, num_returns=1, timeout=0)[0])


def _unstage(tune: Any, trial: Trial) -> None:
    """Make Tune stop reserving resources for a worker that will never start.

    Tune counts a requested worker (in Tune, a trial) as pending until it has started. For one that never starts, Tune would keep
    an idle actor and its node's CPUs indefinitely.
    """
    if trial in tune._staged_trials:
        tune._unstage_trial_with_resources(trial)


def _error(trial: Trial) -> Exception | None:
    """Return the error with which a worker died, or None if it cannot be read.

    It is read from Tune's local file, because Tune's own accessor reads the copy in storage, which may not exist yet.
    """
    try:
        with open(trial.pickled_error_file, "rb") as file:
            error: Exception = cloudpickle.load(file)
    except Exception:  # the file is missing or damaged, or names a class that this process cannot import
        return None
    return error


def _why(error: Exception | None) -> str:
    if error is None:
        return "the worker was lost"
    return f"the worker was lost: {type(error).__name__}: {error}"[:1000]
