"""Exports over REST, with the client and on the command line: request, payment, figures, prices, files and each refusal."""

import itertools
import json
import math
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tests import books, fakes
from tests.api.test_bad_bodies import check_problem
from tests.driver.export_actors import FakeExportActors, variant
from tests.fakes import FakeService
from tuner.checkpoints.checkpoints import CheckpointStore
from tuner.checkpoints.storage import Storage
from tuner.cli.escape import usd
from tuner.cli.main import app
from tuner.client import ApiError, Client
from tuner.database.database import Database
from tuner.domain.errors import BadFile, Unavailable
from tuner.domain.job import Resources
from tuner.domain.money import Price
from tuner.domain.offer import Offer, WorkerMachine
from tuner.domain.time import NS, Instant
from tuner.driver import export_run
from tuner.driver.export_run import ExportRun
from tuner.driver.paid_work import PaidActorLost
from tuner.ledger import ledger
from tuner.planning.serving import ReplicaSpeed, serving_cost
from tuner.schemas.exports import ExportVariant, Format
from tuner.service import exports as service_exports
from tuner.service.controller import Controller
from tuner.service.node_prices import finder
from tuner.service.storage_lifecycle import StorageLifecycle
from tuner.store import exports, jobs, launches, stored_files
from tuner.training.variants import BATCHES, FORMATS, Variant
from tuner.worker.export import ExportResult

CONTENT = b"a model" * 1000
service, client = fakes.fixtures("function")
MISSING = Variant("int8-static", code="no_calibration", detail="return Exported(..., calibration=[...])")
DONE = ExportResult(0.9, (variant("onnx"), variant("int8-dynamic", 0.88, 3000.0), MISSING))


@pytest.fixture
def job(service: FakeService, client: TestClient) -> str:
    """A finished job with money left."""
    return finished(service, client)


def finished(service: FakeService, client: TestClient, **fields: Any) -> str:
    job = fakes.submit(client, **fields)
    fakes.simulate(service, job)
    assert client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.1}}).is_success
    return job


def begin(client: TestClient, job: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/v1/jobs/{job}/exports", json=body)
    assert answer.status_code == 202, answer.text
    export: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job}/exports/{export['id']}"
    return export


def run(service: FakeService, job: str, export: str, actors: FakeExportActors, waits_s: float = 0.0) -> None:
    """Run the process of an export."""
    with service.database.read() as db:
        row, export_row = jobs.get(db, job), exports.get(db, job, export)
    find = finder(service.settings, row.offers)
    ExportRun(service.database, row, export_row, service.settings.storage, actors, find, waits_s).run()


def submission_id(service: FakeService, job: str, export: str) -> str:
    with service.database.read() as db:
        return exports.get(db, job, export).submission_id


def posted(database: Database, job: str, export: str) -> dict[str, int]:
    with database.read() as db:
        assert books.faults(db) == []
        return {kind: cost.usd.micro_usd for kind, cost in ledger.posted_by_kind(db, job, export).items()}


def test_export_is_submitted_although_no_job_can_be_launched(
    service: FakeService, client: TestClient, job: str
) -> None:
    """The setting TUNER_NODE_TYPES is wrong, so no waiting job can be launched."""
    made = begin(client, job)
    fakes.submit(client)
    wrong = "{max_workers: x, available_node_types: {}}"
    broken = replace(service, settings=replace(service.settings, node_types=wrong))
    with pytest.raises(BadFile):
        Controller(broken).one_pass()
    assert service.cluster.submitted == [submission_id(service, job, made["id"])]


def submitted_exports(service: FakeService) -> list[str]:
    return [name for name in service.cluster.submitted if "-export_" in name]


def test_export_waits_for_the_quota_of_its_project(service: FakeService, client: TestClient) -> None:
    made = [(job, begin(client, job)["id"]) for job in (finished(service, client) for _ in range(2))]
    client.put("/v1/quota", json={"concurrent_jobs": 1}).raise_for_status()
    waiting = fakes.submit(client)
    controller = Controller(service)
    for _ in range(2):
        controller.one_pass()
    names = [submission_id(service, *export) for export in made]
    assert service.cluster.submitted == names[:1]
    assert client.get("/v1/quota").json()["used"]["concurrent_jobs"] == 1
    shown = client.get(f"/v1/jobs/{made[1][0]}/exports/{made[1][1]}").json()
    assert (shown["state"], shown["detail"]) == (
        "queued",
        "waits because the quota of the project allows 1 jobs at once",
    )
    assert "quota" in client.get(f"/v1/jobs/{waiting}").json()["detail"]
    run(service, *made[0], FakeExportActors(DONE))
    controller.one_pass()
    assert service.cluster.submitted == names
    assert client.get(f"/v1/jobs/{made[1][0]}/exports/{made[1][1]}").json()["detail"] == ""


