"""What machines cost while nothing runs on them: counted once whoever looks, never guessed, and never in a bill."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert, update
from starlette.testclient import TestClient

from tests import fakes
from tests.fakes import FakeService
from tuner.domain.money import NS_PER_HOUR, Price
from tuner.engine.ray_cluster import Node
from tuner.service.cluster_meter import GAP_NS, ClusterMeter, cluster_cost, idle_of
from tuner.store.cluster_hours import Busy, Time
from tuner.store.tables import attempts

HEAD = Node("head", 4, 0, 0, {"usd-per-hour": "1"}, is_head=True)
SPOT = Node("s1", 2, 0, 0, {"ray.io/market-type": "spot", "instance-type": "tiny", "usd-per-hour": "0.0162"})
DEMAND = Node("d1", 2, 0, 0, {"instance-type": "tiny", "usd-per-hour": "0.36"})
DEAD = Node("d2", 2, 0, 0, DEMAND.labels, alive=False)


def watch(service: FakeService, *meters: ClusterMeter, times: int, seconds: float = 5) -> None:
    for _ in range(times):
        service.now.pass_s(seconds)
        for meter in meters:
            meter.look()


def begun(service: FakeService) -> ClusterMeter:
    service.cluster.found = [HEAD, SPOT, DEMAND, DEAD]
    meter = ClusterMeter(service)
    meter.look()
    return meter


def test_idle_workers_are_counted_by_kind_and_the_head_is_not(
    service: FakeService, client: TestClient
) -> None:
    assert client.get("/v1/spend").json()["cluster_idle_usd"] is None
    watch(service, begun(service), times=720)
    answer = client.get("/v1/spend").json()
    assert answer["cluster_idle_usd"] == 0.3762
    assert answer["cluster"]["unseen_hours"] == 0
    assert [(k["market"], k["idle_hours"], k["idle_usd"]) for k in answer["cluster"]["kinds"]] == [
        ("on_demand", 1, 0.36),
        ("spot", 1, 0.0162),
    ]
    assert answer["total"]["usd"] == 0
    assert (
        'tuner_cluster_idle_usd_total{instance_type="tiny",market="spot"} 0.0162'
        in fakes.client_of(service, own=True).get("/metrics").text
    )


def test_two_services_and_one_that_starts_anew_count_the_same_time_once(service: FakeService) -> None:
    watch(service, begun(service), ClusterMeter(service), times=10)
    watch(service, ClusterMeter(service), times=10)
    found = cluster_cost(service, None, None)
    assert found is not None
    assert [one.alive_ns for one in found.kinds] == [100 * 10**9] * 2


def test_a_time_in_which_nobody_looked_is_told_and_not_guessed(service: FakeService) -> None:
    meter = begun(service)
    watch(service, meter, times=4)
    service.now.pass_s(2 * 3600)
    watch(service, meter, times=4)
    found = cluster_cost(service, None, None)
    assert found is not None
    assert found.unseen_ns == (2 * 3600 + 5) * 10**9 > GAP_NS
    assert [one.alive_ns for one in found.kinds] == [35 * 10**9] * 2


def test_a_cluster_that_does_not_answer_is_not_known_either(service: FakeService) -> None:
    meter = begun(service)
    service.cluster.is_down = True
    watch(service, meter, times=20)
    found = cluster_cost(service, None, None)
    assert found is not None
    assert (found.kinds, found.unseen_ns) == ((), 100 * 10**9)


def test_a_machine_with_an_attempt_on_it_is_not_idle(service: FakeService, client: TestClient) -> None:
    job, meter = fakes.submit(client), begun(service)
    row = {
        "job": job,
        "project": service.project,
        "trial": "t",
        "attempt": 1,
        "began_at": 1,
        "reason": "",
        "detail": "",
    }
    with service.database.write() as db:
        db.execute(insert(attempts).values(**row, node="d1", from_step=0, to_step=0, costs="{}", landed_at=1))
    watch(service, meter, times=4)
    with service.database.write() as db:
        db.execute(update(attempts).values(ended_at=2, end="paused"))
    watch(service, meter, times=2)
    found = cluster_cost(service, None, None)
    assert found is not None
    assert [(one.alive_ns, one.idle_ns) for one in found.kinds] == [
        (30 * 10**9, 10 * 10**9),
        (30 * 10**9, 30 * 10**9),
    ]


def test_what_no_price_is_known_of_is_told_as_time(service: FakeService) -> None:
    service.cluster.found = [Node("g", 4, 1, 0, {"instance-type": "g6.xlarge", "region": "nowhere"})]
    meter = ClusterMeter(service)
    meter.look()
    watch(service, meter, times=3)
    found = cluster_cost(service, None, None)
    assert found is not None
    assert (found.kinds, found.unpriced_ns) == ((), 15 * 10**9)


@pytest.mark.parametrize(
    ("elsewhere", "idle"),
    [
        ((), ["s1", "d1"]),
        (((None, "spot"),), ["d1"]),
        (((None, None),), ["d1"]),
        ((("other", None),), ["s1", "d1"]),
    ],
)
def test_what_runs_somewhere_has_one_machine_of_its_kind(
    elsewhere: tuple[tuple[str | None, str | None], ...], idle: list[str]
) -> None:
    assert [node.id for node in idle_of([SPOT, DEMAND], Busy(frozenset(), elsewhere))] == idle


@given(st.integers(0, 10**8), st.lists(st.integers(0, 10**14), max_size=20))
def test_money_is_rounded_once_however_often_somebody_looked(price: int, looks: list[int]) -> None:
    exact = Fraction(price * sum(looks), NS_PER_HOUR)
    assert 0 <= Time(("t", "spot"), Price(price), sum(looks), sum(looks)).idle_cost.micro_usd - exact < 1
