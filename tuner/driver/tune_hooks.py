"""Tune's searcher, scheduler and callback, which only forward events to the loop.

Tune's own pausing, restoring and checkpointing are not used. Tune treats an exception in a hook as the failure of a
trial. In this module an exception means that the state in memory may differ from the recorded state, so it ends the
driver.
"""

import functools
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import ray
from ray import cloudpickle
from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from tuner.driver.actuator import Actuator, actor_sender
from tuner.driver.loop import SILENT_NS, Loop
from tuner.driver.messages import ENDED, Progress
from tuner.driver.ports import Assignment
from tuner.driver.ray_display import RayDisplay
from tuner.driver.ray_machines import AssignedMachines, kill_worker, node_of, was_preempted
from tuner.worker.actor import MESSAGES

# How many trials Tune may keep in addition to the running ones. Above that, the records of ended trials are
# dropped.
FORGET_AT = 200
# How long a worker may take to start on the machine that was found for it. Ray gives up on a process after 60 s and
# starts another one. If the machine is taken away meanwhile, Ray silently looks for the next one.
STARTS_WITHIN_S = 120.0
# How many waiting attempts are checked for a better place per turn. Each check looks at all trials and
# machines of the job.
ASKED_AT_ONCE = 20

# If Tune has not called the scheduler for this long, the driver was busy or stopped.
INATTENTIVE_S = 2.0
# How long Ray may take to report that a worker that was killed is dead.
GONE_AFTER_S = 3.0
SILENT = "the worker sent nothing after it should have ended, and was killed"

log = logging.getLogger("tuner.driver")
P = ParamSpec("P")
R = TypeVar("R")


def exit_on_error(hook: Callable[P, R]) -> Callable[P, R]:
    """End the process at once if `hook` raises. The next driver continues from the record."""

    @functools.wraps(hook)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return hook(*args, **kwargs)
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    return call


class Unrecorded:
    """Base class of hooks whose pickled state is empty.

    Tune pickles its hooks into snapshots of itself, but nothing is ever restored from them.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {}


class AttemptSearcher(Unrecorded, Searcher):
    """The searcher, which gives Tune the attempts that the loop wants to begin.

    `shared` is the part of Tune's trial config that is the same for all attempts.
    """

    def __init__(
        self, loop: Loop, actuator: Actuator, shared: dict[str, Any], each_turn: Callable[[], None]
    ) -> None:
        super().__init__()
        self._loop, self._actuator, self._shared, self._each_turn = loop, actuator, shared, each_turn

    @exit_on_error
    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next attempt, None if there is none now, or FINISHED if the job has ended.

        While this returns None and nothing runs, Tune calls no other hook for up to ten minutes.
        """
        self._each_turn()
        for progress in self._actuator.withdraw_queued():
            self._loop.progress(progress)
        assignment = self._actuator.next_assignment()
        if assignment is not None:
            labels = assignment.offer.labels if assignment.offer is not None else ()
            attempt = {"trial": assignment.trial, "attempt": assignment.attempt}
            return {**self._shared, **attempt, "labels": [list(label) for label in labels]}
        return None if self._loop.end is None else str(Searcher.FINISHED)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        pass

    def save(self, checkpoint_path: str) -> None:
        pass

    def restore(self, checkpoint_path: str) -> None:
        pass