def test_exports_wait_for_room_and_take_turns_with_waiting_jobs(
    service: FakeService, client: TestClient
) -> None:
    """The node has room for two exports. The job needs the whole node."""
    made = [(job, begin(client, job)["id"]) for job in (finished(service, client) for _ in range(5))]
    names = [submission_id(service, *export) for export in made]
    controller = Controller(service)
    controller.one_pass()
    assert service.cluster.submitted == names[:2]
    details = [client.get(f"/v1/jobs/{job}/exports/{export}").json()["detail"] for job, export in made]
    assert details == ["", "", *["waits until the cluster has room for one trial of the job"] * 3]
    service.now.pass_s(1)
    waiting = fakes.submit(client, resources={"cpus": 2})
    controller.one_pass()
    for ended in (0, 1):
        service.now.pass_s(1)
        run(service, *made[ended], FakeExportActors(DONE))
        controller.one_pass()
    assert service.cluster.submitted == names[:3], "one more export goes before the job"
    run(service, *made[2], FakeExportActors(DONE))
    for _ in range(2):
        controller.one_pass()
    assert service.cluster.submitted == [*names[:3], f"{waiting}-1"]
    fakes.simulate(service, waiting, at=service.now())
    with service.database.write() as db:
        launches.end(db, waiting, 1)
    for _ in range(2):
        controller.one_pass()
    assert submitted_exports(service) == names


def test_export_is_submitted_paid_and_answered_with_figures(
    service: FakeService, client: TestClient, job: str
) -> None:
    made = begin(
        client, job, formats=["onnx", "int8-dynamic", "int8-static"], max_cost_usd=0.01, max_drop=0.05
    )
    assert (made["state"], made["id"], made["held_usd"]) == ("queued", "export_00001", 0)
    best = client.get(f"/v1/jobs/{job}/best").json()
    assert made["trial"] == best["trial"]
    controller = Controller(service)
    for _ in range(2):
        controller.one_pass()
    assert service.cluster.submitted.count(submission_id(service, job, made["id"])) == 1

    actors = FakeExportActors(DONE)
    run(service, job, made["id"], actors)
    order = actors.orders[0]
    assert order.formats == tuple(made["formats"])
    assert order.max_drop == 0.05
    assert order.config == best["config"]
    assert (order.trial, order.checkpoint.step) == (made["trial"], made["step"])
    rate = 0.1  # dollars per hour for one of two CPUs of a machine for 0.20
    assert order.limit_s == pytest.approx(0.01 / rate * 3600 - 10)
    cost = {"export": math.ceil(20 * rate / 3600 * 1e6)}
    assert posted(service.database, job, made["id"]) == cost

    shown = client.get(f"/v1/jobs/{job}/exports/{made['id']}").json()
    assert (shown["state"], shown["code"], shown["metric"]) == ("succeeded", None, 0.9)
    assert shown["cost_usd"] == cost["export"] / 1e6
    assert shown["held_usd"] == 0
    assert [exported_variant["code"] for exported_variant in shown["variants"]] == [
        None,
        None,
        "no_calibration",
    ]
    assert shown["pareto"] == ["int8-dynamic", "onnx"]
    bill = client.get(f"/v1/jobs/{job}/bill").json()
    assert bill["exports_usd"] == bill["by_kind"]["export"] == shown["cost_usd"]
    search = bill["total_usd"] - bill["exports_usd"]
    savings = bill["savings"]
    assert savings["against_full_fidelity_usd"] == pytest.approx(savings["full_fidelity_usd"] - search)
    assert bill["cost_per_completed_trial_usd"] == pytest.approx(search / bill["completed_trials"], abs=1e-6)
    assert bill["total_usd"] == pytest.approx(
        bill["exports_usd"] + bill["self_test_usd"] + sum(trial["total_usd"] for trial in bill["trials"])
    )
    assert [export["id"] for export in client.get(f"/v1/jobs/{job}/exports").json()["items"]] == [made["id"]]


def test_dollars_per_million_are_those_of_the_machine_at_the_requested_rate(
    service: FakeService, client: TestClient
) -> None:
    job = finished(service, client, resources={"cpus": 2})
    made = begin(client, job, formats=["onnx"])
    run(service, job, made["id"], FakeExportActors(ExportResult(0.9, (variant("onnx"),))))
    query = {"requests_per_second": 2000, "start": "30s", "instance_type": "m6i.xlarge"}
    for params, rate, cold_s in (({}, 10.0, 10.003), (query, 2000.0, 30.003)):
        shown = client.get(f"/v1/jobs/{job}/exports/{made['id']}", params=params).json()
        for serving in shown["variants"][0]["serving"]:
            speed = ReplicaSpeed(0.001, 1000.0, 8000.0)
            price = Price.from_usd_per_hour(serving["usd_per_hour"])
            cost = serving_cost(speed, price, per_second=rate, cold_start_s=cold_s)
            assert serving["real_time_usd_per_million"] == pytest.approx(cost.real_time, abs=1e-6)
            assert serving["batch_usd_per_million"] == pytest.approx(cost.batch, abs=1e-6)
            assert serving["scale_to_zero_usd_per_million"] == (
                None if cost.scale_to_zero is None else pytest.approx(cost.scale_to_zero, abs=1e-6)
            )
            assert serving["replicas"] == cost.replicas
    elsewhere = shown["variants"][0]["serving"]
    measured = {"job": job, "export": made["id"], "variant": "onnx"}
    asked = {"requests_per_second": 2000, "start": "30s", "instance_types": ["m6i.xlarge"]}
    answer = client.post("/v1/estimates", json={"serving": {"measured": measured, **asked}}).json()["serving"]
    by_market = {machine["market"]: machine["batch_usd_per_million"] for machine in elsewhere}
    best = answer["candidates"][0]
    assert best["batch_usd_per_million"] == by_market[best["market"]]
    assert answer["cold_start_seconds"] == pytest.approx(30.003 + 1000 / 125e6)
    assert {serving_elsewhere["market"] for serving_elsewhere in elsewhere} == {"on_demand", "spot"}
    assert {serving_elsewhere["instance_type"] for serving_elsewhere in elsewhere} == {"m6i.xlarge"}
    for params, name in (
        ({"instance_type": "none.such"}, "instance_type"),
        ({"start": "soon"}, "start"),
        ({"requests_per_second": 0}, "requests_per_second"),
    ):
        refused = check_problem(client.get(f"/v1/jobs/{job}/exports/{made['id']}", params=params), 422)
        assert name in str(refused["errors"])


