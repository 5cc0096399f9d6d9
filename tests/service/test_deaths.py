"""How the controller handles drivers that die."""

import time

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient

from tests import books, fakes
from tests.fakes import FakeService
from tests.service.passes import die, launch_of, one_pass, row_of, submit, until_submitted
from tuner.cluster.jobs import JobStatus
from tuner.database import tables
from tuner.domain.errors import Unavailable
from tuner.domain.ids import hold_id
from tuner.domain.money import FREE, Cost, Money
from tuner.domain.records import AttemptRow, OpenHold, ReportRow
from tuner.domain.time import NS, Instant
from tuner.ledger import ledger
from tuner.service.controller import QUICK_DEATHS_MAX, Controller
from tuner.store import launches
from tuner.store.journal import SqlJournal


@pytest.mark.parametrize("status", ["failed", "stopped", "succeeded", "unknown"])
def test_dead_driver_is_replaced_with_the_next_epoch(
    service: FakeService, client: TestClient, status: JobStatus
) -> None:
    job = submit(service, client)
    one_pass(service)
    fakes.begin(service, job)
    die(service, job, status)
    for _ in range(3):
        one_pass(service)
    assert service.cluster.submitted == [f"{job}-1", f"{job}-2"]
    assert row_of(service, job).state == "running"


def test_live_driver_is_not_replaced(service: FakeService, client: TestClient) -> None:
    job = submit(service, client)
    one_pass(service)
    fakes.begin(service, job)
    service.cluster.statuses[f"{job}-1"] = "running"
    for _ in range(5):
        one_pass(service)
    assert service.cluster.submitted == [f"{job}-1"]
    assert service.cluster.stopped == []


def test_driver_without_heartbeat_is_stopped(service: FakeService, client: TestClient) -> None:
    job = submit(service, client)
    one_pass(service)
    fakes.begin(service, job)
    service.cluster.statuses[f"{job}-1"] = "running"
    controller = Controller(service)
    for seconds in (100, 5, 5):
        assert service.cluster.stopped == []
        service.now.pass_s(seconds)
        controller.one_pass()
    assert service.cluster.stopped == [f"{job}-1"]


def test_driver_that_resumes_heartbeats_after_sleep_is_not_stopped(
    service: FakeService, client: TestClient
) -> None:
    job = submit(service, client)
    one_pass(service)
    controller = Controller(service)
    for _ in range(3):
        fakes.begin(service, job)
        service.cluster.statuses[f"{job}-1"] = "running"
        service.now.pass_s(3600)
        for _ in range(3):
            controller.one_pass()
            service.now.pass_s(1)
    assert service.cluster.stopped == []


def test_two_controllers_replace_a_dead_driver_once(service: FakeService, client: TestClient) -> None:
    job = submit(service, client)
    one_pass(service)
    die(service, job)
    service.now.pass_s(5)
    controllers = [Controller(service) for _ in range(2)]
    for controller in controllers:
        controller.one_pass()
    assert launch_of(service, job).epoch == 2


def test_quickly_dying_drivers_are_relaunched_with_backoff(service: FakeService, client: TestClient) -> None:
    job = submit(service, client)
    waits = []
    for _ in range(QUICK_DEATHS_MAX - 1):
        until_submitted(service, job)
        die(service, job)
        one_pass(service)
        launch = launch_of(service, job)
        waits.append(max(0, launch.not_before - service.now()) / 1e9)
    assert waits == [0, 1, 2, 4]


def kill_all(service: FakeService, job: str, *, passes: int = 40) -> None:
    """Let every driver die as soon as it is submitted."""
    for _ in range(passes):
        one_pass(service)
        if launch_of(service, job).state == "submitted":
            die(service, job)


def violations(service: FakeService) -> list[str]:
    with service.database.read() as db:
        return books.faults(db)


