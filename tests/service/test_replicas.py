"""Several services over one database: what each one does, and what an operator sees."""

import json
from collections.abc import Iterator
from io import StringIO
from threading import Barrier, Thread
from types import SimpleNamespace

import pytest
from rich.console import Console
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tests import fakes
from tests.fakes import FakeService
from tests.service.passes import die, give_room, launch_of, submit
from tuner.cli import render
from tuner.cli.main import app
from tuner.client import Job
from tuner.database.database import Database
from tuner.domain.errors import Fenced
from tuner.domain.time import NS, Instant, system_now
from tuner.service import periodic
from tuner.service.cluster import HUNG_NS
from tuner.service.controller import Controller
from tuner.service.leading import LEASE_NS
from tuner.service.reconciler import Reconciler
from tuner.settings import release
from tuner.store import launches
from tuner.store.leadership import LONGEST_NS


@pytest.fixture
def other(service: FakeService) -> Iterator[FakeService]:
    """A second service on the same database, cluster and clock, with its own threads."""
    replica = FakeService(
        service.settings,
        Database(service.settings.database_url),
        cluster=service.cluster,
        prober=service.prober,
        now=service.now,
    )
    yield replica
    replica.database.dispose()


def test_standby_service_is_ready_and_launches_nothing(
    service: FakeService, other: FakeService, client: TestClient
) -> None:
    leader, waits = Controller(service), Controller(other)
    leader.one_pass()
    job = submit(service, client)
    waits.one_pass()
    assert service.cluster.submitted == []
    assert other.cluster.ensured == 2
    leader.one_pass()
    assert service.cluster.submitted == [f"{job}-1"]