@pytest.mark.parametrize(
    ("result", "state", "code", "kinds"),
    [
        (
            ExportResult(None, (), "no_export_function", "define it"),
            "failed",
            "no_export_function",
            {"export"},
        ),
        (ExportResult(0.9, (MISSING,)), "failed", "no_calibration", {"export"}),
        (
            ExportResult(0.9, (variant("onnx"),), "out_of_time", "more"),
            "succeeded",
            "out_of_time",
            {"export"},
        ),
        (
            ExportResult(None, (Variant("onnx", code="c" * 50, detail="a\0 name: \udcff"),)),
            "failed",
            "c" * 40,
            {"export"},
        ),
        (PaidActorLost, "failed", "export_lost", {"export"}),
    ],
)
def test_export_that_fails_says_why_and_pays_for_its_time_only(
    service: FakeService, client: TestClient, job: str, result: Any, state: str, code: str, kinds: set[str]
) -> None:
    made = begin(client, job)
    run(service, job, made["id"], FakeExportActors(result))
    shown = client.get(f"/v1/jobs/{job}/exports/{made['id']}").json()
    assert (shown["state"], shown["code"], shown["held_usd"]) == (state, code, 0)
    assert shown["detail"]
    assert posted(service.database, job, made["id"]).keys() == kinds


