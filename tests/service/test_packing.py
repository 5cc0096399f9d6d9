"""Trials that share workers: which number is recorded, and how many trials then run at once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeProber, FakeService
from tuner.cluster.nodes import Node
from tuner.domain.usage import Usage
from tuner.service.trainables import Described

GIB = 1 << 30
GPU_NODE = Node("gpu", cpus=8, gpus=1, memory_bytes=32 * GIB)


@dataclass
class BatchProber(FakeProber):
    """A prober for which every trainable trains in batches."""

    def describe(self, entry: str, package: Path | None = None, *, kind: str = "") -> Described:
        return replace(super().describe(entry, package, kind=kind), trains_in_batches=True)


@pytest.fixture
def batches(service: FakeService) -> TestClient:
    return fakes.client_of(replace(service, prober=BatchProber()))


def packed(client: TestClient, resources: Mapping[str, Any], **changes: Any) -> int:
    job = fakes.submit(client, resources={"pack": "auto", **resources}, **changes)
    shown: int = client.get(f"/v1/jobs/{job}").json()["resources"]["pack"]
    return shown


def measured(
    service: FakeService,
    client: TestClient,
    used_gib: float,
    *,
    gpu_gib: int = 80,
    resources: Mapping[str, Any] | None = None,
    **changes: Any,
) -> None:
    """Run a job whose trials used this much memory of their GPU."""
    job = fakes.submit(client, resources=resources or {"gpus": 1}, **changes)
    fakes.begin(service, job)
    run = fakes.simulate(service, job, messages=5)
    use = Usage(
        gpu_samples=9,
        gpu_percent=90,
        gpu_memory_peak_bytes=int(used_gib * GIB),
        facts={"gpu_memory_bytes": gpu_gib * GIB},
    )
    with run.journal.transaction() as tx:
        tx.put_usage("trial_00000", 1, use)


def test_pack_multiplies_the_trials_that_run_at_once(client: TestClient) -> None:
    shown = [
        client.post("/v1/jobs", json=fakes.body(resources=resources)).json()
        for resources in ({}, {"pack": 4}, {"pack": 4, "max_concurrent_trials": 3}, {"cpus": 2, "pack": 4})
    ]
    assert [job["concurrency"] for job in shown] == [2, 8, 3, 4]
    assert [job["resources"]["pack"] for job in shown] == [1, 4, 4, 4]
    alone, four, *_ = (job["price"]["trial_usd_per_hour"] for job in shown)
    assert alone == four, "the price is that of a worker"
    wider = client.patch(f"/v1/jobs/{shown[2]['id']}", json={"max_concurrent_trials": 100})
    assert wider.json()["concurrency"] == 8


@pytest.mark.parametrize(
    ("resources", "why"),
    [
        ({"pack": 0}, "between 1 and 64"),
        ({"pack": 65}, "between 1 and 64"),
        ({"pack": 2, "nodes": 2}, "nodes"),
    ],
)
def test_wrong_pack_is_refused(client: TestClient, resources: Mapping[str, int], why: str) -> None:
    problem = check_problem(client.post("/v1/jobs", json=fakes.body(resources=resources)), 422)
    assert [error["pointer"] for error in problem["errors"]] == ["/resources/pack"]
    assert why in problem["errors"][0]["detail"]


def test_auto_packs_nothing_if_nothing_is_known(service: FakeService, client: TestClient) -> None:
    assert packed(client, {}) == 1
    service.cluster.fake_nodes = [GPU_NODE]
    assert packed(client, {"gpus": 1}) == 1


def test_auto_packs_trainables_that_train_in_batches(service: FakeService, batches: TestClient) -> None:
    assert packed(batches, {}) == 16
    assert packed(batches, {"cpus": 2, "processes_per_node": 2}) == 1, "each trial has two processes"
    assert packed(batches, {}, kind="ray_tune") == 1, "the trainable is called in another way"
    service.cluster.fake_nodes = [GPU_NODE]
    assert packed(batches, {"gpus": 1}) == 16


@pytest.mark.parametrize(("used_gib", "gpus", "pack"), [(10, 1, 7), (10, 0.5, 3), (1, 1, 16), (79, 1, 1)])
def test_auto_packs_as_many_trials_as_fit_into_the_measured_gpu_memory(
    service: FakeService, batches: TestClient, used_gib: float, gpus: float, pack: int
) -> None:
    service.cluster.fake_nodes = [GPU_NODE]
    measured(service, batches, used_gib)
    assert packed(batches, {"gpus": gpus}) == pack
    assert packed(batches, {}) == 16, "the memory of the GPU does not limit trials without GPUs"


@pytest.mark.parametrize(
    "other",
    [
        {"resources": {"gpus": 0.5}},
        {"resources": {"gpus": 1, "pack": 2}},
        {"constants": {"batch_size": 8}},
    ],
)
def test_measurements_of_shared_gpus_and_of_other_constants_do_not_count(
    service: FakeService, client: TestClient, other: Any
) -> None:
    service.cluster.fake_nodes = [GPU_NODE]
    measured(service, client, 10, **other)
    assert packed(client, {"gpus": 1}) == 1
    measured(service, client, 20)
    assert packed(client, {"gpus": 1}) == 3


def test_memory_counts_only_if_it_is_known_for_all_machines_of_the_job(
    service: FakeService, client: TestClient
) -> None:
    labels = {"instance-type": "large"}
    service.cluster.fake_nodes = [GPU_NODE]
    measured(service, client, 10)
    service.cluster.fake_nodes = [GPU_NODE, Node("other", 8, 1, 32 * GIB, labels)]
    assert packed(client, {"gpus": 1, "instance_type": "large"}) == 1


def test_repeated_request_returns_the_job_with_the_number_that_was_chosen(
    service: FakeService, batches: TestClient
) -> None:
    service.cluster.fake_nodes = [GPU_NODE]
    request, headers = fakes.body(resources={"gpus": 1, "pack": "auto"}), {"Idempotency-Key": "same"}
    first = batches.post("/v1/jobs", json=request, headers=headers).json()
    measured(service, batches, 20)
    again = batches.post("/v1/jobs", json=request, headers=headers).json()
    assert (again["id"], again["resources"]["pack"]) == (first["id"], 16)
    assert packed(batches, {"gpus": 1}) == 3, "a new job would get another number"


def test_plan_does_not_depend_on_how_many_trials_share_a_worker(batches: TestClient) -> None:
    planning = {"step_seconds": 12}

    def plan(**resources: object) -> Any:
        answer = batches.post(
            "/v1/plans", json=fakes.body(budget={"usd": 0.1}, resources=resources, planning=planning)
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    alone, four, auto = plan(), plan(pack=4), plan(pack="auto")
    for name in ("usd", "finish_seconds", "trials", "rungs"):
        assert alone[name] == four[name] == auto[name]
    assert [each["inputs"]["concurrency"] for each in (alone, four, auto)] == [2, 8, 32]
    assert auto["job"]["resources"]["pack"] == "auto"
    # Five trials at once need two workers, and four trials need one.
    assert plan(pack=4, max_concurrent_trials=5)["finish_seconds"] == alone["finish_seconds"]
    assert (
        plan(pack=4, max_concurrent_trials=4)["finish_seconds"]
        == plan(max_concurrent_trials=1)["finish_seconds"]
    )


def test_pilot_measures_trials_that_run_alone(batches: TestClient) -> None:
    pilots = []
    for resources in ({"pack": 4}, {}):
        body = fakes.body(budget={"usd": 0.1}, resources=resources, planning={"pilot": {"usd": 0.01}})
        answer = batches.post("/v1/pilots", json=body)
        assert answer.status_code in (200, 201), answer.text
        pilots.append(answer.json())
    assert pilots[0]["resources"]["pack"] == 1
    assert pilots[0]["id"] == pilots[1]["id"]
