"""The cost of idle machines is counted once for all services, is never guessed, and is never part of a bill."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event, insert, update
from starlette.testclient import TestClient

from tests import fakes
from tests.fakes import FakeService
from tuner.cluster.nodes import Node
from tuner.database import tables
from tuner.database.codec import encode
from tuner.database.tables import attempts
from tuner.domain.money import Price
from tuner.domain.time import HOUR_NS, Instant, rfc3339
from tuner.service.cluster_meter import GAP_NS, ClusterCost, ClusterMeter, cluster_cost, idle_of
from tuner.store import cluster_hours, jobs
from tuner.store.cluster_hours import Busy, MachineTime

HEAD = Node("head", 4, 0, 0, {"usd-per-hour": "1"}, is_head=True)
SPOT = Node("s1", 2, 0, 0, {"ray.io/market-type": "spot", "instance-type": "tiny", "usd-per-hour": "0.0162"})
DEMAND = Node("d1", 2, 0, 0, {"instance-type": "tiny", "usd-per-hour": "0.36"})
DEAD = Node("d2", 2, 0, 0, DEMAND.labels, alive=False)


def watch(service: FakeService, *meters: ClusterMeter, times: int, seconds: float = 5) -> None:
    for _ in range(times):
        service.now.pass_s(seconds)
        for meter in meters:
            meter.measure()


def begun(service: FakeService) -> ClusterMeter:
    service.cluster.fake_nodes = [HEAD, SPOT, DEMAND, DEAD]
    meter = ClusterMeter(service)
    meter.measure()
    return meter


def measured(service: FakeService, since: Instant | None = None, until: Instant | None = None) -> ClusterCost:
    cost = cluster_cost(service, since, until)
    assert cost is not None
    return cost


def test_idle_workers_are_counted_by_market_without_the_head(
    service: FakeService, client: TestClient
) -> None:
    assert client.get("/v1/spend").json()["cluster_idle_usd"] is None
    watch(service, begun(service), times=360, seconds=10)
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


def test_several_and_restarted_services_count_the_same_time_once(service: FakeService) -> None:
    watch(service, begun(service), ClusterMeter(service), times=10)
    watch(service, ClusterMeter(service), times=10)
    cost = measured(service)
    assert [kind.alive_ns for kind in cost.kinds] == [100 * 10**9] * 2


def test_unobserved_time_is_reported_and_not_guessed(service: FakeService) -> None:
    meter = begun(service)
    watch(service, meter, times=4)
    service.now.pass_s(2 * 3600)
    watch(service, meter, times=4)
    cost = measured(service)
    assert cost.unseen_ns == (2 * 3600 + 5) * 10**9 > GAP_NS
    assert [kind.alive_ns for kind in cost.kinds] == [35 * 10**9] * 2


def test_time_without_answers_from_the_cluster_counts_as_unseen(service: FakeService) -> None:
    meter = begun(service)
    watch(service, meter, times=1)
    service.cluster.is_down = True
    watch(service, meter, times=20)
    cost = measured(service)
    assert (len(cost.kinds), cost.unseen_ns) == (2, 100 * 10**9)


def test_idle_cost_of_an_unobserved_period_is_unknown(service: FakeService, client: TestClient) -> None:
    service.now.at = 10**6 * HOUR_NS
    watch(service, begun(service), times=20)
    service.now.pass_s(4 * 3600)
    for since, until in ((10**6 - 30, 10**6 - 2), (10**6 + 1, 10**6 + 3)):
        times = {"since": rfc3339(Instant(since * HOUR_NS)), "until": rfc3339(Instant(until * HOUR_NS))}
        answer = client.get("/v1/spend", params=times).json()
        assert answer["cluster_idle_usd"] is answer["cluster"]["usd"] is None


def test_cluster_without_workers_reports_no_idle_cost(service: FakeService, client: TestClient) -> None:
    service.cluster.fake_nodes = [HEAD]
    meter = ClusterMeter(service)
    meter.measure()
    watch(service, meter, times=5)
    answer = client.get("/v1/spend").json()
    assert (answer["cluster_idle_usd"], answer["cluster"]) == (None, None)


def test_removed_workers_cost_nothing_afterwards(service: FakeService, client: TestClient) -> None:
    service.now.at = 10**6 * HOUR_NS
    meter = begun(service)
    watch(service, meter, times=1)
    service.cluster.fake_nodes = [HEAD]
    watch(service, meter, times=130, seconds=30)
    answer = client.get("/v1/spend", params={"since": rfc3339(Instant((10**6 + 1) * HOUR_NS))}).json()
    assert answer["cluster_idle_usd"] == 0


def test_period_starting_mid_hour_has_no_unseen_time(service: FakeService) -> None:
    """In time zones with an offset of half an hour, a day begins in the middle of a UTC hour."""
    service.now.at = start = 10**6 * HOUR_NS
    watch(service, begun(service), times=4 * 120, seconds=30)
    for since, until, hours in ((0.5, None, 3), (0.5, 2.5, 2), (3.5, 3.9, 0)):
        first = Instant(start + round(since * HOUR_NS))
        last = None if until is None else Instant(start + round(until * HOUR_NS))
        cost = measured(service, first, last)
        assert cost.unseen_ns == 0
        assert {kind.alive_ns for kind in cost.kinds} == ({hours * HOUR_NS} if hours else set())


def test_counting_continues_after_the_clock_is_set_back(service: FakeService) -> None:
    meter = begun(service)
    service.now.pass_s(24 * 3600)
    meter.measure()
    service.now.pass_s(-24 * 3600)
    watch(service, meter, times=5)
    cost = measured(service)
    assert [kind.alive_ns for kind in cost.kinds] == [20 * 10**9] * 2


def test_busy_node_queries_use_indexes(service: FakeService) -> None:
    """The queries run while the cluster's row is locked (with SQLite, the whole database), so they must not scan all jobs that ever ran."""
    asked: list[tuple[str, Any]] = []
    event.listen(
        service.database.engine, "before_cursor_execute", lambda *arguments: asked.append(arguments[2:4])
    )
    with service.database.read() as db:
        cluster_hours.busy(db)
        questions = [(text, parameters) for text, parameters in asked if text.startswith("SELECT")]
        plans = [
            db.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", parameters).all()
            for text, parameters in questions
        ]
    assert len(plans) == 4
    assert not [line for plan in plans for *_, line in plan if line.startswith("SCAN")]