def test_export_is_paid_at_the_price_of_its_machine(
    service: FakeService, client: TestClient, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose price is not known is returned. The next one costs a tenth of what the job was admitted at."""
    monkeypatch.setattr(export_run, "TRIES_FOR_S", 0.0)
    unpriced = WorkerMachine({"instance-type": "c7i.xlarge", "region": "nowhere"}, 4, 0)
    cheap = WorkerMachine({"instance-type": "small", "usd-per-hour": "0.02"}, 2, 0)
    made, actors = begin(client, job, max_cost_usd=0.001), FakeExportActors(DONE, machines=[unpriced, cheap])
    run(service, job, made["id"], actors, waits_s=60.0)
    (order,) = actors.orders
    assert order.limit_s == pytest.approx(0.001 / 0.01 * 3600 - 10), "the money pays for ten times as long"
    assert posted(service.database, job, made["id"]) == {"export": math.ceil(20 * 0.01 / 3600 * 1e6)}
    with service.database.read() as db:
        offer = exports.get(db, job, made["id"]).offer
    assert offer is not None
    assert (offer.instance_type, offer.price) == ("small", Price.from_usd_per_hour(0.02))


def test_export_says_which_machine_it_could_not_use(
    service: FakeService, client: TestClient, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_run, "TRIES_FOR_S", 0.0)
    unpriced = WorkerMachine({"instance-type": "c7i.xlarge", "region": "nowhere"}, 4, 0)
    made = begin(client, job)
    run(service, job, made["id"], FakeExportActors(DONE, machines=[unpriced]))
    shown = client.get(f"/v1/jobs/{job}/exports/{made['id']}").json()
    assert (shown["state"], shown["code"], shown["cost_usd"]) == ("failed", "no_machine", 0)
    assert "the price of the machine that Ray assigned is not known: 4 CPUs" in shown["detail"]


def test_export_whose_last_try_found_no_machine_does_not_name_an_earlier_one(
    service: FakeService, client: TestClient, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first machine has no known price. Afterwards no machine is free until the export gives up, after 60 looks at the clock."""
    looks = itertools.count()
    monkeypatch.setattr(export_run, "TRIES_FOR_S", 0.0)
    monkeypatch.setattr(export_run, "time", SimpleNamespace(monotonic=lambda: float(next(looks))))
    actors = FakeExportActors(
        DONE, machines=[WorkerMachine({"instance-type": "c7i.xlarge", "region": "nowhere"}, 4, 0)]
    )
    monkeypatch.setattr(export_run, "wait", lambda *_, **__: setattr(actors, "has_machines", False))
    made = begin(client, job)
    run(service, job, made["id"], actors, waits_s=60.0)
    shown = client.get(f"/v1/jobs/{job}/exports/{made['id']}").json()
    assert shown["code"] == "no_machine"
    assert "no machine was free" in shown["detail"]


@pytest.mark.parametrize("tries", [10, 11])
def test_export_names_the_machine_it_could_not_use_if_another_offer_was_tried_last(
    service: FakeService, client: TestClient, job: str, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """On demand, no machine has a known price. On spot, no machine is free."""
    markets = list[str]()
    monkeypatch.setattr(export_run, "TRIES_FOR_S", 0.0)
    monkeypatch.setattr(export_run, "wait", lambda *_, **__: None)
    clock = SimpleNamespace(monotonic=lambda: 1000.0 if len(markets) == tries else 0.0)
    monkeypatch.setattr(export_run, "time", clock)

    def start_actor(offer: Offer, size: Resources) -> Any:
        markets.append(offer.market)
        unpriced = WorkerMachine({"instance-type": "c7i.xlarge", "region": "nowhere"}, 4, 0)
        return FakeExportActors(DONE, machines=[unpriced], has_machines=offer.market == "on_demand")(
            offer, size
        )

    made = begin(client, job)
    with service.database.read() as db:
        row, export_row = jobs.get(db, job), exports.get(db, job, made["id"])
    row = replace(row, others=(replace(row.offer, market="spot"),))
    find = finder(service.settings, row.offers)
    ExportRun(service.database, row, export_row, service.settings.storage, start_actor, find, 60.0).run()
    assert markets[-1] == ("spot" if tries == 10 else "on_demand")
    shown = client.get(f"/v1/jobs/{job}/exports/{made['id']}").json()
    assert "the price of the machine that Ray assigned is not known" in shown["detail"]


def test_export_whose_machine_is_too_expensive_does_not_begin(
    service: FakeService, client: TestClient, job: str
) -> None:
    """The limit pays for much more than 30 s at the price of the job's admission, but for less on the machine that the export is given."""
    made = begin(client, job, max_cost_usd=0.001)
    actors = FakeExportActors(DONE, machines=[WorkerMachine({"usd-per-hour": "100"}, 1, 0)])
    run(service, job, made["id"], actors)
    shown = client.get(f"/v1/jobs/{job}/exports/{made['id']}").json()
    assert (shown["state"], shown["code"], shown["cost_usd"]) == ("failed", "no_money", 0)
    assert "pays for less than 30 s of the machine" in shown["detail"]
    assert not actors.orders


def test_export_never_costs_more_than_its_hold(service: FakeService, client: TestClient, job: str) -> None:
    made = begin(client, job, max_cost_usd=0.001)
    run(service, job, made["id"], FakeExportActors(DONE, takes_ns=10_000 * NS))
    assert posted(service.database, job, made["id"]) == {"export": 1000}


def test_actor_is_killed_while_its_hold_is_open(service: FakeService, client: TestClient, job: str) -> None:
    """Afterwards nothing would pay for it."""
    made, actors, held = begin(client, job), FakeExportActors(DONE), list[float]()
    actors.at_kill = lambda: held.append(
        client.get(f"/v1/jobs/{job}/exports/{made['id']}").json()["held_usd"]
    )
    run(service, job, made["id"], actors)
    assert len(held) == 1
    assert held[0] > 0


def test_export_without_a_machine_costs_nothing(
    service: FakeService, client: TestClient, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_run, "TRIES_FOR_S", 0.0)
    made = begin(client, job)
    run(service, job, made["id"], FakeExportActors(DONE, has_machines=False))
    shown = client.get(f"/v1/jobs/{job}/exports/{made['id']}").json()
    assert (shown["state"], shown["code"], shown["cost_usd"]) == ("failed", "no_machine", 0)


@pytest.mark.parametrize(("noticed_after_s", "billed_s"), [(5, 2), (60, 62)])
def test_dead_process_is_settled_as_lost_and_its_export_fails(
    service: FakeService, client: TestClient, job: str, noticed_after_s: int, billed_s: int
) -> None:
    """A process that was silent for long may have used its machine until its death was noticed."""
    made, controller = begin(client, job), Controller(service)
    controller.one_pass()

    class Killed(BaseException):
        """Stands for SIGKILL while the export runs."""

    class Dying(FakeExportActors):
        def __call__(self, offer: Any, size: Any) -> Any:
            raise Killed

    with pytest.raises(Killed):
        run(service, job, made["id"], Dying(None))
    with service.database.write() as db:  # as if it had been killed after it placed its hold
        export = exports.get(db, job, made["id"])
        row = jobs.get(db, job)
        exports.start(db, export, row.offer, service.now())
        hold = export_run.OpenHold(
            export.hold,
            export.id,
            1,
            1,
            row.offer.rate(Resources(cpus=1)).cost(600 * NS),
            service.now(),
            service.now() + 600 * NS,  # type: ignore[arg-type]
        )
        assert ledger.place(db, service.project, job, hold)
        assert ledger.open_holds(db, job) == [], "a driver does not settle the hold of an export"
    assert client.get(f"/v1/jobs/{job}/exports/{made['id']}").json()["held_usd"] > 0
    service.cluster.statuses[submission_id(service, job, made["id"])] = "failed"
    service.now.pass_s(noticed_after_s)
    controller.one_pass()
    shown = client.get(f"/v1/jobs/{job}/exports/{made['id']}").json()
    assert (shown["state"], shown["code"], shown["held_usd"]) == ("failed", "export_lost", 0)
    assert posted(service.database, job, made["id"]) == {"lost": math.ceil(billed_s * 0.1 / 3600 * 1e6)}


def test_dead_process_is_noticed_although_the_room_on_the_cluster_is_unknown(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another export waits for room, and the cluster does not answer which nodes it has."""
    job, controller = finished(service, client), Controller(service)
    made = begin(client, job)
    controller.one_pass()
    begin(client, finished(service, client))
    service.cluster.statuses[submission_id(service, job, made["id"])] = "failed"
    service.now.pass_s(60)

    def nodes() -> Any:
        raise Unavailable("the nodes cannot be listed")

    monkeypatch.setattr(service.cluster, "nodes", nodes)
    with pytest.raises(Unavailable, match="cannot be listed"):
        controller.one_pass()
    shown = client.get(f"/v1/jobs/{job}/exports/{made['id']}").json()
    assert (shown["state"], shown["code"]) == ("failed", "export_lost")


@pytest.mark.parametrize("ever_beat", [False, True])
def test_silent_process_is_stopped_after_a_while(
    service: FakeService, client: TestClient, job: str, ever_beat: bool
) -> None:
    made, controller = begin(client, job), Controller(service)
    controller.one_pass()
    if ever_beat:
        heartbeat(service, job, made["id"])
    service.now.pass_s(60)
    controller.one_pass()
    service.now.pass_s(60)
    controller.one_pass()
    assert service.cluster.stopped == []  # it may be the clock that jumped
    service.now.pass_s(11)
    controller.one_pass()
    assert service.cluster.stopped == [submission_id(service, job, made["id"])]


def test_process_with_a_heartbeat_during_the_pass_is_not_stopped(
    service: FakeService, client: TestClient, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, controller = begin(client, job), Controller(service)
    controller.one_pass()
    heartbeat(service, job, made["id"])
    service.now.pass_s(100)
    controller.one_pass()
    service.now.pass_s(11)
    status = service.cluster.status

    def slow_status(name: str) -> Any:
        heartbeat(service, job, made["id"])
        return status(name)

    monkeypatch.setattr(service.cluster, "status", slow_status)
    controller.one_pass()
    assert service.cluster.stopped == []


def heartbeat(service: FakeService, job: str, export: str) -> None:
    with service.database.write() as db:
        assert exports.record_heartbeat(db, exports.get(db, job, export), service.now())


def test_cost_limit_of_an_export_is_read_to_the_micro_dollar(client: TestClient, job: str) -> None:
    refused = client.post(f"/v1/jobs/{job}/exports", json={"max_cost_usd": 0.0000001})
    assert check_problem(refused, 422)["errors"][0]["pointer"] == "/max_cost_usd"
    assert begin(client, job, max_cost_usd=2.01)["max_cost_usd"] == 2.01


def test_export_takes_the_room_of_one_trial(service: FakeService, client: TestClient, job: str) -> None:
    made, controller = begin(client, job), Controller(service)
    both = fakes.submit(client, resources={"max_concurrent_trials": 2})
    controller.one_pass()
    assert f"{both}-1" not in service.cluster.submitted  # the cluster has two CPUs
    run(service, job, made["id"], FakeExportActors(DONE))
    controller.one_pass()
    assert f"{both}-1" in service.cluster.submitted


@pytest.mark.parametrize("moment", ["submit", "check_fit"])
def test_export_and_driver_of_a_job_never_start_together(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The driver is due at a later time, as when the job's window opens. The export is requested in the pass that launches the driver."""
    job = fakes.submit(client, budget={"usd": 0.001, "on_exhausted": "pause"})
    fakes.simulate(service, job)
    assert client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.5}}).is_success
    with service.database.write() as db:
        launches.want(db, job, service.project, service.now())
    request = getattr(service.cluster, moment)

    def meanwhile(*args: Any, **how: Any) -> None:
        monkeypatch.undo()
        answers.append(client.post(f"/v1/jobs/{job}/exports", json={}).status_code)
        request(*args, **how)

    answers: list[int] = []
    monkeypatch.setattr(service.cluster, moment, meanwhile)
    controller = Controller(service)
    for _ in range(2):
        controller.one_pass()
    driver = f"{job}-2"
    if moment == "submit":
        assert (answers, service.cluster.submitted) == ([409], [driver])
    else:
        assert answers == [202]
        assert service.cluster.submitted == [submission_id(service, job, "export_00001")]
        run(service, job, "export_00001", FakeExportActors(DONE))
        controller.one_pass()
        assert service.cluster.submitted[-1] == driver


