"""Disaster recovery. Jobs run during a backup and after it; then the database is lost and restored, and its ledger is consistent."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.fakes import FakeService
from tests.service import restoring
from tests.service.restoring import answers, back_up, check_books, put_back
from tuner.database.database import Connection, Database
from tuner.domain.errors import Fenced, HomeInUse, Unavailable
from tuner.domain.ids import RESTORED, hold_id
from tuner.domain.money import Cost, Money
from tuner.domain.records import AttemptRow, EntryPlace, OpenHold
from tuner.domain.time import NS, Instant, system_now
from tuner.ledger import ledger
from tuner.service.backup import restore
from tuner.service.bootstrap import build
from tuner.service.doctor import of_database
from tuner.service.leading import Leading
from tuner.service.reconciler import Reconciler
from tuner.service.sole_use import HomeLock
from tuner.store import copies, exports, jobs, launches
from tuner.store import restore_corrections as restored
from tuner.store.copies import HalfRestored
from tuner.store.journal import SqlJournal, close_open

NEWER = """#!/bin/sh
{} "$@" || exit $?
for word in "$@"; do
  case $word in --file=*) sed -i 's/^SET lock_timeout/SET transaction_timeout = 0;\\n&/' "${{word#--file=}}" ;; esac
done
"""
NO_LIMITS = {"gpu_hours": None, "wall_clock": None, "trials": None, "on_exhausted": "finish"}
LIMIT_USD = 0.0006
LONG = {"budget": {"usd": LIMIT_USD}, "tags": {"team": "vision"}}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeService]:
    if request.param == "sqlite":
        with restoring.on_sqlite(tmp_path / "home") as made:
            yield made
    else:
        with restoring.on_postgresql(tmp_path / "home", request.getfixturevalue("postgres_url")) as made:
            yield made


@pytest.fixture
def client(service: FakeService) -> TestClient:
    return fakes.client_of(service)


def lose(service: FakeService) -> None:
    """Lose the database: overwrite the file of SQLite after all processes have closed it, or drop the tables of PostgreSQL."""
    if service.database.is_sqlite:
        service.database.dispose()
        path = Path(str(service.database.url.database))
        path.write_bytes(b"nonsense" * (path.stat().st_size // 8))
        return
    with service.database.write() as db:
        db.exec_driver_sql("DROP SCHEMA public CASCADE")
        db.exec_driver_sql("CREATE SCHEMA public")


def test_restored_jobs_answer_as_before_and_resume_within_their_budgets(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    client.put("/v1/budgets/vision", json={"usd": 0.05, "match": {"team": "vision"}}).raise_for_status()
    ended = fakes.submit(client, budget={"usd": 0.0003}, tags={"team": "vision"})
    fakes.simulate(service, ended)
    before, job_before = answers(client, ended), client.get(f"/v1/jobs/{ended}").json()
    running, waiting, busy = (fakes.submit(client, **LONG) for _ in range(3))
    fakes.simulate(service, running, messages=30)
    load = Thread(target=lambda: fakes.simulate(service, busy))
    load.start()
    made = back_up(service, tmp_path / "b")
    load.join()
    assert made.jobs == 4
    later = fakes.submit(client)
    fakes.simulate(service, running)
    service.now.pass_s(60)
    lose(service)

    restore_report = put_back(service, tmp_path / "b")

    check_books(service)
    assert {**answers(client, ended), "": b""} == {**before, "": b""}
    shown = client.get(f"/v1/jobs/{ended}").json()
    changed = {key for key, value in shown.items() if value != job_before[key]}
    assert changed == {"budget", "revision", "progress", "links"}, "its links lead to another launch"
    # They may have been resumed after the backup. The busy job may have ended before it.
    assert {ended} <= set(restore_report.lowered) <= {ended, busy}
    assert client.get(f"/v1/jobs/{later}").status_code == 404
    paused = {paused_job.id: paused_job for paused_job in restore_report.paused}
    assert {running, waiting} <= paused.keys() <= {running, waiting, busy}
    assert paused[running].settled_usd > 0
    assert not paused[running].exact
    with service.database.read() as db:
        for job in paused:
            row, account = jobs.get(db, job), ledger.account(db, job)
            assert (row.state, account.held.nothing) == ("paused", True)
            assert "tuner resume" in row.detail
        epochs = {job_id: launches.get(db, job_id) for job_id in paused}
    assert all(
        launch is not None and launch.state == "ended" and launch.epoch > 10**8 for launch in epochs.values()
    )
    Reconciler(service).one_pass()
    for job in paused:
        assert client.get(f"/v1/jobs/{job}").json()["state"] == "paused"
        assert client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": LIMIT_USD}}).status_code == 200
        assert client.post(f"/v1/jobs/{job}/resume").status_code == 202
        fakes.simulate(service, job, at=service.now())
        shown = client.get(f"/v1/jobs/{job}").json()
        assert (shown["state"], shown["spend"]["held_usd"]) == ("succeeded", 0)
        assert 0 < shown["spend"]["usd"] <= LIMIT_USD
    check_books(service)


def test_spend_after_the_backup_is_posted_from_the_replaced_database(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    """Covers the job that ran during the backup, including its open holds, and a job that had ended and was resumed later."""
    client.put("/v1/budgets/vision", json={"usd": 0.05, "match": {"team": "vision"}}).raise_for_status()
    job, over = fakes.submit(client, **LONG), fakes.submit(client, budget={"usd": 0.0002})
    fakes.simulate(service, over)
    fakes.simulate(service, job, messages=30)
    back_up(service, tmp_path / "b")
    fakes.simulate(service, job, at=service.now(), messages=15)
    client.patch(f"/v1/jobs/{over}", json={"budget": {"usd": 0.0004}}).raise_for_status()
    client.post(f"/v1/jobs/{over}/resume").raise_for_status()
    fakes.simulate(service, over, at=service.now())
    gone = fakes.submit(client)
    before, of_over = (client.get(f"/v1/jobs/{name}").json()["spend"] for name in (job, over))
    restore_report = put_back(service, tmp_path / "b")
    (restored_job,) = restore_report.paused
    now = client.get(f"/v1/jobs/{job}").json()
    assert restored_job.exact
    assert restored_job.since_usd > 0
    assert before["held_usd"] > 0
    assert now["spend"]["usd"] == pytest.approx(before["usd"] + before["held_usd"], abs=1e-9)
    assert now["budget"]["usd"] == LIMIT_USD
    assert f"${restored_job.since_usd:.6f}".rstrip("0") in now["detail"]
    bill = client.get(f"/v1/jobs/{job}/bill").json()
    assert bill["restored_usd"] == restored_job.since_usd
    assert bill["savings"]["against_on_demand_usd"] == 0, "nothing was bought on spot"
    assert client.get("/v1/budgets/vision").json()["spend"]["usd"] == now["spend"]["usd"]
    resumed = client.get(f"/v1/jobs/{over}").json()
    assert resumed["spend"] == of_over
    assert 0.0002 < resumed["spend"]["usd"] == resumed["budget"]["usd"] <= 0.0004
    assert restore_report.gone == (gone,)
    check_books(service)


def test_spend_of_a_budget_that_was_raised_after_the_backup_counts_in_shared_budgets(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    client.put("/v1/budgets/vision", json={"usd": 0.01, "match": {"team": "vision"}}).raise_for_status()
    job = fakes.submit(client, **LONG)
    fakes.simulate(service, job, messages=30)
    back_up(service, tmp_path / "b")
    client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.006}}).raise_for_status()
    fakes.simulate(service, job, at=service.now(), messages=200)
    before = client.get(f"/v1/jobs/{job}").json()["spend"]
    spent = before["usd"] + before["held_usd"]
    assert spent > 2 * LIMIT_USD
    put_back(service, tmp_path / "b")
    now = client.get(f"/v1/jobs/{job}").json()
    assert now["spend"]["usd"] == now["budget"]["usd"] == pytest.approx(spent, abs=1e-9)
    assert client.get("/v1/budgets/vision").json()["spend"]["usd"] == now["spend"]["usd"]
    check_books(service)


def test_export_after_a_restore_is_submitted_under_another_id(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    """Ray knows the export that the backup lacks, and would not run a second process with its id."""
    job = fakes.submit(client, **LONG)
    fakes.simulate(service, job)
    client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.1}}).raise_for_status()
    back_up(service, tmp_path / "b")
    submission_ids = []
    for _ in range(2):
        export = client.post(f"/v1/jobs/{job}/exports", json={}).json()["id"]
        assert export == "export_00001"
        with service.database.read() as db:
            submission_ids.append(exports.get(db, job, export).submission_id)
        service.now.pass_s(10)
        put_back(service, tmp_path / "b")
    assert len(set(submission_ids)) == 2


def test_spend_of_a_driver_that_runs_during_the_restore_is_counted(
    service: FakeService, client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver spends more after the restore has looked at the database, and cannot write when the database is replaced."""
    job = fakes.submit(client, **LONG)
    fakes.simulate(service, job, messages=15)
    back_up(service, tmp_path / "b")
    contents, put, spent = copies.contents, copies.put, list[float]()

    def contents_before_more_spend(database: Database, now: Instant) -> copies.ReplacedContents:
        known = contents(database, now)
        fakes.simulate(service, job, at=service.now(), messages=30)
        spend = client.get(f"/v1/jobs/{job}").json()["spend"]
        spent.append(spend["usd"] + spend["held_usd"])
        return known

    def put_while_fenced(database: Database, copy: Path, *, at: Instant) -> Path | None:
        with pytest.raises(Fenced), SqlJournal(service.database, job, "default", 1, at).transaction():
            pass
        service.database.dispose()
        return put(database, copy, at=at)

    monkeypatch.setattr(copies, "contents", contents_before_more_spend)
    monkeypatch.setattr(copies, "put", put_while_fenced)
    put_back(service, tmp_path / "b")
    assert client.get(f"/v1/jobs/{job}").json()["spend"]["usd"] == pytest.approx(spent[0], abs=1e-9)
    check_books(service)