def test_five_deaths_without_a_report_fail_the_job_and_free_its_room(
    service: FakeService, client: TestClient
) -> None:
    service.cluster.log = "the driver's \0last words: \udcff"
    job = submit(service, client)
    kill_all(service, job)
    row = row_of(service, job)
    assert (row.state, row.stop_reason) == ("failed", "error")
    assert "the driver's last words: ?" in row.detail
    assert service.cluster.submitted == [f"{job}-{epoch}" for epoch in range(1, QUICK_DEATHS_MAX + 1)]
    assert launch_of(service, job).state == "ended"
    following = submit(service, client)
    one_pass(service)
    assert launch_of(service, following).state == "submitted"
    assert violations(service) == []


def test_abandoned_job_has_no_open_holds_or_attempts(service: FakeService, client: TestClient) -> None:
    """The first driver wrote reports and left holds; the next five wrote nothing."""
    job = submit(service, client)
    one_pass(service)
    fakes.simulate(service, job, messages=20)
    with service.database.read() as db:
        assert ledger.open_holds(db, job)
        before = ledger.account(db, job)
    die(service, job)
    kill_all(service, job)
    with service.database.read() as db:
        assert ledger.open_holds(db, job) == []
        account = ledger.account(db, job)
    assert row_of(service, job).state == "failed"
    assert account.held.nothing
    assert before.posted.usd <= account.posted.usd <= before.posted.usd + before.held.usd
    trials = client.get(f"/v1/jobs/{job}/trials").json()["items"]
    assert {trial["state"] for trial in trials} <= {"paused", "completed", "stopped", "failed"}
    for trial in trials:
        attempts = client.get(f"/v1/jobs/{job}/trials/{trial['id']}").json()["attempt_list"]
        assert all(attempt["ended_at"] for attempt in attempts)
    assert violations(service) == []


def test_abandoned_job_is_billed_only_for_attempts_with_a_machine(
    service: FakeService, client: TestClient
) -> None:
    job = submit(service, client)
    one_pass(service)
    fakes.begin(service, job)
    epoch, now = launch_of(service, job).epoch, service.now()
    with SqlJournal(service.database, job, service.project, epoch, now).transaction() as tx:
        for trial, assigned_at in (("trial_00000", None), ("trial_00001", now)):
            tx.put_attempt(AttemptRow(trial, 1, now, assigned_at=assigned_at))
            name, cost = hold_id(job, trial, 1, 1), Cost(Money(500))
            assert tx.hold(OpenHold(name, trial, 1, 1, cost, now, Instant(now + NS)))
    service.now.pass_s(2)
    with service.database.write() as db:
        launches.record_heartbeat(db, job, epoch, service.now())
    die(service, job)
    kill_all(service, job)
    assert row_of(service, job).state == "failed"
    with service.database.read() as db:
        assert ledger.posted_by_kind(db, job, "trial_00000", 1) == {}
        assert ledger.posted_by_kind(db, job, "trial_00001", 1) == {"lost": Cost(Money(500))}
        assert ledger.account(db, job).held.nothing
    assert violations(service) == []


@pytest.mark.parametrize(("request_", "state"), [("cancel", "cancelled"), ("pause", "paused")])
@pytest.mark.parametrize("status", ["failed", "unknown"])
def test_request_to_a_driver_that_dies_before_it_begins_takes_effect(
    service: FakeService, client: TestClient, status: JobStatus, request_: str, state: str
) -> None:
    job = submit(service, client)
    one_pass(service)
    assert client.post(f"/v1/jobs/{job}/{request_}").json()["state"] == "queued"
    die(service, job, status)
    for _ in range(3):
        one_pass(service)
    assert (row_of(service, job).state, launch_of(service, job).state) == (state, "ended")
    assert row_of(service, job).control_request is None
    assert service.cluster.submitted == [f"{job}-1"]
    if state == "paused":
        assert client.post(f"/v1/jobs/{job}/resume").status_code == 202
        one_pass(service)
        assert service.cluster.submitted[-1] == f"{job}-3"