def test_export_is_refused_with_what_to_do(service: FakeService, client: TestClient) -> None:
    job = fakes.submit(client)

    def why(status: int, job: str = job, **body: Any) -> str:
        problem = check_problem(client.post(f"/v1/jobs/{job}/exports", json=body), status)
        return str(problem["detail"]) + str(problem.get("errors"))

    assert "export it when it has ended" in why(409)
    fakes.simulate(service, job)
    assert "an export needs at least 30 s of a machine" in why(409)
    client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.1}})
    assert "an export needs at least 30 s of a machine" in why(409, max_cost_usd=0.0001)
    assert "the export's max_cost_usd is $0.00005;" in why(409, max_cost_usd=0.00005)
    assert "no trial 'trial_99999'" in why(404, trial="trial_99999")
    assert "formats" in why(422, formats=["tflite"])
    assert "formats" in why(422, formats=[])
    assert "max_cost_usd" in why(422, max_cost_usd=0)
    assert "max_drop" in why(422, max_drop=-1)
    begin(client, job)
    assert "export_00001 of this job is queued" in why(409)
    check_problem(client.get(f"/v1/jobs/{job}/exports/export_00009"), 404)
    check_problem(client.get("/v1/jobs/job_0000000000000000/exports"), 404)


def test_job_with_a_submitted_export_is_not_resumed_and_keeps_its_files(
    service: FakeService, client: TestClient, job: str
) -> None:
    begin(client, job)
    Controller(service).one_pass()
    for method, path in (("POST", "resume"), ("DELETE", "artifacts")):
        answer = client.request(method, f"/v1/jobs/{job}/{path}")
        assert answer.status_code == 409
        assert "export_00001" in answer.json()["detail"]


