"""Run Ray Tune once. It carries out the loop's commands until the loop has ended."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from ray.util import register_serializer

from tuner.domain.job import JobSpec, Resources
from tuner.driver.actuator import Actuator
from tuner.driver.loop import Loop
from tuner.driver.ray_display import RayDisplay
from tuner.driver.ray_tune import (
    PlacementGroupFactory,
    StorageContext,
    _ActorClassCache,
    _TrialInfo,
    tune,
    usage,
)
from tuner.driver.tune_hooks import StartCallback, WorkerScheduler, WorkerSearcher
from tuner.driver.worker_pool import WorkerPool
from tuner.worker.actor import Worker
from tuner.worker.scratch import Scratch

MAX_PENDING = 10_000  # as many as a job may run at once


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
        actuator: The loop's world.
        package: What workers need to load the job's package. None: it has none.
        display: Shows the job in Ray's dashboard.
        each_turn: Called on every turn of Tune's loop.
    """
    shared = {
        "entry": spec.entry,
        "name": spec.name,
        "package": package,
        "constants": dict(spec.constants),
        "nodes": spec.resources.nodes,
        "resources": {"CPU": spec.resources.cpus, "GPU": spec.resources.gpus},
    }
    # The pool limits how many workers are requested, also after a user has changed how many trials may run at once.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(MAX_PENDING)
    # Skip Ray's usage statistics about callbacks, which are not sent anyway. To classify each callback, Ray would import MLflow, Weights &
    # Biases and Comet if they are installed. That costs seconds at the start of each job.
    usage.tag_callbacks = lambda callbacks: False
    start_actors_without_tune()
    send_without_tune()
    folder, pool = Scratch("tune"), WorkerPool(loop, actuator, display)
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
    """Make the trainable that represents a worker in Tune. It asks for the resources of a trial.

    Its `actor` is the class of the actors, which is named for the job in Ray's dashboard.
    """

    class JobWorker(tune.Trainable):  # type: ignore[misc]
        actor = type(f"Worker of {spec.name}", (Worker,), {"__module__": Worker.__module__})

        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
            return _placement(spec.resources, config)

    return JobWorker


def start_actors_without_tune() -> None:
    """Have Tune start the `actor` of a trainable, if it has one, instead of the trainable itself."""
    remote_class = _ActorClassCache.get

    def get(cache: _ActorClassCache, trainable: type) -> Any:
        return remote_class(cache, getattr(trainable, "actor", trainable))

    _ActorClassCache.get = get


def send_without_tune() -> None:
    """Leave out what Tune adds to the arguments of each worker: it is not used, and loading it would import Tune there."""
    register_serializer(_TrialInfo, serializer=lambda _: (), deserializer=dict)
    register_serializer(StorageContext, serializer=lambda _: (), deserializer=tuple)


def _placement(size: Resources, config: Mapping[str, Any]) -> PlacementGroupFactory:
    """Return the resources of a worker, with one bundle for each node of a trial. Ray reserves all of them at once.

    Tune keeps idle actors by the resources that were requested, so an actor is reused only for workers of the same
    size and labels.
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
