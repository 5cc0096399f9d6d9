"""Tests of the import of Ray Tune, in a process that has not imported it yet, and of the calls that Tune makes to workers."""

import subprocess
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.air.execution._internal.event_manager import RayEventManager
from ray.air.execution._internal.tracked_actor_task import TrackedActorTask

from tuner.driver.tuning_run import send_orders_with_calls

SCRIPT = """
import sys
import tuner.driver.main, tuner.driver.ray_tune
assert not {"pandas", "ray.data"} & sys.modules.keys()

from tuner.domain.job import Resources
from tuner.driver.tuning_run import _placement
request = _placement(Resources(cpus=2, gpus=1, nodes=2), {"labels": [["market", "spot"]]})
assert request.bundles == [{"CPU": 2, "GPU": 1}] * 2
assert request.strategy == "STRICT_SPREAD"
assert request._kwargs == {"bundle_label_selector": [{"market": "spot"}] * 2}

from ray.tune.impl import out_of_band_serialize_dataset
from ray.tune.analysis import experiment_analysis
assert experiment_analysis.pd.DataFrame([1]).size == 1
assert "pandas" in sys.modules

import ray, ray.data, pandas
assert ray.data.Dataset.__module__ == "ray.data.dataset" and pandas.DataFrame([1]).size == 1
"""


def test_driver_reserves_nodes_together_and_imports_ray_data_and_pandas_only_once_they_are_used() -> None:
    """The nodes of a trial are reserved on machines of one kind."""
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)


class Actor:
    """A worker's actor. The result of a call is a text."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []  # the name of each task, and the argument of `train`
        self.train = SimpleNamespace(
            remote=lambda orders: self._train("", orders),
            options=lambda name: SimpleNamespace(remote=lambda orders: self._train(name, orders)),
        )
        self.stop = SimpleNamespace(remote=lambda: "stopped")

    def _train(self, name: str, orders: Any) -> str:
        self.calls.append((name, orders))
        return f"result {len(self.calls)}"


def test_calls_of_a_worker_carry_its_orders_and_tune_forgets_their_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        RayActorManager, "_schedule_tracked_actor_task", RayActorManager._schedule_tracked_actor_task
    )
    begin = {"order": "begin", "trial": "trial_00007", "attempt": 2, "target_step": 9}
    orders = [[{"order": "finish"}, begin], [{"order": "pause"}], []]
    send_orders_with_calls(lambda _: orders.pop(0))
    actor, manager = Actor(), RayActorManager.__new__(RayActorManager)
    worker: Any = "worker"
    manager._live_actors_to_ray_actors_resources = {worker: (actor, None)}
    manager._actor_task_events = RayEventManager()
    manager._tracked_actors_to_task_futures = defaultdict(set)
    results: list[Any] = []
    task = TrackedActorTask(worker, on_result=lambda _, value: results.append(value))
    for number in range(1, 4):
        manager._schedule_tracked_actor_task(tracked_actor_task=task, method_name="train", args=(), kwargs={})
        assert manager._tracked_actors_to_task_futures == {worker: {f"result {number}"}}
        on_result, _ = manager._actor_task_events._tracked_futures.pop(f"result {number}")
        on_result(f"value {number}")
    assert results == ["value 1", "value 2", "value 3"]
    assert actor.calls == [
        ("trial_00007, attempt 2, to step 9", [{"order": "finish"}, begin]),
        ("", [{"order": "pause"}]),
        ("", []),
    ]
    manager._schedule_tracked_actor_task(tracked_actor_task=task, method_name="stop", args=(), kwargs={})
    assert manager._tracked_actors_to_task_futures == {worker: {"result 3", "stopped"}}