def test_resumed_job_cancels_an_export_that_was_not_submitted(
    service: FakeService, client: TestClient, job: str
) -> None:
    made = begin(client, job)
    assert client.post(f"/v1/jobs/{job}/resume").status_code == 202
    shown = client.get(f"/v1/jobs/{job}/exports/{made['id']}").json()
    assert (shown["state"], shown["code"], shown["cost_usd"]) == ("failed", "cancelled", 0)
    assert "the job was resumed" in shown["detail"]
    Controller(service).one_pass()
    assert service.cluster.submitted == [f"{job}-2"]


def test_unsubmitted_export_with_a_machine_is_not_cancelled_by_resume(
    service: FakeService, client: TestClient, job: str
) -> None:
    """The service died before it recorded that it had submitted the export."""
    made = begin(client, job)
    with service.database.write() as db:
        assert exports.start(db, exports.get(db, job, made["id"]), jobs.get(db, job).offer, service.now())
    refused = check_problem(client.post(f"/v1/jobs/{job}/resume"), 409)
    assert "is running" in str(refused["detail"])
    Controller(service).one_pass()
    with service.database.read() as db:
        assert exports.get(db, job, made["id"]).submitted_at is not None


def test_export_cancelled_during_the_pass_is_not_submitted(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job of the second export is resumed while the first export is submitted."""
    first, second = [(job, begin(client, job)["id"]) for job in (finished(service, client) for _ in range(2))]
    submit = service.cluster.submit_export

    def meanwhile(*args: Any, **how: Any) -> None:
        monkeypatch.undo()
        assert client.post(f"/v1/jobs/{second[0]}/resume").status_code == 202
        submit(*args, **how)

    monkeypatch.setattr(service.cluster, "submit_export", meanwhile)
    Controller(service).one_pass()
    assert submitted_exports(service) == [submission_id(service, *first)]
    with service.database.read() as db:
        assert exports.get(db, *second).submitted_at is None


def test_cancelled_job_cancels_an_export_without_a_machine(service: FakeService, client: TestClient) -> None:
    job = fakes.submit(client, budget={"usd": 0.001, "on_exhausted": "pause"})
    fakes.simulate(service, job)
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "paused"
    assert client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.1}}).is_success
    made = begin(client, job)
    assert client.post(f"/v1/jobs/{job}/cancel").status_code == 202
    shown = client.get(f"/v1/jobs/{job}/exports/{made['id']}").json()
    assert (shown["state"], shown["code"]) == ("failed", "cancelled")
    actors = FakeExportActors(DONE)
    run(service, job, made["id"], actors)
    assert actors.orders == []
    assert posted(service.database, job, made["id"]) == {}


def test_export_that_starts_while_its_job_is_cancelled_runs_to_its_end(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export gets its machine after the cancel request has read it as queued."""
    job = fakes.submit(client, budget={"usd": 0.001, "on_exhausted": "pause"})
    fakes.simulate(service, job)
    assert client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.1}}).is_success
    made = begin(client, job)
    with service.database.write() as db:
        queued, row = exports.get(db, job, made["id"]), jobs.get(db, job)
        assert exports.start(db, queued, row.offer, service.now())
    with monkeypatch.context() as patch:
        patch.setattr(exports, "live_of", lambda *_: queued)
        assert client.post(f"/v1/jobs/{job}/cancel").status_code == 202
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "cancelled"
    assert client.get(f"/v1/jobs/{job}/exports/{made['id']}").json()["state"] == "running"


def test_job_of_a_command_cannot_be_exported(service: FakeService, client: TestClient) -> None:
    client = fakes.client_of(replace(service, settings=replace(service.settings, packages=True)))
    sent = fakes.body(command="python -c pass --lr {lr} --width {width}")
    del sent["trainable"]
    answer = client.post("/v1/jobs", json=sent)
    assert answer.status_code == 201, answer.text
    job = answer.json()["id"]
    fakes.simulate(service, job)
    refused = check_problem(client.post(f"/v1/jobs/{job}/exports", json={}), 409)
    assert "a command, which cannot declare export" in refused["detail"]