def test_leader_whose_local_ray_starts_slowly_keeps_its_term(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = Controller(service)
    controller.one_pass()
    term, during = service.leading.term(), []

    def start_slowly() -> None:
        for _ in range(120):
            service.now.at += NS
            during.append(service.leading.term())

    monkeypatch.setattr(service.cluster, "ensure", start_slowly)
    controller.one_pass()
    assert set(during) == {term}
    assert service.leading.term() == term


def leader_metric(service: FakeService) -> str:
    text: str = fakes.client_of(service, own=True).get("/metrics").text
    return next(line for line in text.splitlines() if line.startswith("tuner_controller_leader "))


def test_metrics_show_which_service_leads(service: FakeService, other: FakeService) -> None:
    Controller(service).one_pass()
    Controller(other).one_pass()
    assert (leader_metric(service), leader_metric(other)) == (
        "tuner_controller_leader 1.0",
        "tuner_controller_leader 0.0",
    )
    assert (service.health.controller_at, other.health.controller_at) == (service.now(), None)
    service.now.pass_s(LEASE_NS / 1e9)
    assert leader_metric(service) == "tuner_controller_leader 0.0"


def test_metrics_show_the_age_of_the_last_pass_at_any_wall_clock(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monotonic_s = [100.0]
    monkeypatch.setattr(periodic, "time", SimpleNamespace(monotonic=lambda: monotonic_s[0]))

    def ages() -> list[str]:
        text: str = fakes.client_of(service, own=True).get("/metrics").text
        return [
            line for line in text.splitlines() if line.startswith("tuner_controller_last_pass_age_seconds")
        ]

    assert ages() == [], "no pass yet"
    Controller(service).one_pass()
    service.now.pass_s(-600)
    monotonic_s[0] += 5
    assert ages() == ["tuner_controller_last_pass_age_seconds 5.0"]


def test_requests_to_a_standby_service_take_effect(
    service: FakeService, other: FakeService, client: TestClient
) -> None:
    leader = Controller(service)
    leader.one_pass()
    elsewhere = fakes.client_of(other)
    job = submit(service, elsewhere)
    assert elsewhere.post(f"/v1/jobs/{job}/pause").status_code == 202
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "paused"
    elsewhere.post(f"/v1/jobs/{job}/resume")
    leader.one_pass()
    assert service.cluster.submitted == [f"{job}-2"]


def interrupted(service: FakeService, other: FakeService, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Suspend the leading service in the middle of a call to the cluster until the other service leads."""
    call = getattr(service.cluster, at)

    def standing_still(*args: object, **kwargs: object) -> object:
        answer = call(*args, **kwargs)
        monkeypatch.setattr(service.cluster, at, call)
        service.now.pass_s(10)
        assert other.leading.term() is not None
        return answer

    monkeypatch.setattr(service.cluster, at, standing_still)


@pytest.mark.parametrize("at", ["check_fit", "status", "log_tail"])
def test_resumed_former_leader_cannot_write(
    service: FakeService,
    other: FakeService,
    client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
) -> None:
    """The leader is suspended while it launches a job, queries a dead driver, or gives a job up."""
    job = submit(service, client)
    leader = Controller(service)
    if at != "check_fit":
        leader.one_pass()
        die(service, job)
        with service.database.write() as db:
            launch = launches.get(db, job)
            assert launch is not None
            if at == "log_tail":
                db.exec_driver_sql("UPDATE launches SET quick_deaths = 4")
        service.now.pass_s(5)
        assert service.leading.term() is not None
    before = launch_of(service, job)
    interrupted(service, other, monkeypatch, at)
    with pytest.raises(Fenced, match="leads, by term"):
        leader.one_pass()
    assert launch_of(service, job) == before
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "queued"


def test_resumed_service_does_not_stop_a_driver_with_a_fresh_heartbeat(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(service, client)
    leader = Controller(service)
    leader.one_pass()
    fakes.begin(service, job)
    service.cluster.statuses[f"{job}-1"] = "running"
    status = service.cluster.status

    def standing_still(submission_id: str) -> object:
        service.now.pass_s(HUNG_NS / 1e9 + 10)
        fakes.begin(service, job)
        return status(submission_id)

    service.now.pass_s(HUNG_NS / 1e9 + 10)
    leader.one_pass()
    service.now.pass_s(20)
    monkeypatch.setattr(service.cluster, "status", standing_still)
    leader.one_pass()
    assert service.cluster.stopped == []


def test_two_controllers_and_reconcilers_launch_each_job_once(
    service: FakeService, other: FakeService, client: TestClient
) -> None:
    give_room(service)
    made = [submit(service, client) for _ in range(4)]
    together = Barrier(2)

    def serve(replica: FakeService) -> None:
        controller, reconciler = Controller(replica), Reconciler(replica)
        for _ in range(5):
            together.wait(120)
            controller.one_pass()
            reconciler.one_pass()

    threads = [Thread(target=serve, args=[replica]) for replica in (service, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(service.cluster.submitted) == sorted(f"{job}-1" for job in made)


# What an operator sees


def doctor(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("TUNER_HOME", str(service.settings.home))
    result = CliRunner().invoke(app, ["doctor", "--json"])
    return {finding["part"]: finding["seen"] for finding in json.loads(result.stdout)["findings"]}


def say_versions(service: FakeService, job: str, tuner: str) -> None:
    fakes.begin(service, job)
    with service.database.write() as db:
        launches.record_versions(db, job, 1, tuner=tuner, ray="2.60.0", python="3.12.1")


def test_doctor_names_the_leader_and_drivers_of_other_versions(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor(service, monkeypatch)["leader"] == "no service has led yet"
    give_room(service)
    ours, old, silent = (submit(service, client) for _ in range(3))
    controller = Controller(service)
    controller.one_pass()
    fakes.begin(service, silent)
    say_versions(service, old, "0.0.9")
    say_versions(service, ours, release())
    with service.database.write() as db:
        db.exec_driver_sql(f"UPDATE leadership SET expires_at = {system_now() + LONGEST_NS}")
    findings = doctor(service, monkeypatch)
    assert findings["leader"].startswith(
        f"{service.leading.holder}, tuner {release()}, has been the leader since 20"
    )
    assert findings["drivers"].startswith("3 running, some of another version, which can keep running: ")
    assert f"{old} (tuner 0.0.9, Ray 2.60.0)" in findings["drivers"]
    assert f"{silent} (tuner ?, Ray ?)" in findings["drivers"]
    with service.database.write() as db:
        db.exec_driver_sql("UPDATE leadership SET expires_at = 0")
    assert doctor(service, monkeypatch)["leader"].startswith("no service leads; ")


def test_job_shows_the_versions_of_its_driver(service: FakeService, client: TestClient) -> None:
    job = submit(service, client)
    assert client.get(f"/v1/jobs/{job}").json()["driver"] is None
    Controller(service).one_pass()
    silent = {"launch": 1, "version": None, "ray": None, "python": None}
    assert client.get(f"/v1/jobs/{job}").json()["driver"] == silent
    say_versions(service, job, "0.0.9")
    versions = {"launch": 1, "version": "0.0.9", "ray": "2.60.0", "python": "3.12.1"}
    shown = client.get(f"/v1/jobs/{job}").json()
    assert shown["driver"] == versions
    console = Console(width=100, record=True, file=StringIO())
    console.print(render.job(Job.model_validate(shown)))
    assert "launch 1, tuner 0.0.9, Ray 2.60.0, Python 3.12.1" in console.export_text()
    with service.database.write() as db:
        launch = launches.get(db, job)
        assert launch is not None
        launches.again(db, launch, at=service.now(), not_before=Instant(0), quick_deaths=0)
    assert launch_of(service, job).tuner_version is None


def test_service_that_is_shutting_down_is_not_ready(service: FakeService) -> None:
    client = fakes.client_of(service, own=True, raises=False)
    assert client.get("/readyz").status_code == 200
    client.app.state.shutting_down.set()  # type: ignore[attr-defined]
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["detail"]) == (503, "this service is shutting down")
    assert client.get("/v1/jobs").status_code == 200
