"""Import Ray Tune without Ray Data and pandas. The driver imports all names of Ray Tune from this module.

Ray Data and pandas would take a third of the processor time that a driver needs to start.
"""

from tuner.worker.ray_imports import without_pandas

with without_pandas():
    from ray import tune
    from ray.air._internal import usage
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.air.execution._internal.tracked_actor_task import TrackedActorTask
    from ray.train._internal.storage import StorageContext
    from ray.tune.execution import experiment_state
    from ray.tune.execution.class_cache import _ActorClassCache
    from ray.tune.execution.placement_groups import PlacementGroupFactory
    from ray.tune.execution.tune_controller import TuneController
    from ray.tune.experiment import Trial
    from ray.tune.experiment.trial import _TrialInfo
    from ray.tune.schedulers import TrialScheduler
    from ray.tune.search import Searcher

__all__ = [
    "PlacementGroupFactory",
    "RayActorManager",
    "Searcher",
    "StorageContext",
    "TrackedActorTask",
    "Trial",
    "TrialScheduler",
    "TuneController",
    "_ActorClassCache",
    "_TrialInfo",
    "experiment_state",
    "tune",
    "usage",
]