def test_files_are_downloaded_checked_and_in_ranges(
    service: FakeService, client: TestClient, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = begin(client, job)
    store, work = CheckpointStore(service.settings.storage, "default", job), tmp_path / "work"
    (work / "onnx").mkdir(parents=True)
    (work / "onnx/model.onnx").write_bytes(CONTENT)
    store.publish(made["id"], 1, 1, work)
    run(service, job, made["id"], FakeExportActors(DONE))
    path = f"/v1/jobs/{job}/exports/{made['id']}/variants"
    whole = client.get(f"{path}/onnx")
    assert (whole.status_code, whole.content, whole.headers["tuner-file"]) == (200, CONTENT, "model.onnx")
    part = client.get(f"{path}/onnx", headers={"Range": "bytes=7-13"})
    assert (part.status_code, part.content) == (206, CONTENT[7:14])
    assert "no variant 'pruned'" in check_problem(client.get(f"{path}/pruned"), 404)["detail"]
    assert "calibration" in check_problem(client.get(f"{path}/int8-static"), 404)["detail"]
    assert "missing from the storage" in check_problem(client.get(f"{path}/int8-dynamic"), 404)["detail"]

    own = Client("http://tuner", fakes.KEY, transport=client._transport)
    assert own.download_variant(job, made["id"], "onnx", to=tmp_path).read_bytes() == CONTENT
    assert own.exports(job).items[0].id == made["id"]
    with pytest.raises(ApiError):
        own.download_variant(job, made["id"], "int8-static", to=tmp_path)

    elapsed_ns = [0]
    lifecycle = StorageLifecycle(service, lambda: elapsed_ns[0])
    with service.database.write() as db:
        before = stored_files.DueMeasurement(job, "default")
        stored_files.record_sizes(db, {before: 1}, Instant(jobs.get(db, job).ended_at or 0))
    service.now.pass_s(1)
    lifecycle.one_pass()
    assert own.storage(job).items[0].bytes >= len(CONTENT), "the size is measured again after an export"
    best = own.delete_artifacts(job, retain="best")
    assert client.get(f"{path}/onnx").status_code == 200, best
    own.delete_artifacts(job)
    assert "was deleted; export again" in check_problem(client.get(f"{path}/onnx"), 404)["detail"]
    assert [each.code for each in own.exports(job).items[0].variants] == [
        "deleted",
        "deleted",
        "no_calibration",
    ]
    real, allowed = Storage.remove, 0
    root = Path(service.settings.storage, "default", job, made["id"])
    while any(
        file.is_file() for file in root.rglob("*")
    ):  # the service is killed before each removal in turn
        calls = itertools.count()

        def remove(self: Storage, *parts: str, last: int = allowed, calls: Any = calls, **more: Any) -> None:
            if next(calls) == last:
                raise KeyboardInterrupt
            real(self, *parts, **more)

        monkeypatch.setattr(Storage, "remove", remove)
        with suppress(KeyboardInterrupt):
            StorageLifecycle(service, lambda: elapsed_ns[0]).one_pass()
        assert "was deleted" in check_problem(client.get(f"{path}/onnx"), 404)["detail"]
        allowed += 1
    assert allowed > 1


def test_formats_of_the_api_are_those_that_can_be_exported() -> None:
    assert set(Format.__args__) == set(FORMATS)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "tflite"},
        {"file": "../onnx"},
        {"file": "onnx/a\nb: c"},
        {"bytes": "1"},
        {"bytes": 1.5},
        {"bytes": -1},
        {"load_ms": -10_000},
        {"metric": math.nan},
        {"metric": 10**400},
        {"metric": None},
        {"latency": [{}]},
        {"latency": variant("onnx").plain()["latency"][1:]},
        {"latency": [{**each, "per_second": 1e-320} for each in variant("onnx").plain()["latency"]]},
        {"code": 1},
    ],
)
def test_figures_that_user_code_made_up_are_refused(change: dict[str, Any]) -> None:
    plain = variant("onnx").plain()
    assert Variant.of(plain) == variant("onnx")
    with pytest.raises(ValueError):
        Variant.of({**plain, **change})


NUMBERS = (
    st.sampled_from([0, 1, 1.5, -1, 1e-320, 1e-6, 1e12, 1e308, 10**400, True, "1"])
    | st.floats()
    | st.integers()
    | st.none()
)
BATCH_NUMBERS = st.fixed_dictionaries({}, optional=dict.fromkeys(("p50_ms", "p99_ms", "per_second"), NUMBERS))


@given(
    changes=st.fixed_dictionaries(
        {},
        optional={
            **{"file": st.none(), "code": st.just("metric_dropped")},
            **dict.fromkeys(
                ("bytes", "metric", "drop", "difference", "sparsity", "load_ms", "seconds"), NUMBERS
            ),
        },
    ),
    batches=st.lists(st.sampled_from(BATCHES), max_size=4) | st.just(list(BATCHES)),
    batch_changes=BATCH_NUMBERS,
)
def test_every_accepted_variant_can_be_served(
    changes: dict[str, Any], batches: list[int], batch_changes: dict[str, Any]
) -> None:
    latency = [
        {**variant("onnx").plain()["latency"][0], "batch": batch, **batch_changes} for batch in batches
    ]
    try:
        accepted = Variant.of({**variant("onnx").plain(), "latency": latency, **changes})
    except ValueError:
        return
    shown = ExportVariant.model_validate({**accepted.plain(), "serving": ()})
    json.dumps(shown.model_dump(), allow_nan=False)
    if accepted.file is not None:
        model, price = service_exports._served(accepted), Price.from_usd_per_hour(0.1)
        for per_second in (0.001, 10.0, 1e9):
            cost = serving_cost(model.speed, price, per_second=per_second, cold_start_s=10 + model.load_s)
            assert all(value is None or math.isfinite(value) for value in asdict(cost).values())


