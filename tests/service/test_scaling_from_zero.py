"""Jobs on a cluster without running workers: accepted if the autoscaler can start the machines, refused otherwise."""

from dataclasses import replace

from starlette.testclient import TestClient

from tests import fakes
from tests.fakes import FakeService
from tests.service.passes import one_pass
from tuner.cluster.nodes import Node

TYPES = (
    '{"max_workers": 3, "available_node_types": {"spot": {"max_workers": 3, "resources": {"CPU": 2}, "labels": '
    '{"ray.io/market-type": "spot", "instance-type": "tiny", "usd-per-hour": "0.02"}}}}'
)
HEAD = Node("head", 0, 0, 1 << 30, is_head=True)


def growing(service: FakeService) -> FakeService:
    service.cluster.fake_nodes = [HEAD]
    return replace(service, settings=replace(service.settings, node_types=TYPES))


def test_job_for_machines_of_the_autoscaler_is_accepted_with_their_room(
    service: FakeService,
) -> None:
    client = fakes.client_of(growing(service))
    answer = client.post("/v1/jobs", json=fakes.body(resources={"market": "spot"})).json()
    assert answer["state"] == "queued"
    assert answer["concurrency"] == 6
    assert answer["price"]["usd_per_hour"] == 0.02
    assert (
        answer["detail"]
        == "no machine that the job may use is running yet: the autoscaler will be asked to start tiny (on spot)"
    )
    plan = client.post("/v1/plans", json=fakes.body(resources={"market": "spot"}))
    assert plan.status_code == 200, plan.text


def test_trials_on_several_nodes_need_as_many_machines(service: FakeService) -> None:
    client = fakes.client_of(growing(service))
    on_three = {"market": "spot", "cpus": 1, "nodes": 3}
    answer = client.post("/v1/jobs", json=fakes.body(resources=on_three)).json()
    assert answer["concurrency"] == 2
    assert answer["price"]["trial_usd_per_hour"] == 0.03
    plan = client.post("/v1/plans", json=fakes.body(resources=on_three))
    assert plan.status_code == 200, plan.text
    refused = client.post("/v1/jobs", json=fakes.body(resources={**on_three, "nodes": 4}))
    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["pointer"] == "/resources/nodes"
    assert "a trial needs 4 machines of one kind at once" in error["detail"]


def test_job_that_no_machine_type_fits_is_refused_with_the_types(
    service: FakeService,
) -> None:
    client = fakes.client_of(growing(service))
    for resources, pointer in (
        ({"cpus": 3}, "/resources/cpus"),
        ({"market": "on_demand"}, "/resources/market"),
    ):
        answer = client.post("/v1/jobs", json=fakes.body(resources=resources))
        assert answer.status_code == 422
        (error,) = answer.json()["errors"]
        assert error["pointer"] == pointer
        assert "the autoscaler has spot (tiny, spot, 2 CPUs, 0 GPUs)" in error["detail"]


def test_jobs_are_launched_up_to_the_room_of_future_machines(service: FakeService) -> None:
    grown = growing(service)
    client = fakes.client_of(grown)
    for _ in range(3):
        fakes.submit(client, resources={"market": "spot", "max_concurrent_trials": 3})
    one_pass(grown)
    assert len(grown.cluster.submitted) == 2


def test_unusable_node_types_refuse_jobs_with_the_reason(service: FakeService, client: TestClient) -> None:
    broken = replace(
        service, settings=replace(service.settings, node_types="{max_workers: x, available_node_types: {}}")
    )
    answer = fakes.client_of(broken).post("/v1/jobs", json=fakes.body())
    assert answer.status_code == 422
    assert "max_workers must be a whole number" in answer.json()["detail"]