def test_running_job_that_is_being_cancelled_gets_a_driver_that_closes_it(
    service: FakeService, client: TestClient
) -> None:
    job = submit(service, client)
    one_pass(service)
    fakes.begin(service, job)
    assert client.post(f"/v1/jobs/{job}/cancel").status_code == 202
    die(service, job)
    for _ in range(3):
        one_pass(service)
    assert service.cluster.submitted == [f"{job}-1", f"{job}-2"]
    assert row_of(service, job).control_request == "cancel"


def test_job_that_is_being_cancelled_is_cancelled_when_its_drivers_keep_dying(
    service: FakeService, client: TestClient
) -> None:
    job = submit(service, client)
    one_pass(service)
    fakes.simulate(service, job, messages=20)
    assert client.post(f"/v1/jobs/{job}/cancel").status_code == 202
    die(service, job)
    kill_all(service, job)
    row = row_of(service, job)
    assert (row.state, row.stop_reason) == ("cancelled", "cancelled")
    assert "the driver's last words" in row.detail
    assert violations(service) == []


@pytest.mark.parametrize("gives_up", [False, True])
def test_time_after_a_death_is_not_billed_when_the_next_drivers_die_before_they_settle_it(
    service: FakeService, client: TestClient, gives_up: bool
) -> None:
    job = submit(service, client)
    one_pass(service)
    report(service, job)
    launch, now = launch_of(service, job), service.now()
    with SqlJournal(service.database, job, service.project, launch.epoch, now).transaction() as tx:
        tx.put_attempt(AttemptRow("trial_00000", 1, now, assigned_at=now))
        name, cost = hold_id(job, "trial_00000", 1, 1), Cost(Money(600))
        assert tx.hold(OpenHold(name, "trial_00000", 1, 1, cost, now, Instant(now + 600 * NS)))
    for _ in range(QUICK_DEATHS_MAX - 1):
        epoch = launch_of(service, job).epoch
        with service.database.write() as db:
            launches.record_heartbeat(db, job, epoch, service.now())
        die(service, job)
        one_pass(service)
        until_submitted(service, job)
        service.now.pass_s(20)
    if not gives_up:
        assert launch_of(service, job).previous_workers_ended_by == now + 6.5 * NS
        return
    kill_all(service, job)
    assert row_of(service, job).state == "failed"
    with service.database.read() as db:
        assert ledger.posted_by_kind(db, job, "trial_00000", 1) == {"lost": Cost(Money(7))}
    assert violations(service) == []


@pytest.mark.parametrize("gives_up", [False, True])
def test_hold_of_a_driver_that_began_after_the_clock_was_set_back_is_billed_until_its_death(
    service: FakeService, client: TestClient, gives_up: bool
) -> None:
    """The hold's time is before the time at which the launch was ordered, as that of an earlier driver is."""
    job = submit(service, client)
    one_pass(service)
    service.now.pass_s(-3600)
    fakes.begin(service, job)
    launch, now = launch_of(service, job), service.now()
    with SqlJournal(service.database, job, service.project, launch.epoch, now).transaction() as tx:
        tx.put_attempt(AttemptRow("trial_00000", 1, now, assigned_at=now))
        name, cost = hold_id(job, "trial_00000", 1, 1), Cost(Money(600))
        assert tx.hold(OpenHold(name, "trial_00000", 1, 1, cost, now, Instant(now + 600 * NS)))
    if gives_up:
        with service.database.write() as db:
            db.execute(update(tables.launches).values(quick_deaths=QUICK_DEATHS_MAX - 1))
    die(service, job)
    one_pass(service)
    if not gives_up:
        assert launch_of(service, job).previous_workers_ended_by == now + 1.5 * NS
        return
    assert row_of(service, job).state == "failed"
    with service.database.read() as db:
        assert ledger.posted_by_kind(db, job, "trial_00000", 1) == {"lost": Cost(Money(2))}


def report(service: FakeService, job: str) -> None:
    """Begin the driver and write one report."""
    fakes.begin(service, job)
    epoch, now = launch_of(service, job).epoch, service.now()
    with SqlJournal(service.database, job, service.project, epoch, now).transaction() as tx:
        tx.put_trial("trial_00000", "running", at=now, config={"lr": 0.1})
        tx.put_report(ReportRow("trial_00000", 1, 1, now, 0.5, {"acc": 0.5}, FREE, 0))