def publish(service: FakeService, job: str, work: Path) -> None:
    """Store the files of the first export of a job."""
    for variant_of in DONE.variants[:2]:
        (work / variant_of.format).mkdir(parents=True)
        (work / str(variant_of.file)).write_bytes(CONTENT)
    CheckpointStore(service.settings.storage, "default", job).publish("export_00001", 1, 1, work)


def test_command_waits_shows_the_figures_and_downloads_the_files(
    service: FakeService, client: TestClient, job: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(service, job, tmp_path / "work")
    own = Client("http://tuner", fakes.KEY, transport=client._transport)
    monkeypatch.setattr("tuner.client.Client", lambda: own)

    def sleep(_seconds: float) -> Any:
        run(service, job, "export_00001", FakeExportActors(DONE))
        return wait(0)

    wait = own._http.sleep
    monkeypatch.setattr(own._http, "sleep", sleep)
    done = CliRunner().invoke(
        app, ["export", job, "--formats", "onnx, int8-dynamic", "--to", str(tmp_path / "out")]
    )
    assert done.exit_code == 0, done.output
    assert "export_00001 succeeded" in done.output
    assert "int8-static was not delivered [no_calibration]" in done.output
    export = own.get_export(job, "export_00001")
    cheapest, own_market = export.variants[0].serving
    assert (cheapest.market, own_market.market, export.market) == ("spot", "on_demand", "on_demand")
    words = " ".join(done.stdout.split())
    assert f"on {own_market.instance_type}, on_demand, at {usd(own_market.usd_per_hour)}/h" in words
    assert usd(own_market.batch_usd_per_million) in words
    assert usd(cheapest.batch_usd_per_million) not in words
    assert (tmp_path / "out/int8-dynamic.onnx").read_bytes() == CONTENT
    refused = CliRunner().invoke(app, ["export", job, "--formats", "tflite"])
    assert refused.exit_code == 1
    assert "formats" in refused.stderr


class Breaking(httpx2.BaseTransport):
    """A transport that refuses the connection of each request whose path contains `breaks`, `left` times."""

    def __init__(self, inner: httpx2.BaseTransport) -> None:
        self._inner, self.breaks, self.left = inner, "", 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.left and self.breaks in request.url.path and request.method == "GET":
            self.left -= 1
            raise httpx2.ConnectError("refused", request=request)
        return self._inner.handle_request(request)


def test_paid_export_survives_a_failed_download(
    service: FakeService, client: TestClient, job: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    publish(service, job, tmp_path / "work")
    line = Breaking(client._transport)
    own = Client("http://tuner", fakes.KEY, transport=line)
    monkeypatch.setattr("tuner.client.Client", lambda: own)

    async def sleep(_seconds: float) -> None:
        with service.database.read() as db:
            is_queued = exports.get(db, job, "export_00001").state == "queued"
        if is_queued:
            run(service, job, "export_00001", FakeExportActors(DONE))

    monkeypatch.setattr(own._http, "sleep", sleep)
    line.breaks, line.left = "/exports/export_00001", 6
    done = CliRunner().invoke(app, ["export", job])
    assert done.exit_code == 0, done.output
    line.breaks, line.left = "/variants/", 1000
    words = ["export", job, "--export", "export_00001", "--to", str(tmp_path / "out")]
    broken = CliRunner().invoke(app, words)
    assert broken.exit_code == 1
    assert "export_00001 succeeded" in broken.stdout
    assert "The service does not answer" in broken.stderr
    line.left = 0
    assert CliRunner().invoke(app, words).exit_code == 0
    assert (tmp_path / "out/int8-dynamic.onnx").read_bytes() == CONTENT
    assert len(own.exports(job).items) == 1


def test_id_of_an_export_is_printed_when_it_begins(
    client: TestClient, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Client("http://tuner", fakes.KEY, transport=client._transport)
    monkeypatch.setattr("tuner.client.Client", lambda: own)
    monkeypatch.setattr(own._http, "sleep", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    left = CliRunner().invoke(app, ["export", job])
    assert f"tuner export {job} --export export_00001" in left.stderr


def test_export_does_not_begin_if_its_directory_cannot_be_created(
    client: TestClient, job: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = Client("http://tuner", fakes.KEY, transport=client._transport)
    monkeypatch.setattr("tuner.client.Client", lambda: own)
    monkeypatch.setattr(own._http, "sleep", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    (tmp_path / "file").write_text("")
    refused = CliRunner().invoke(app, ["export", job, "--to", str(tmp_path / "file")])
    assert refused.exit_code == 2
    assert "--to" in refused.stderr
    assert own.exports(job).items == []
    words = ["export", job, "--export", "export_00001", "--formats", "onnx"]
    assert CliRunner().invoke(app, words).exit_code == 2
