"""Run Ray Tune for one launch of a job: start workers, pass their messages to the loop, and return when the loop has ended."""

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from ray.util import register_serializer

from tuner.domain.job import JobSpec, Resources
from tuner.driver.actuator import Actuator, task_name
from tuner.driver.loop import Loop
from tuner.driver.ray_display import RayDisplay
from tuner.driver.ray_tune import (
    PlacementGroupFactory,
    RayActorManager,
    Searcher,
    StorageContext,
    TrackedActorTask,
    Trial,
    TrialScheduler,
    TuneController,
    _ActorClassCache,
    _TrialInfo,
    experiment_state,
    tune,
    usage,
)
from tuner.driver.worker_pool import WorkerPool
from tuner.worker.actor import MESSAGES, Worker
from tuner.worker.orders import Order
from tuner.worker.scratch import Scratch

# Tune's searcher, scheduler and callback, which only forward events to the worker pool.

P = ParamSpec("P")
R = TypeVar("R")


def exit_on_error(hook: Callable[P, R]) -> Callable[P, R]:
    """Wrap a hook of Tune so that an exception in it ends the process at once. The next driver then continues from the record."""

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
    """The searcher of Tune. Instead of a configuration, each of its suggestions requests a worker.

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

        While this returns None and no worker runs, Tune calls no other hook for up to ten minutes, so the periodic work is
        done here too.
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
    """The scheduler of Tune. It passes the messages of workers, and their deaths, to the pool."""

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
        keeps = self._pool.receive(trial, result[MESSAGES])
        return str(TrialScheduler.CONTINUE if keeps else TrialScheduler.STOP)

    @exit_on_error
    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Report a dead worker to the pool. Tune does not start it again (`max_failures=0`).

        The death of an idle worker is noticed only when Tune reuses the worker.
        """
        self._pool.died(tune_controller, trial)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        pass

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        pass

    @exit_on_error
    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Do the driver's periodic work, and return the requested worker that Tune should start next.

        Tune calls this on every turn of its loop, at least ten times per second. Tune also starts other requested workers by itself.
        """
        self._each_turn()
        return self._pool.turn(tune_controller._tune_controller)

    def debug_string(self) -> str:
        return "decided by the tuning service"


class StartCallback(Unrecorded, tune.Callback):
    """A callback of Tune. It gives a new worker its first attempt before Tune calls the worker's `train`."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    @exit_on_error
    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._pool.started(trial)


MAX_PENDING = 10_000  # as many as the trials that a job may run at once


def run_tune(
    spec: JobSpec,
    loop: Loop,
    actuator: Actuator,
    *,
    package: Mapping[str, str] | None,
    display: RayDisplay,
    each_turn: Callable[[], None],
) -> None:
    """Run Tune, and return when the loop has ended and all workers are gone.

    Args:
        spec: The job's spec.
        loop: The loop of the job.
        actuator: The port to which the loop sends its commands.
        package: What workers need to load the job's package. None if it has none.
        display: Shows the job in Ray's dashboard.
        each_turn: Called on every turn of Tune's loop.
    """
    shared = {
        "entry": spec.entry,
        "name": spec.name,
        "package": package,
        "constants": dict(spec.constants),
        "nodes": spec.resources.nodes,
        "pack": spec.resources.pack,
        "resources": {"CPU": spec.resources.cpus, "GPU": spec.resources.gpus},
    }
    # Make Tune's own limit so high that it has no effect. The pool limits how many workers are requested, and a user may raise that limit.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(MAX_PENDING)
    # Skip Ray's usage statistics about callbacks, which are not sent anyway. To classify each callback, Ray would import MLflow, Weights &
    # Biases and Comet if they are installed. That costs seconds at the start of each job.
    usage.tag_callbacks = lambda callbacks: False
    start_actors_without_tune()
    send_without_tune()
    take_one_snapshot()
    folder, pool = Scratch("tune"), WorkerPool(loop, actuator, display, slots=spec.resources.pack)
    send_orders_with_calls(pool.take_orders)
    try:
        tune.Tuner(
            worker_class(spec),
            tune_config=tune.TuneConfig(
                search_alg=WorkerSearcher(pool, shared, each_turn, lambda: loop.end is not None),
                scheduler=WorkerScheduler(pool, each_turn),
                num_samples=-1,
                reuse_actors=True,
                trial_name_creator=_name,
                trial_dirname_creator=_name,
            ),
            run_config=tune.RunConfig(
                name="run",
                storage_path=str(folder.path),
                callbacks=[StartCallback(pool)],
                failure_config=tune.FailureConfig(max_failures=0),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                verbose=0,
            ),
        ).fit()
    finally:
        folder.close()