def test_report_resets_the_count_of_quick_deaths(service: FakeService, client: TestClient) -> None:
    job = submit(service, client)
    for _ in range(QUICK_DEATHS_MAX - 1):
        until_submitted(service, job)
        die(service, job)
        one_pass(service)
    until_submitted(service, job)
    report(service, job)
    die(service, job)
    one_pass(service)
    assert row_of(service, job).state == "running"
    assert launch_of(service, job).quick_deaths == 0


def test_drivers_that_waited_for_hours_do_not_count_as_quick_deaths(
    service: FakeService, client: TestClient
) -> None:
    """No spot machine was available in the meantime, so the drivers had nothing to report."""
    job = submit(service, client)
    for _ in range(2 * QUICK_DEATHS_MAX):
        until_submitted(service, job)
        service.now.pass_s(2 * 3600)
        fakes.begin(service, job)
        die(service, job)
        one_pass(service)
    assert row_of(service, job).state == "running"
    assert launch_of(service, job).quick_deaths == 0


def test_cluster_that_lost_its_state_fails_no_job(service: FakeService, client: TestClient) -> None:
    """The head was restarted and knows no driver any more."""
    job = submit(service, client)
    for _ in range(2 * QUICK_DEATHS_MAX):
        one_pass(service)
        service.cluster.statuses.clear()
    assert row_of(service, job).state == "queued"
    assert launch_of(service, job).quick_deaths == 0


def test_room_of_a_job_with_a_dead_driver_stays_reserved(service: FakeService, client: TestClient) -> None:
    """The cluster has room for one of the two jobs."""
    first, second = submit(service, client), submit(service, client)
    one_pass(service)
    fakes.begin(service, first)
    die(service, first)
    for _ in range(3):
        one_pass(service)
    assert service.cluster.submitted == [f"{first}-1", f"{first}-2"]
    assert launch_of(service, second).state == "wanted"


def test_pass_over_unavailable_cluster_raises_and_changes_nothing(
    service: FakeService, client: TestClient
) -> None:
    job = submit(service, client)
    service.cluster.is_down = True
    with pytest.raises(Unavailable):
        one_pass(service)
    assert launch_of(service, job).state == "wanted"
    service.cluster.is_down = False
    one_pass(service)
    assert launch_of(service, job).state == "submitted"


def test_refused_driver_is_logged_once_until_a_driver_runs(
    service: FakeService,
    client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    submit_to_ray, refused = service.cluster.submit, list[str]()
    caplog.set_level("INFO", "tuner")
    monkeypatch.setattr("tuner.service.controller.PASS_S", 0.01)
    job = submit(service, client)
    controller = Controller(service)

    def refuse(submission_id: str, **_: object) -> None:
        refused.append(submission_id)
        if len(refused) == 10:
            monkeypatch.setattr(service.cluster, "submit", submit_to_ray)
        raise Unavailable("the agent refused the job")

    monkeypatch.setattr(service.cluster, "submit", refuse)
    controller.start()
    try:
        while not service.cluster.submitted:
            assert controller.is_alive()
            time.sleep(0.01)
    finally:
        controller.stop()
    assert [record.getMessage() for record in caplog.records if record.name == "tuner.controller"] == [
        "A part that the service needs does not answer: the agent refused the job",
        f"Ray has no driver {job}-1; it will be submitted again",
        f"launched {job}-11 (digits)",
    ]


def test_controller_thread_survives_errors_and_signals_readiness(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.service.controller.PASS_S", 0.01)
    job = submit(service, client)
    service.cluster.is_down = True
    controller = Controller(service)
    controller.start()
    try:
        assert not controller.ready.wait(0.05)
        service.cluster.is_down = False
        assert controller.ready.wait(240)
    finally:
        controller.stop()
    assert not controller.is_alive()
    assert service.cluster.submitted == [f"{job}-1"]
