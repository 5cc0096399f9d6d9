"""Tune's searcher, scheduler and callback, which only forward events to the worker pool.

Tune's own pausing, restoring and checkpointing are not used. Tune treats an exception in a hook as the failure of a
trial. In this module an exception means that the state in memory may differ from the recorded state, so it ends the
driver.
"""

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from tuner.driver.ray_tune import Searcher, Trial, TrialScheduler, tune
from tuner.driver.worker_pool import WorkerPool
from tuner.worker.actor import MESSAGES

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


class WorkerSearcher(Unrecorded, Searcher):
    """The searcher, which requests workers from Tune.

    Args:
        pool: The workers.
        shared: The part of Tune's trial config that is the same for all workers.
        each_turn: Called on every turn of Tune's loop.
        is_over: Returns whether the job has ended.
    """

    def __init__(
        self,
        pool: WorkerPool,
        shared: dict[str, Any],
        each_turn: Callable[[], None],
        is_over: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._pool, self._shared, self._each_turn, self._is_over = pool, shared, each_turn, is_over

    @exit_on_error
    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the config of a new worker, None if there are enough, or FINISHED if the job has ended.

        While this returns None and nothing runs, Tune calls no other hook for up to ten minutes.
        """
        self._each_turn()
        self._pool.withdraw()
        labels = self._pool.to_request()
        if labels is not None:
            return {**self._shared, "labels": [list(label) for label in labels]}
        return str(Searcher.FINISHED) if self._is_over() else None

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        pass

    def save(self, checkpoint_path: str) -> None:
        pass

    def restore(self, checkpoint_path: str) -> None:
        pass


class WorkerScheduler(Unrecorded, TrialScheduler):
    """The scheduler, which passes each message of a worker, and each worker's death, to the pool."""

    _supports_buffered_results = False

    def __init__(self, pool: WorkerPool, each_turn: Callable[[], None]) -> None:
        super().__init__()
        self._pool, self._each_turn = pool, each_turn

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        return True

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self._pool.requested(trial)

    @exit_on_error
    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        keeps = self._pool.heard(trial, result[MESSAGES][0])
        return str(TrialScheduler.CONTINUE if keeps else TrialScheduler.STOP)

    @exit_on_error
    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Tell the pool about a dead worker. Tune does not start it again (`max_failures=0`).

        A worker that died idle is noticed when Tune reuses it.
        """
        self._pool.died(tune_controller, trial)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        pass

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        pass

    @exit_on_error
    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Do the driver's periodic work, and return the worker that gets the next free place.

        Tune calls this on every turn of its loop, at least ten times per second. Other workers start by themselves.
        """
        self._each_turn()
        return self._pool.turn(tune_controller._tune_controller)

    def debug_string(self) -> str:
        return "decided by the tuning service"


class StartCallback(Unrecorded, tune.Callback):
    """The callback, which gives a worker its first attempt before Tune calls it."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    @exit_on_error
    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._pool.started(trial)