def worker_class(spec: JobSpec) -> type[tune.Trainable]:
    """Return the class that represents a worker in Tune. It requests the resources of a trial.

    Its attribute `actor` is the class of the Ray actors that Tune starts. The name of the actor class contains the job's name, so that
    Ray's dashboard shows to which job an actor belongs.
    """

    class JobWorker(tune.Trainable):
        actor = type(f"Worker of {spec.name}", (Worker,), {"__module__": Worker.__module__})

        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
            return _placement(spec.resources, config)

    return JobWorker


def start_actors_without_tune() -> None:
    """Change Ray Tune in this process, so that it starts workers as Ray actors whose class does not import Tune.

    Tune usually starts a trainable's own class as the actor. After this call, it starts the class in the trainable's attribute `actor`,
    if the trainable has this attribute.
    """
    remote_class = _ActorClassCache.get

    def get(cache: _ActorClassCache, trainable: type) -> Any:
        return remote_class(cache, getattr(trainable, "actor", trainable))

    _ActorClassCache.get = get


def send_without_tune() -> None:
    """Register serializers in this process, so that Ray sends empty values for two objects that Tune adds to each worker's arguments.

    Workers do not use these objects, and would import Tune to load them.
    """
    register_serializer(_TrialInfo, serializer=lambda _: (), deserializer=dict)
    register_serializer(StorageContext, serializer=lambda _: (), deserializer=tuple)


def take_one_snapshot() -> None:
    """Change Ray Tune in this process, so that it takes a snapshot of its state only when the job has ended.

    Only Tune itself reads this snapshot. Without this change, Tune takes one in the first turn of its loop, while the workers start. For that, it
    imports Ray Data and pandas, which takes a third of a second.
    """
    take = TuneController.checkpoint

    def at_the_end(controller: TuneController, force: bool = False, wait: bool = False) -> None:
        if force:
            take(controller, force=True, wait=wait)

    TuneController.checkpoint = at_the_end
    experiment_state.out_of_band_serialize_dataset = contextlib.nullcontext


def send_orders_with_calls(take_orders: Callable[[Any], list[Order]]) -> None:
    """Change Ray Tune in this process, so that its calls of a worker's `train` carry the orders for this worker.

    A call of its own for each order would take more time.

    Tune also forgets the result of each call once it has handled it. Otherwise it keeps all results of a worker until the worker ends, which takes
    megabytes of memory for each thousand trials.

    Args:
        take_orders: Returns the orders for an actor that were not sent yet, oldest first.
    """
    schedule = RayActorManager._schedule_tracked_actor_task

    def call(
        manager: RayActorManager, tracked_actor_task: TrackedActorTask, method_name: str, **arguments: Any
    ) -> Any:
        if method_name != "train":
            return schedule(manager, tracked_actor_task, method_name, **arguments)
        worker, calls = tracked_actor_task._tracked_actor, manager._actor_task_events
        actor = manager._live_actors_to_ray_actors_resources[worker][0]
        orders = take_orders(actor)
        name = task_name(orders)
        result = (actor.train.options(name=name) if name else actor.train).remote(orders)
        calls.track_future(
            result,
            on_result=lambda value: manager._actor_task_resolved(tracked_actor_task, value),
            on_error=lambda error: manager._actor_task_failed(tracked_actor_task, error),
        )
        unhandled = manager._tracked_actors_to_task_futures[worker] & calls.get_futures()
        manager._tracked_actors_to_task_futures[worker] = unhandled | {result}
        return tracked_actor_task

    RayActorManager._schedule_tracked_actor_task = call


def _placement(size: Resources, config: Mapping[str, Any]) -> PlacementGroupFactory:
    """Return the resources of a worker, with one bundle for each node of a trial. Ray reserves all of them at once.

    Tune looks idle actors up by the resources with which they were requested. So it reuses an actor only for a worker of the same size
    and labels.
    """
    bundle: dict[str, float] = {"CPU": size.cpus}
    if size.gpus:
        bundle["GPU"] = size.gpus
    options: dict[str, Any] = {}
    if size.nodes > 1:
        options["strategy"] = "STRICT_SPREAD"
    if config.get("labels"):
        options["bundle_label_selector"] = [dict(config["labels"])] * size.nodes
    return PlacementGroupFactory([bundle] * size.nodes, **options)


def _name(trial: Any) -> str:
    return f"worker-{trial.trial_id}"