class EventScheduler(Unrecorded, TrialScheduler):
    """The scheduler, which passes each message of a worker, and each worker's death, to the loop."""

    _supports_buffered_results = False

    def __init__(
        self,
        loop: Loop,
        actuator: Actuator,
        attached: AssignedMachines,
        each_turn: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._loop, self._actuator, self._each_turn = loop, actuator, each_turn
        self._attached, self._clock = attached, clock
        self._nodes: dict[str, str] = {}  # by the id of Tune's trial, which is our attempt
        # Attempts for which Tune looks for a worker.
        self._added: dict[tuple[str, int], Trial] = {}
        # When a machine was first seen for an attempt whose worker is starting.
        self._found_at: dict[tuple[str, int], float] = {}
        self._killed: dict[
            tuple[str, int], float
        ] = {}  # when each silent worker was killed, by trial and attempt
        # The time of the last turn of Tune's loop, and the time since which no turn came late.
        self._turned_at = self._attentive_since = clock()
        self._next = 0  # the waiting attempt to check next

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        return True

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self._added[trial.config["trial"], trial.config["attempt"]] = trial

    @exit_on_error
    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Pass a worker's message to the loop.

        A worker on a node that is about to be taken away must not be used again, but Tune keeps each worker
        that it stops, for reuse. So such a worker is ordered to continue instead of to stop. It refuses and
        is then removed. Its later messages about the attempt are ignored as outdated.
        """
        progress = Progress.parse(result[MESSAGES][0])
        self._nodes[trial.trial_id] = progress.node
        over = progress.state in ENDED
        machine = self._attached.note_message(progress)
        # Before the attempt's time is counted, so that all of it is billed at this machine's price.
        if machine is not None:
            self._loop.node_assigned(progress.trial, progress.attempt, machine)
        if over:
            self._actuator.ended(progress.trial, progress.attempt)
            self._attached.forget(progress.trial, progress.attempt)
        self._loop.progress(progress)
        return str(TrialScheduler.STOP if over and not progress.leaving else TrialScheduler.CONTINUE)

    @exit_on_error
    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Report a dead worker to the loop, which decides about its trial. Tune does not retry (`max_failures=0`).

        A worker that died idle is noticed when it is given its next attempt.
        """
        name, attempt = trial.config["trial"], trial.config["attempt"]
        error, node = _error(trial), self._nodes.pop(trial.trial_id, "")
        self._actuator.ended(name, attempt)
        self._attached.forget(name, attempt)
        _unstage(tune_controller, trial)
        if self._loop.runs(name, attempt):
            node = node or node_of(error, trial.temporary_state.ray_actor)
            taken = was_preempted(error, node)
            why = SILENT if self._killed.pop((name, attempt), None) is not None else _why(error)
            self._loop.lost(name, attempt, why, preempted=taken, node=node)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self._nodes.pop(trial.trial_id, None)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        pass

    @exit_on_error
    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Do the driver's periodic work, and return the pending trial that has waited longest.

        Tune calls this on every turn of its loop, at least ten times per second. Pending trials start by themselves.
        The result only decides who gets a worker that becomes free, which Tune would give to the newest trial.
        """
        self._each_turn()
        self._kill_silent_workers(tune_controller._tune_controller)
        forget_ended(tune_controller._tune_controller)
        for progress in self._actuator.withdraw_queued():
            self._loop.progress(progress)
        for progress in self._actuator.withdraw_pending():
            self._give_up(tune_controller, progress.trial, progress.attempt)
            self._loop.progress(progress)
        for waiting in self._asked_now():
            if self._starts(tune_controller._tune_controller, waiting.trial, waiting.attempt):
                continue
            if self._loop.relocate(waiting.trial, waiting.attempt):
                self._actuator.ended(waiting.trial, waiting.attempt)
                self._give_up(tune_controller, waiting.trial, waiting.attempt)
        pending = {(assignment.trial, assignment.attempt) for assignment in self._actuator.pending()}
        self._added = {name: trial for name, trial in self._added.items() if name in pending}
        self._found_at = {name: at for name, at in self._found_at.items() if name in pending}
        return next(iter(self._added.values()), None)

    def _kill_silent_workers(self, tune: Any) -> None:
        """Kill workers that are overdue: user code can stop its worker's process, and storage can block it.

        A driver that was busy or stopped has messages that it has not read yet. So it kills no worker until
        Tune has called it regularly for some seconds, and no worker whose next message has arrived.
        """
        now = self._clock()
        if now - self._turned_at > INATTENTIVE_S:
            self._attentive_since = now
        self._turned_at = now
        if now - self._attentive_since < SILENT_NS / 1e9:
            return
        for name, attempt in self._loop.overdue():
            trial = _live_trial(tune, name, attempt)
            killed_at = self._killed.get((name, attempt))
            if killed_at is not None and now - killed_at > GONE_AFTER_S:
                self._forget_silent(tune, trial, name, attempt)
            elif trial is not None and killed_at is None and not _has_message(tune, trial):
                log.warning("%s, attempt %d: %s", name, attempt, SILENT)
                self._killed[name, attempt] = now
                kill_worker(trial.temporary_state.ray_actor)

    def _forget_silent(self, tune: Any, trial: Trial | None, name: str, attempt: int) -> None:
        """End the attempt of a killed worker as lost, although Ray has not reported the worker's death."""
        del self._killed[name, attempt]
        self._actuator.ended(name, attempt)
        self._attached.forget(name, attempt)
        if trial is not None:
            tune.stop_trial(trial)
            _unstage(tune, trial)
        node = self._nodes.pop(trial.trial_id, "") if trial is not None else ""
        taken = bool(node) and was_preempted(None, node)
        self._loop.lost(name, attempt, SILENT, preempted=taken, node=node)

    def _asked_now(self) -> list[Assignment]:
        """Return the next few waiting attempts to check for a better place, in turn.

        A thousand attempts may wait while machines start, too many to check on each turn.
        """
        waiting = self._actuator.pending()
        if self._next >= len(waiting):
            self._next = 0
        batch = waiting[self._next : self._next + ASKED_AT_ONCE]
        self._next += len(batch)
        return batch

    def _starts(self, tune: Any, name: str, attempt: int) -> bool:
        """Return whether the attempt was given a machine and its worker is starting there. Such an attempt is
        not moved.
        """
        actor = tune._trial_to_actor.get(self._added.get((name, attempt)))
        if actor is None or not tune._actor_manager.is_actor_started(actor):
            return False
        now = self._clock()
        return now - self._found_at.setdefault((name, attempt), now) < STARTS_WITHIN_S

    def _give_up(self, tune_controller: Any, name: str, attempt: int) -> None:
        """Have Tune stop looking for a worker for this attempt."""
        tune = tune_controller._tune_controller
        trial = _live_trial(tune, name, attempt)
        if trial is not None:
            tune.stop_trial(trial)
            _unstage(tune, trial)

    def debug_string(self) -> str:
        return "decided by the tuning service"


class StartCallback(Unrecorded, Callback):
    """The callback, which checks the worker's machine and sends the worker its attempt before Tune starts training."""

    def __init__(
        self, loop: Loop, actuator: Actuator, attached: AssignedMachines, display: RayDisplay
    ) -> None:
        self._loop, self._actuator, self._attached = loop, actuator, attached
        self._display = display

    @exit_on_error
    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        name, attempt, actor = trial.config["trial"], trial.config["attempt"], trial.temporary_state.ray_actor
        lease_ns = self._loop.node_assigned(name, attempt, self._attached.machine_of(name, attempt, actor))
        self._actuator.started(name, actor_sender(actor), lease_ns)
        self._display.assign(actor._actor_id.binary(), name, attempt)


def _live_trial(tune: Any, name: str, attempt: int) -> Trial | None:
    """Return Tune's trial object for this attempt, or None if Tune has dropped it."""
    for trial in tune.get_live_trials():
        if trial.config["trial"] == name and trial.config["attempt"] == attempt:
            return trial
    return None


def _has_message(tune: Any, trial: Trial) -> bool:
    """Return True if the worker has sent a message that Tune has not delivered yet."""
    manager, actor = tune._actor_manager, tune._trial_to_actor.get(trial)
    # Tune keeps futures that it has delivered together with the others. Only those with an event are still to come.
    futures = list(
        manager._tracked_actors_to_task_futures.get(actor, set()) & manager._actor_task_events.get_futures()
    )
    return bool(futures) and bool(ray.wait(futures, num_returns=1, timeout=0)[0])


def forget_ended(tune: Any) -> None:
    """Drop the records of ended trials from Tune, many at once.

    Tune keeps about 30 kB for each trial that it ever had, and searches all of them when nothing runs. Our
    own records are in the database. The newest ended trial stays, because Tune would otherwise conclude that
    nothing was run.
    """
    if len(tune._trials) < FORGET_AT + len(tune._live_trials):
        return
    used = {*tune._live_trials, *tune._trial_to_actor, *tune._resetting_trials, *tune._staged_trials}
    ended = [trial for trial in tune._trials if trial.is_finished() and trial not in used]
    gone = set(ended[:-1])
    tune._trials[:] = [trial for trial in tune._trials if trial not in gone]
    for kept in (tune._stopped_trials, tune._failed_trials, tune._trials_to_cache):
        kept.difference_update(gone)
    for trial in gone:
        tune._trial_metadata.pop(trial.trial_id, None)


def _unstage(tune: Any, trial: Trial) -> None:
    """Make Tune stop reserving a worker for a trial that never starts.

    Tune counts a trial as one that needs a worker until its worker has started. For a trial that never
    starts, Tune would keep an idle worker and its node's CPUs indefinitely.
    """
    if trial in tune._staged_trials:
        tune._unstage_trial_with_resources(trial)


def _error(trial: Trial) -> Exception | None:
    """Return a trial's error, read from the local file. Tune's own accessor reads the copy in storage, which may not
    exist yet.
    """
    try:
        with open(trial.pickled_error_file, "rb") as file:
            error: Exception = cloudpickle.load(file)
    except (OSError, TypeError, ValueError, AttributeError):
        return None
    return error


def _why(error: Exception | None) -> str:
    if error is None:
        return "the worker was lost"
    return f"the worker was lost: {type(error).__name__}: {error}"[:1000]