def test_service_that_starts_during_the_restore_cannot_lead(
    service: FakeService, client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would launch the drivers that the restore has fenced, and what they spend would be missing from the accounts."""
    fakes.submit(client, **LONG)
    back_up(service, tmp_path / "b")
    put, close, tries = copies.put, restored.close, list[str]()

    def try_to_lead(when: str) -> None:
        tries.append(when)
        if service.database.is_sqlite:
            with pytest.raises(HomeInUse, match="`tuner restore` with pid"):
                HomeLock(service.settings)
        else:
            started = Database(service.settings.database_url)
            assert Leading(started, system_now).term() is None
            started.dispose()

    def put_and_try(database: Database, copy: Path, *, at: Instant) -> Path | None:
        try_to_lead("before the replacement")
        kept = put(database, copy, at=at)
        try_to_lead("after the replacement")
        return kept

    def try_and_close(db: Connection, **how: Any) -> restored.RestoredRows:
        try_to_lead("before the correction")
        return close(db, **how)

    monkeypatch.setattr(copies, "put", put_and_try)
    monkeypatch.setattr(restored, "close", try_and_close)
    put_back(service, tmp_path / "b")
    assert len(tries) == 3
    assert Leading(service.database, system_now).term() is not None


@pytest.mark.parametrize("width_later", [2, 16])
def test_restored_job_with_unknown_later_spend_stays_within_its_budget(
    service: FakeService, client: TestClient, tmp_path: Path, width_later: int
) -> None:
    """After the backup, more trials may run at once than before."""
    job = fakes.submit(client, **LONG)
    fakes.simulate(service, job, messages=30)
    back_up(service, tmp_path / "b")
    with service.database.write() as db:
        jobs.set_concurrency(db, job, width_later, width_later)
    fakes.simulate(service, job, at=service.now())
    spent = client.get(f"/v1/jobs/{job}").json()["spend"]["usd"]
    lose(service)
    (restored_job,) = put_back(service, tmp_path / "b").paused
    restored = client.get(f"/v1/jobs/{job}").json()
    assert not restored_job.exact
    assert restored["budget"]["usd"] == pytest.approx(LIMIT_USD - restored_job.since_usd, abs=1.1e-6)
    assert client.post(f"/v1/jobs/{job}/resume").status_code == 202
    fakes.simulate(service, job, at=service.now())
    after = client.get(f"/v1/jobs/{job}").json()["spend"]["usd"] - restored["spend"]["usd"]
    assert spent + after <= LIMIT_USD + 1e-9
    check_books(service)


def test_ended_job_with_unknown_later_spend_stays_within_its_budget(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    """The job had ended before the backup. After the backup it was resumed and spent money."""
    job = fakes.submit(client, budget={"usd": LIMIT_USD, "trials": 2})
    fakes.simulate(service, job)
    back_up(service, tmp_path / "b")
    client.patch(f"/v1/jobs/{job}", json={"budget": {"trials": 100}}).raise_for_status()
    client.post(f"/v1/jobs/{job}/resume").raise_for_status()
    where = EntryPlace(hold_id(job, "trial_00009", 1, 1), "trial_00009", 1, 1)
    with service.database.write() as db:
        ledger.note_spent(db, service.project, job, where, Cost(Money(200)), service.now())
    lose(service)
    restore_report = put_back(service, tmp_path / "b")
    assert (restore_report.paused, restore_report.lowered) == ((), (job,))
    shown = client.get(f"/v1/jobs/{job}").json()
    assert shown["state"] == "succeeded"
    assert shown["budget"] == {**NO_LIMITS, "usd": shown["spend"]["usd"], "trials": 2}
    assert client.post(f"/v1/jobs/{job}/resume").status_code == 409
    assert put_back(service, tmp_path / "b").lowered == ()
    assert client.get(f"/v1/jobs/{job}").json()["budget"] == shown["budget"], "after another restore, too"
    client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": LIMIT_USD}}).raise_for_status()
    assert client.post(f"/v1/jobs/{job}/resume").status_code == 202
    check_books(service)


def test_job_that_was_being_cancelled_cannot_spend_its_budget_again(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    """After the backup, the job may have spent the rest of its budget on exports."""
    job = fakes.submit(client, **LONG)
    fakes.simulate(service, job, messages=30)
    assert client.post(f"/v1/jobs/{job}/cancel").json()["state"] == "running"
    back_up(service, tmp_path / "b")
    lose(service)
    restore_report = put_back(service, tmp_path / "b")
    assert (restore_report.paused, restore_report.lowered) == ((), (job,))
    shown = client.get(f"/v1/jobs/{job}").json()
    assert shown["state"] == "cancelled"
    assert shown["detail"].endswith("so the rest is subtracted"), "it cannot be resumed"
    assert 0 < shown["spend"]["usd"] == shown["budget"]["usd"] < LIMIT_USD
    check_books(service)


def test_restored_job_without_money_left_does_not_claim_to_know_its_spend(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    job = fakes.submit(client, **LONG)
    where = EntryPlace(hold_id(job, "trial_00009", 1, 1), "trial_00009", 1, 1)
    with service.database.write() as db:
        ledger.note_spent(db, service.project, job, where, Cost(Money(600)), service.now())
    back_up(service, tmp_path / "b")
    lose(service)
    (restored_job,) = put_back(service, tmp_path / "b").paused
    assert (restored_job.exact, restored_job.since_usd) == (False, 0)
    assert "nothing of the job's budget was left" in client.get(f"/v1/jobs/{job}").json()["detail"]


def test_operator_knows_that_nothing_was_spent_after_the_backup(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    ended, running = fakes.submit(client, budget={"usd": 0.1, "trials": 2}), fakes.submit(client, **LONG)
    fakes.simulate(service, ended)
    fakes.simulate(service, running, messages=30)
    budgets = [client.get(f"/v1/jobs/{job}").json()["budget"] for job in (ended, running)]
    back_up(service, tmp_path / "b")
    lose(service)
    restore_report = restore(
        service.settings, tmp_path / "b", replace=True, nothing_spent=True, now=service.now
    )
    (restored_job,) = restore_report.paused
    assert (restored_job.exact, restored_job.since_usd, restore_report.lowered) == (True, 0, ())
    assert [client.get(f"/v1/jobs/{job}").json()["budget"] for job in (ended, running)] == budgets
    check_books(service)


def test_lowered_budget_survives_repeated_restores(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    job = fakes.submit(client, **LONG)
    fakes.simulate(service, job, messages=30)
    back_up(service, tmp_path / "b")
    client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.0005}}).raise_for_status()
    put_back(service, tmp_path / "b")
    assert client.get(f"/v1/jobs/{job}").json()["budget"] == {**NO_LIMITS, "usd": 0.0005}
    service.now.pass_s(10)
    lose(service)
    (restored_job,) = put_back(service, tmp_path / "b").paused
    less = client.get(f"/v1/jobs/{job}").json()["budget"]
    assert not restored_job.exact
    assert less["usd"] < LIMIT_USD
    put_back(service, tmp_path / "b")
    assert client.get(f"/v1/jobs/{job}").json()["budget"] == less
    check_books(service)


@pytest.mark.parametrize(("spent", "of_job", "of_team"), [(300, 300, 300), (500, 500, 400), (9000, 600, 400)])
def test_noted_spend_is_capped_by_job_budget_and_shared_budget(
    service: FakeService, client: TestClient, spent: int, of_job: int, of_team: int
) -> None:
    job = fakes.submit(client, **LONG)
    client.put("/v1/budgets/vision", json={"usd": 0.0004, "match": {"team": "vision"}}).raise_for_status()
    where = EntryPlace(hold_id(job, RESTORED, 7, 1), RESTORED, 7, 1)
    with service.database.write() as db:
        ledger.note_spent(db, service.project, job, where, Cost(Money(spent)), service.now())
        assert ledger.account(db, job).posted == Cost(Money(of_job))
    assert client.get("/v1/budgets/vision").json()["spend"]["usd"] == of_team / 1e6
    bill = client.get(f"/v1/jobs/{job}/bill").json()
    assert bill["restored_usd"] == bill["total_usd"] == bill["by_kind"]["lost"] == of_job / 1e6
    check_books(service)


def test_drivers_from_before_the_restore_cannot_write(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    """Covers a driver that the backup knows, a later one, and one of a job that the backup does not know, also after a second restore."""
    job = fakes.submit(client, **LONG)
    fakes.simulate(service, job, messages=15)
    back_up(service, tmp_path / "b")
    with service.database.write() as db:
        known = launches.get(db, job)
        assert known is not None
        launches.again(db, known, at=service.now(), not_before=known.not_before, quick_deaths=0)
    lost = fakes.submit(client)
    old = [
        SqlJournal(service.database, name, service.project, epoch, service.now())
        for name, epoch in ((job, 1), (job, 2))
    ]
    for _ in range(2):
        service.now.pass_s(5)
        put_back(service, tmp_path / "b")
        client.post(f"/v1/jobs/{job}/resume")
        for journal in old:
            with pytest.raises(Fenced), journal.transaction():
                pass
        with pytest.raises(Fenced), service.database.write() as db:
            launches.record_heartbeat(db, lost, 1, service.now())
        with service.database.read() as db:
            launch = launches.get(db, job)
        assert launch is not None
        with service.database.write() as db:
            launches.record_heartbeat(db, job, launch.epoch, service.now())
        old.append(SqlJournal(service.database, job, service.project, launch.epoch, service.now()))


def test_holds_of_a_driver_that_an_aborted_restore_fenced_are_billed_until_then(
    service: FakeService, client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launch was ordered an hour before the restore, and its driver has sent heartbeats until the restore."""
    job = fakes.submit(client, **LONG)
    back_up(service, tmp_path / "b")
    fakes.begin(service, job)
    service.now.pass_s(3600)
    now = service.now()
    with SqlJournal(service.database, job, service.project, 1, now).transaction() as tx:
        tx.put_attempt(AttemptRow("trial_00000", 1, now, assigned_at=now))
        name, cost = hold_id(job, "trial_00000", 1, 1), Cost(Money(600))
        assert tx.hold(OpenHold(name, "trial_00000", 1, 1, cost, now, Instant(now + 600 * NS)))
    service.now.pass_s(2)
    with service.database.write() as db:
        launches.record_heartbeat(db, job, 1, service.now())
    service.now.pass_s(1)
    monkeypatch.setattr(copies, "put", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        put_back(service, tmp_path / "b")

    with service.database.write() as db:
        launch = launches.get(db, job)
        assert launch is not None
        assert (launch.epoch, launch.state) == (2, "wanted")
        assert launch.previous_workers_ended_by == now + 3.5 * NS
        close_open(db, service.project, job, died_at=launch.previous_workers_ended_by, at=service.now())
        assert ledger.posted_by_kind(db, job, "trial_00000", 1) == {"lost": Cost(Money(4))}
    check_books(service)


def test_damaged_file_with_a_log_is_restored_after_its_processes_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of the damaged file has the log, too. Otherwise the newest transactions could not be recovered from it."""
    monkeypatch.setattr(copies, "LOCKED_S", 0.2)
    with restoring.on_sqlite(tmp_path / "home") as service:
        client = fakes.client_of(service)
        job = fakes.submit(client, **LONG)
        back_up(service, tmp_path / "b")
        file = Path(str(service.database.url.database))
        log = file.with_name(f"{file.name}-wal")
        for path in (file, log):
            path.write_bytes(b"nonsense" * (path.stat().st_size // 8))
        with pytest.raises(Unavailable, match="stop the processes that use it"):
            put_back(service, tmp_path / "b")
        kept = sorted(path.name.partition("Z")[2] for path in file.parent.glob("*damaged*"))
        assert kept == ["", "-wal"]
        service.database.dispose()
        put_back(service, tmp_path / "b")
        assert client.get(f"/v1/jobs/{job}").json()["state"] == "paused"


def test_restored_job_is_cancelled_without_open_trials_or_attempts(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    stays, leaves = fakes.submit(client, **LONG), fakes.submit(client, **LONG)
    for job in (stays, leaves):
        fakes.simulate(service, job, messages=30)
    client.post(f"/v1/jobs/{leaves}/cancel")
    back_up(service, tmp_path / "b")
    restore_report = put_back(service, tmp_path / "b")
    assert [paused_job.id for paused_job in restore_report.paused] == [stays], "the other was being cancelled"
    assert client.post(f"/v1/jobs/{stays}/cancel").json()["state"] == "cancelled"
    for job in (stays, leaves):
        assert client.get(f"/v1/jobs/{job}").json()["state"] == "cancelled"
        trials = client.get(f"/v1/jobs/{job}/trials?limit=500").json()["items"]
        assert trials
        assert not {"running", "pending"} & {listed_trial["state"] for listed_trial in trials}
        for trial in trials:
            shown = client.get(f"/v1/jobs/{job}/trials/{trial['id']}").json()
            assert all(attempt["ended_at"] for attempt in shown["attempt_list"])
    check_books(service)


def test_time_between_backup_and_restore_is_not_running_time(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    job = fakes.submit(client, budget={"usd": 0.0005, "wall_clock": "10m"})
    fakes.simulate(service, job, messages=15)
    back_up(service, tmp_path / "b")
    service.now.pass_s(7 * 86400)
    put_back(service, tmp_path / "b")
    client.post(f"/v1/jobs/{job}/resume")
    fakes.simulate(service, job, at=service.now())
    shown = client.get(f"/v1/jobs/{job}").json()
    assert (shown["state"], shown["stop_reason"]) == ("succeeded", "budget_usd")


@pytest.mark.needs("postgresql")
def test_newer_pg_restore_works_with_an_older_server(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pg_restore 17 begins its script with a setting that PostgreSQL 16 does not know."""
    newer = tmp_path / "bin/pg_restore"
    newer.parent.mkdir()
    newer.write_text(NEWER.format(shutil.which("pg_restore")))
    newer.chmod(0o755)
    monkeypatch.setenv("PATH", str(newer.parent), prepend=os.pathsep)
    with restoring.on_postgresql(tmp_path / "home", postgres_url) as service:
        fakes.submit(fakes.client_of(service))
        back_up(service, tmp_path / "b")
        assert put_back(service, tmp_path / "b").jobs == 1


@pytest.mark.needs("postgresql")
def test_restore_after_an_interrupted_restore_treats_spend_as_unknown(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with restoring.on_postgresql(tmp_path / "home", postgres_url) as service:
        client = fakes.client_of(service)
        job = fakes.submit(client, **LONG)
        fakes.simulate(service, job, messages=30)
        back_up(service, tmp_path / "b")
        fakes.simulate(service, job, at=service.now(), messages=15)
        with monkeypatch.context() as interrupted:
            interrupted.setattr(
                restored, "close", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt())
            )
            with pytest.raises(KeyboardInterrupt):
                put_back(service, tmp_path / "b")
        with pytest.raises(HalfRestored, match="run `tuner restore` with the backup again"):
            build(service.settings)
        (check,) = of_database(service.settings)
        assert not check.ok
        assert "a restore of the database was interrupted" in check.seen
        (restored_job,) = put_back(service, tmp_path / "b").paused
        assert (restored_job.exact, restored_job.since_usd > 0) == (False, True)
        build(service.settings).database.dispose()
        assert all(check.ok for check in of_database(service.settings))
        service.now.pass_s(5)
        (restored_job,) = put_back(service, tmp_path / "b").paused
        assert restored_job.exact