def attempt_row(service: FakeService, job: str) -> dict[str, Any]:
    texts = {"job": job, "project": service.project, "trial": "t", "reason": "", "detail": "", "costs": "{}"}
    return {**texts, "attempt": 1, "began_at": 1, "from_step": 0, "to_step": 0}


def test_machine_with_a_running_attempt_is_not_idle(service: FakeService, client: TestClient) -> None:
    job, meter = fakes.submit(client), begun(service)
    with service.database.write() as db:
        db.execute(insert(attempts).values(**attempt_row(service, job), node="d1", landed_at=1))
    watch(service, meter, times=4)
    with service.database.write() as db:
        db.execute(update(attempts).values(ended_at=2, end="paused"))
    watch(service, meter, times=2)
    cost = measured(service)
    assert [(kind.alive_ns, kind.idle_ns) for kind in cost.kinds] == [
        (30 * 10**9, 10 * 10**9),
        (30 * 10**9, 30 * 10**9),
    ]


def test_each_node_of_a_running_attempt_is_busy(service: FakeService, client: TestClient) -> None:
    job = fakes.submit(client)
    with service.database.write() as db:
        spec = jobs.get(db, job).spec
        on_two = replace(spec, resources=replace(spec.resources, nodes=2))
        db.execute(update(tables.jobs).where(tables.jobs.c.id == job).values(spec=encode(on_two)))
        row = attempt_row(service, job)
        db.execute(insert(attempts).values(**row, node="d1", landed_at=1, instance_type="c7i"))
        assert cluster_hours.busy(db) == Busy(frozenset({"d1"}), ((None, "on_demand"),))


def test_time_on_unpriced_machine_is_reported_and_its_cost_is_unknown(
    service: FakeService, client: TestClient
) -> None:
    service.cluster.fake_nodes = [Node("g", 4, 1, 0, {"instance-type": "g6.xlarge", "region": "nowhere"})]
    meter = ClusterMeter(service)
    meter.measure()
    watch(service, meter, times=3)
    cost = measured(service)
    assert (cost.kinds, cost.unpriced_ns) == ((), 15 * 10**9)
    assert client.get("/v1/spend").json()["cluster_idle_usd"] is None, "which is not nothing"


@pytest.mark.parametrize(
    ("elsewhere", "idle"),
    [
        ((), ["s1", "d1"]),
        (((None, "spot"),), ["d1"]),
        (((None, None),), ["d1"]),
        ((("other", None),), ["s1", "d1"]),
    ],
)
def test_attempt_without_node_makes_one_matching_machine_busy(
    elsewhere: tuple[tuple[str | None, str | None], ...], idle: list[str]
) -> None:
    assert [node.id for node in idle_of([SPOT, DEMAND], Busy(frozenset(), elsewhere))] == idle


@given(st.integers(0, 10**8), st.lists(st.integers(0, 10**14), max_size=20))
def test_idle_cost_is_rounded_once_for_any_number_of_observations(price: int, looks: list[int]) -> None:
    exact = Fraction(price * sum(looks), HOUR_NS)
    assert (
        0 <= MachineTime(("t", "spot"), Price(price), sum(looks), sum(looks)).idle_cost.micro_usd - exact < 1
    )
