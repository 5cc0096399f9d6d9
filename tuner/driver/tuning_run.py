"""One run of Ray Tune, which carries out the loop's commands until the loop has ended."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from ray import tune
from ray.air._internal import usage
from ray.tune.execution.placement_groups import PlacementGroupFactory

from tuner.domain.job import JobSpec, Resources
from tuner.driver.actuator import Actuator
from tuner.driver.loop import Loop
from tuner.driver.ray_display import RayDisplay
from tuner.driver.ray_machines import Attached
from tuner.driver.tune_hooks import AttemptSearcher, EventScheduler, StartCallback
from tuner.worker.actor import Worker
from tuner.worker.scratch import Scratch


def run_tune(
    spec: JobSpec,
    loop: Loop,
    actuator: Actuator,
    *,
    package: Mapping[str, str] | None,
    concurrency: int,
    display: RayDisplay,
    each_turn: Callable[[], None],
) -> None:
    """Run Tune, and return when the loop has ended and all workers are gone.

    Args:
        spec: The job's spec.
        loop: The loop of the job.
        actuator: The loop's world.
        package: What workers need to load the job's package. None: it has none.
        concurrency: How many trials may run at once.
        display: Shows the job in Ray's dashboard.
        each_turn: Called on every turn of Tune's loop.
    """
    shared = {"entry": spec.trainable, "name": spec.name, "package": package}
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(concurrency)
    usage.tag_callbacks = _not_counted
    folder, attached = Scratch("tune"), Attached()
    try:
        tune.Tuner(
            worker_class(spec),
            tune_config=tune.TuneConfig(
                search_alg=AttemptSearcher(loop, actuator, shared, each_turn),
                scheduler=EventScheduler(loop, actuator, attached, each_turn),
                num_samples=-1,
                reuse_actors=True,
                trial_name_creator=_name,
                trial_dirname_creator=_name,
            ),
            run_config=tune.RunConfig(
                name="run",
                storage_path=str(folder.path),
                callbacks=[StartCallback(loop, actuator, attached, display)],
                failure_config=tune.FailureConfig(max_failures=0),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                verbose=0,
            ),
        ).fit()
    finally:
        folder.close()


def _not_counted(callbacks: object) -> bool:
    """Skip Ray's usage statistics about callbacks, which are not sent anyway.

    To classify each callback, Ray would import MLflow, Weights & Biases and Comet if they are installed. That costs
    seconds at the start of each job.
    """
    return False


def worker_class(spec: JobSpec) -> type[Worker]:
    """Make a class of workers that asks for the resources of a trial, and is named for its job in Ray's dashboard."""

    class JobWorker(Worker):
        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
            return _placement(spec.resources, config)

    JobWorker.__name__ = JobWorker.__qualname__ = f"Worker of {spec.name}"
    return JobWorker


def _placement(size: Resources, config: Mapping[str, Any]) -> PlacementGroupFactory:
    """Return the resources of a worker.

    Tune keeps idle actors by the resources that were requested, so an actor is reused only for attempts of the same
    size and labels.
    """
    bundle: dict[str, float] = {"CPU": size.cpus}
    if size.gpus:
        bundle["GPU"] = size.gpus
    if not config.get("labels"):
        return PlacementGroupFactory([bundle])
    return PlacementGroupFactory([bundle], bundle_label_selector=[dict(config["labels"])])


def _name(trial: Any) -> str:
    return f"{trial.config['trial']}-a{trial.config['attempt']}"
