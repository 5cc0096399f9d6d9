"""Stored files are removed when they are due, and never while they are needed, even if a removal fails halfway."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import delete, event, insert, select, update
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tests import fakes
from tests.api.test_bad_bodies import check_problem
from tests.copies import copy_job
from tests.fakes import FakeService
from tests.strategies import examples
from tuner.api import response_cache
from tuner.checkpoints.artifacts import TrialArtifacts
from tuner.checkpoints.checkpoints import CheckpointStore
from tuner.checkpoints.storage import Storage
from tuner.cli.main import app
from tuner.client import ApiError, Client
from tuner.database.tables import attempt_usage, attempts, audit_log, checkpoints, storage_spans
from tuner.database.tables import jobs as jobs_table
from tuner.domain import calendar
from tuner.domain.money import Money
from tuner.domain.retention import GRACE_NS, parse_retention
from tuner.domain.time import NS, Instant, rfc3339
from tuner.domain.usage import Usage
from tuner.driver.actuator import teacher_of
from tuner.service import spend
from tuner.service.spend import spend_of
from tuner.service.storage_lifecycle import AT_ONCE, REFUSALS, STEADY_NS, StorageLifecycle, delete_artifacts
from tuner.store import attempt_rows, best, exports, jobs, stored_files

DAY_S = 24 * 3600
HOUR_S = 3600
DAY_NS, HOUR_NS = DAY_S * NS, HOUR_S * NS
LOG = "logs/a1.log"


class Clocks:
    """The lifecycle of a service, whose clocks advance together unless a test says otherwise."""

    def __init__(self, service: FakeService) -> None:
        self.service, self.elapsed_ns = service, 0
        self.lifecycle = StorageLifecycle(service, lambda: self.elapsed_ns)

    def restart(self) -> None:
        self.lifecycle = StorageLifecycle(self.service, lambda: self.elapsed_ns)

    def pass_s(self, seconds: float) -> None:
        self.service.now.pass_s(seconds)
        self.elapsed_ns += round(seconds * NS)

    def one_pass(self, after_s: float = STEADY_NS / NS) -> None:
        self.pass_s(after_s)
        self.lifecycle.one_pass()


@pytest.fixture
def clocks(service: FakeService) -> Clocks:
    return Clocks(service)


def recorded(service: FakeService, job: str) -> dict[str, list[tuple[int, int]]]:
    """Return step and attempt of the recorded checkpoints, by trial."""
    saved: dict[str, list[tuple[int, int]]] = {}
    with service.database.read() as db:
        for row in db.execute(select(checkpoints).where(checkpoints.c.job == job)):
            saved.setdefault(row.trial, []).append((row.step, row.attempt))
    return saved


def finished(service: FakeService, client: TestClient, folder: Path, **more: Any) -> str:
    """Return a finished job whose trials have the files of their recorded checkpoints, an artifact and a log."""
    job = fakes.submit(client, **{"budget": {"usd": 0.0006}, **more})
    fakes.simulate(service, job)
    service.now.pass_s(1)
    store = CheckpointStore(service.settings.storage, "default", job)
    for trial, made in recorded(service, job).items():
        for step, attempt in made:
            work = folder / f"{job}-{trial}-{step}"
            work.mkdir()
            (work / "state.pt").write_bytes(b"x" * 100)
            store.publish(trial, attempt, step, work)
        artifacts = TrialArtifacts(service.settings.storage, "default", job, trial)
        artifacts.add(1, 1, {"a": b"artifact"}, at_ns=0, max_files=9, max_bytes=99)
        (folder_of(service, job, trial) / "logs").mkdir()
        (folder_of(service, job, trial) / LOG).write_bytes(b"log")
        with service.database.write() as db:
            attempt_rows.put(db, "default", (job, trial, 1), Usage(artifact_bytes=8))
    return job


def folder_of(service: FakeService, job: str, *trial: str) -> Path:
    return Path(service.settings.storage).joinpath("default", job, *trial)


def files(service: FakeService, job: str) -> set[str]:
    """Return the trials that have other files than logs."""
    root = folder_of(service, job)
    paths = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    return {path.parts[0] for path in paths if path.parts[1] != "logs"}


def best_trial(service: FakeService, job: str) -> str:
    with service.database.read() as db:
        best_result = best.best(db, job)
    assert best_result is not None
    return best_result.trial


def deletions(service: FakeService) -> list[str]:
    with service.database.read() as db:
        rows = db.execute(select(audit_log.c.after).where(audit_log.c.action == "artifacts.delete"))
        return [str(text) for text in rows.scalars()]


@pytest.mark.parametrize(
    ("policy", "days", "keeps", "next_day"),
    [
        ("all", 1000, "all", None),
        ("best", 0.9, "all", 1),
        ("best", 1, "best", None),
        ("best:30d", 1, "best", 30),
        ("best:30d", 30, "none", None),
        ("none:2h", 0.1, "none", 1),
        ("all:2d", 1, "all", 2),
        ("front:0.5d", 0.5, "none", 1),
    ],
)
def test_policy_keeps_files_for_a_time(policy: str, days: float, keeps: str, next_day: float | None) -> None:
    parsed, ended = parse_retention(policy), Instant(5)
    now = Instant(5 + round(days * GRACE_NS))
    assert parsed.keeps(ended, now) == keeps
    assert parsed.next_change(ended, now) == (None if next_day is None else 5 + next_day * GRACE_NS)


@pytest.mark.parametrize("text", ["", "some", "best:", "best:soon", "best:0s", "best 30d"])
def test_invalid_policy_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"retention|duration|none instead"):
        parse_retention(text)


def test_best_trial_is_kept_for_its_time(
    service: FakeService, client: TestClient, clocks: Clocks, tmp_path: Path
) -> None:
    job = finished(service, client, tmp_path, artifacts={"retain": "best", "for": "30d"})
    everything, best_one = set(recorded(service, job)), best_trial(service, job)
    assert len(everything) > 2
    clocks.one_pass()
    assert (set(recorded(service, job)), files(service, job)) == (everything, everything)
    clocks.one_pass(DAY_S)
    assert set(recorded(service, job)) == files(service, job) == {best_one}
    assert client.get(f"/v1/jobs/{job}/best").json()["checkpoint"] is not None
    clocks.one_pass(28 * DAY_S)
    assert files(service, job) == {best_one}
    clocks.one_pass(DAY_S)
    assert (recorded(service, job), files(service, job)) == ({}, set())
    assert len(deletions(service)) == 2
    assert '"why": "retention"' in deletions(service)[0]
    assert (folder_of(service, job, best_one) / LOG).exists()
    clocks.one_pass(DAY_S)
    assert len(deletions(service)) == 2


@pytest.mark.parametrize("by", ["retention", "request"])
def test_answers_stop_showing_checkpoints_that_are_removed(
    service: FakeService,
    client: TestClient,
    clocks: Clocks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by: str,
) -> None:
    # A cached answer may be outdated for a short time. Here it is not, because each reading of the clock is an hour later.
    elapsed_s = itertools.count(0, 3600)
    monkeypatch.setattr(response_cache, "time", SimpleNamespace(monotonic=lambda: next(elapsed_s)))
    job = finished(service, client, tmp_path, artifacts={"retain": "none"})
    trial = best_trial(service, job)
    step = client.get(f"/v1/jobs/{job}/best").json()["step"]

    def shown() -> list[str | None]:
        best_point = client.get(f"/v1/jobs/{job}/best").json()
        front = client.get(f"/v1/jobs/{job}/pareto").json()["items"]
        job_view = client.get(f"/v1/jobs/{job}").json()
        (listed,) = client.get("/v1/jobs").json()["items"]
        saved = client.get(f"/v1/jobs/{job}/trials/{trial}").json()["checkpoints"]
        return [
            best_point["checkpoint"],
            next(point["checkpoint"] for point in front if (point["trial"], point["step"]) == (trial, step)),
            job_view["best"]["checkpoint"],
            listed["best"]["checkpoint"],
            next((checkpoint["uri"] for checkpoint in saved if checkpoint["step"] == step), None),
        ]

    assert None not in shown()
    if by == "request":
        assert client.delete(f"/v1/jobs/{job}/artifacts").status_code == 202
    else:
        clocks.one_pass()
        clocks.one_pass(DAY_S)
    assert shown() == [None] * 5


def test_files_that_are_needed_are_never_removed(
    service: FakeService, client: TestClient, clocks: Clocks, tmp_path: Path
) -> None:
    job = finished(service, client, tmp_path, artifacts={"retain": "none"})
    everything = files(service, job)
    later = fakes.submit(client, warm_start={"jobs": [job]})
    clocks.one_pass(2 * DAY_S)
    path = f"/v1/jobs/{job}/artifacts"
    assert f"{later} continues trials of this job" in check_problem(client.delete(path), 409)["detail"]
    assert files(service, job) == everything
    client.post(f"/v1/jobs/{later}/cancel")
    client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 1}})
    client.post(f"/v1/jobs/{job}/resume")
    for _ in range(3):
        clocks.one_pass(2 * DAY_S)
        assert files(service, job) == everything
        assert "the job is" in check_problem(client.delete(path), 409)["detail"]
        client.post(f"/v1/jobs/{job}/pause")
    assert deletions(service) == []


def test_teacher_is_chosen_at_admission_and_kept_until_its_students_have_ended(
    service: FakeService, client: TestClient, clocks: Clocks, tmp_path: Path
) -> None:
    job = finished(service, client, tmp_path, artifacts={"retain": "none"}, constants={"depth": 3})
    student = fakes.submit(client, teacher={"job": job})
    trial, everything = best_trial(service, job), files(service, job)
    chosen = client.get(f"/v1/jobs/{student}").json()["teacher"]
    assert (chosen["job"], chosen["trial"]) == (job, trial)
    with service.database.read() as db:
        message = teacher_of(db, jobs.get(db, student), "there")
        assert teacher_of(db, jobs.get(db, job), "there") is None
    assert message is not None
    assert message["config"] == {"depth": 3, **client.get(f"/v1/jobs/{job}/trials/{trial}").json()["config"]}
    assert (chosen["step"], message["attempt"]) in recorded(service, job)[trial]

    clocks.one_pass(2 * DAY_S)
    path = f"/v1/jobs/{job}/artifacts"
    assert f"{student} learns from a trial of this job" in check_problem(client.delete(path), 409)["detail"]
    assert files(service, job) == everything
    client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 1}})
    assert f"{student} learns" in check_problem(client.post(f"/v1/jobs/{job}/resume"), 409)["detail"]
    fakes.simulate(service, student)
    clocks.one_pass(DAY_S)
    assert files(service, job) == set()
    client.patch(f"/v1/jobs/{student}", json={"budget": {"usd": 1}})
    gone = check_problem(client.post(f"/v1/jobs/{student}/resume"), 409)["detail"]
    assert f"{trial} of {job}, was deleted" in gone
    assert client.post(f"/v1/jobs/{job}/resume").is_success


def test_teacher_that_cannot_be_used_is_refused_with_a_pointer(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    running, job = fakes.submit(client), finished(service, client, tmp_path)
    trial = best_trial(service, job)
    for teacher, pointer, words in (
        ({"job": running}, "/teacher/job", "is queued"),
        ({"job": job, "trial": "trial_99999"}, "/teacher/trial", "has no trial"),
        ({"job": job, "trial": trial, "step": 99}, "/teacher/step", "no checkpoint of step 99"),
    ):
        answer = client.post("/v1/jobs", json=fakes.body(teacher=teacher))
        (error,) = check_problem(answer)["errors"]
        assert (error["pointer"], words in error["detail"]) == (pointer, True), error


class Killed(BaseException):
    """The process ends here, as with kill -9."""


@pytest.mark.parametrize("error", [Killed, OSError], ids=["killed", "refused"])
def test_interrupted_removal_is_completed_and_loses_nothing_else(
    service: FakeService,
    client: TestClient,
    clocks: Clocks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    job = finished(service, client, tmp_path, artifacts={"retain": "best"})
    best_one, real = best_trial(service, job), Storage.remove
    left: Iterator[None] = iter(())

    def remove(self: Storage, *parts: str, **more: Any) -> None:
        if next(left, error) is error:
            raise error("the storage refuses")
        real(self, *parts, **more)

    monkeypatch.setattr(Storage, "remove", remove)
    clocks.pass_s(DAY_S)
    store = CheckpointStore(service.settings.storage, "default", job)
    for allowed in range(3):
        left = iter([None] * allowed)
        try:
            clocks.one_pass()
        except Killed:
            clocks.restart()
        for trial, made in recorded(service, job).items():
            assert trial == best_one
            for step, attempt in made:
                archive = client.get(f"/v1/jobs/{job}/trials/{trial}/checkpoint", params={"step": step})
                assert archive.status_code == 200, (step, attempt)
        for trial in files(service, job) - {best_one}:
            assert client.get(f"/v1/jobs/{job}/trials/{trial}/artifacts").json() == {"items": []}
            assert client.get(f"/v1/jobs/{job}/trials/{trial}/checkpoint").status_code == 404
    assert files(service, job) > {best_one}
    monkeypatch.undo()
    clocks.restart()
    clocks.one_pass()
    assert files(service, job) == {best_one}
    assert all(store.ids(trial) == [] for trial in ("trial_00000", "trial_00001") if trial != best_one)
    assert len(deletions(service)) == 1


@pytest.mark.parametrize("action", ["names", "used_bytes"])
def test_files_that_cannot_be_removed_or_measured_do_not_block_others(
    service: FakeService,
    client: TestClient,
    clocks: Clocks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
) -> None:
    done = [finished(service, client, tmp_path) for _ in range(REFUSALS + 1)]
    refused, last = done[:REFUSALS], done[-1]
    real = getattr(Storage, action)

    def refuse(self: Storage, *parts: str) -> Any:
        if any(job in parts for job in refused):
            raise OSError("access denied")
        return real(self, *parts)

    for job in done:
        assert client.delete(f"/v1/jobs/{job}/artifacts").status_code == 202
    monkeypatch.setattr(Storage, action, refuse)
    trials = sum(len(files(service, job)) for job in refused)
    for _ in range(trials // REFUSALS + 2):
        clocks.one_pass()
    assert files(service, last) == set()
    with service.database.read() as db:
        measured = {span.job for span in stored_files.spans(db, "default", Instant(0), Instant(2**62))}
    assert last in measured
    assert measured.isdisjoint(refused) or action == "names"
    monkeypatch.undo()
    for _ in range(2):
        clocks.one_pass()
    assert all(files(service, job) == set() for job in done)


def with_trials(service: FakeService, client: TestClient, count: int, **more: Any) -> str:
    """Return a succeeded job with this many trials, each of which has had two attempts and has a recorded checkpoint."""
    job = fakes.submit(client, **more)
    fakes.begin(service, job)
    of_job = {"job": job, "project": "default"}
    ended = {"began_at": 1, "ended_at": 2, "end": "stopped", "from_step": 0, "to_step": 1, "costs": "{}"}
    empty = dict.fromkeys(("reason", "detail", "node"), "")
    saved = {"step": 1, "attempt": 2, "uri": "", "size_bytes": 100, "seconds": 0.1, "at": 1}
    with service.database.write() as db:
        for number in range(count):
            of_trial = {**of_job, "trial": f"trial_{number:05d}"}
            for attempt in (1, 2):
                db.execute(insert(attempts).values(attempt=attempt, **of_trial, **ended, **empty))
            db.execute(insert(attempt_usage).values(attempt=2, artifact_bytes=8, facts="{}", **of_trial))
            db.execute(insert(checkpoints).values(**of_trial, **saved))
    fakes.move(service, job, "succeeded")
    return job


def test_ordering_a_removal_takes_as_many_statements_for_many_trials(
    service: FakeService, client: TestClient
) -> None:
    """Count the statements of a deletion, and of another one with nothing left to delete."""
    statements = list[str]()
    event.listen(
        service.database.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2])
    )

    def needed(job: str) -> int:
        del statements[:]
        delete_artifacts(service, job)
        return len(statements)

    few, many = (with_trials(service, client, count) for count in (2, 40))
    assert [needed(few), needed(few)] == [needed(many), needed(many)]
    with service.database.read() as db:
        ordered = stored_files.removals_to_do(db, 100)
    assert [removal.up_to_attempt for removal in ordered] == [2] * 42
    assert recorded(service, many) == {}


def ordered_removals(service: FakeService) -> list[tuple[str, str]]:
    with service.database.read() as db:
        return [(removal.job, removal.trial) for removal in stored_files.removals_to_do(db, 10_000)]


def test_one_pass_carries_out_all_orders_if_there_is_time(
    service: FakeService, client: TestClient, clocks: Clocks
) -> None:
    delete_artifacts(service, with_trials(service, client, AT_ONCE + 5))
    clocks.one_pass()
    assert ordered_removals(service) == []


def test_pass_ends_after_a_time_and_jobs_take_turns(
    service: FakeService, client: TestClient, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = (with_trials(service, client, count) for count in (9, 2))
    for job in (large, small):
        delete_artifacts(service, job)
        service.now.pass_s(1)
    names = Storage.names

    def takes_a_minute(self: Storage, *parts: str) -> list[str]:
        clocks.pass_s(60)
        return names(self, *parts)

    monkeypatch.setattr(Storage, "names", takes_a_minute)
    clocks.one_pass()
    left = ordered_removals(service)
    assert len(left) == 11 - 6, "the sixth removal begins after five minutes"
    assert {job for job, _ in left} == {large}


def test_stopped_service_begins_no_removal(service: FakeService, client: TestClient, clocks: Clocks) -> None:
    delete_artifacts(service, with_trials(service, client, 2))
    clocks.lifecycle.stop()
    clocks.one_pass()
    assert len(ordered_removals(service)) == 2


def test_repeated_deletion_keeps_the_place_of_the_orders(service: FakeService, client: TestClient) -> None:
    first = with_trials(service, client, 1)
    delete_artifacts(service, first)
    service.now.pass_s(1)
    second = with_trials(service, client, 1)
    delete_artifacts(service, second)
    service.now.pass_s(1)
    delete_artifacts(service, first)
    with service.database.read() as db:
        assert [removal.job for removal in stored_files.removals_to_do(db, 9)] == [first, second]


def test_order_covers_the_attempts_since_an_earlier_order(service: FakeService, client: TestClient) -> None:
    job = with_trials(service, client, 2)
    delete_artifacts(service, job)
    of_trial = {"job": job, "trial": "trial_00001", "attempt": 2}
    with service.database.write() as db:
        a = attempts.c
        third = update(attempts).where(*(a[name] == value for name, value in of_trial.items()))
        db.execute(third.values(attempt=3))
    delete_artifacts(service, job)
    with service.database.read() as db:
        ordered = stored_files.removals_to_do(db, 9)
    assert [(removal.trial, removal.up_to_attempt) for removal in ordered] == [
        ("trial_00000", 2),
        ("trial_00001", 3),
    ]


@pytest.mark.parametrize("by", ["retention", "request"])
def test_files_without_a_record_are_removed_too(
    service: FakeService, client: TestClient, clocks: Clocks, tmp_path: Path, by: str
) -> None:
    """A process died after it had stored files of a trial and of an export, and before they were recorded."""
    job = finished(service, client, tmp_path, artifacts={"retain": "none"})
    trials = sorted(files(service, job))
    with service.database.write() as db:
        kept = 0 if by == "request" else 1
        for trial in trials[kept:]:
            db.execute(delete(checkpoints).where(checkpoints.c.job == job, checkpoints.c.trial == trial))
            db.execute(update(attempt_usage).where(attempt_usage.c.trial == trial).values(artifact_bytes=0))
        spec = exports.ExportSpec(("onnx",), Money(1), None)
        export = exports.add(
            db, "default", job, trial=trials[0], step=1, attempt=1, spec=spec, at=service.now()
        )
        exports.end(db, export, "failed", service.now(), code="export_lost")
    work = tmp_path / "exported"
    work.mkdir()
    (work / "model.onnx").write_bytes(b"model")
    CheckpointStore(service.settings.storage, "default", job).publish(export.id, 1, 1, work)
    assert files(service, job) == {*trials, export.id}
    if by == "request":
        assert client.delete(f"/v1/jobs/{job}/artifacts").json()["trials"] == 0
    else:
        clocks.one_pass()
        clocks.pass_s(DAY_S)
    clocks.one_pass()
    assert files(service, job) == set()
    assert (folder_of(service, job, trials[0]) / LOG).exists()


def test_clock_that_jumps_makes_no_files_due(
    service: FakeService, client: TestClient, clocks: Clocks, tmp_path: Path
) -> None:
    job = finished(service, client, tmp_path, artifacts={"retain": "none"})
    everything = files(service, job)
    clocks.one_pass()
    service.now.pass_s(40 * DAY_S)
    for _ in range(9):
        clocks.one_pass(60)
    service.now.pass_s(-40 * DAY_S)
    for _ in range(30):
        clocks.one_pass(60)
    assert files(service, job) == everything


def test_resumed_job_begins_again_without_its_files_and_keeps_its_new_ones(
    service: FakeService, client: TestClient, clocks: Clocks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = finished(service, client, tmp_path)
    answer = client.delete(f"/v1/jobs/{job}/artifacts")
    assert answer.status_code == 202
    assert answer.json()["trials"] == len(files(service, job))
    assert client.delete(f"/v1/jobs/{job}/artifacts").json()["trials"] == 0
    client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.002}})
    assert client.post(f"/v1/jobs/{job}/resume").is_success
    fakes.simulate(service, job, at=service.now())
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "succeeded"
    trial, made = next((trial, made) for trial, made in recorded(service, job).items() if max(made)[1] > 1)
    work = tmp_path / "new"
    work.mkdir()
    (work / "state.pt").write_bytes(b"new")
    step, attempt = max(made)
    CheckpointStore(service.settings.storage, "default", job).publish(trial, attempt, step, work)
    clocks.one_pass()
    assert client.get(f"/v1/jobs/{job}/trials/{trial}/checkpoint", params={"step": step}).status_code == 200
    assert files(service, job) == {trial}


def test_storage_of_more_jobs_takes_no_more_statements(service: FakeService, client: TestClient) -> None:
    statements, counts, items = list[str](), list[int](), list[Any]()
    event.listen(
        service.database.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2])
    )
    for count in (1, 2):
        due = stored_files.DueMeasurement(fakes.submit(client), "default")
        with service.database.write() as db:
            stored_files.record_sizes(db, {due: 5}, service.now())
        statements.clear()
        items = client.get("/v1/storage").json()["items"]
        counts.append(len(statements))
        assert [item["needed_by"] for item in items] == ["the job is queued"] * count
    assert counts[0] == counts[1] > 0


def test_storage_of_more_ended_jobs_takes_no_more_statements(
    service: FakeService, client: TestClient, clocks: Clocks, tmp_path: Path
) -> None:
    confirm = {"candidates": 3, "seeds": 3}
    impossible = [{"metric": "acc", "min": 99}]
    kinds: list[dict[str, Any]] = [
        {
            "artifacts": {"retain": "best"},
            "confirm": confirm,
            "budget": {"usd": 0.004},
            "algorithm": {"scheduler": "auto", "sampler": "random"},
        },
        {"artifacts": {"retain": "best"}, "constraints": impossible},
        {"artifacts": {"retain": "front"}},
        {"artifacts": {"retain": "none"}},
    ]
    ended = [finished(service, client, tmp_path, **kind) for kind in kinds]
    clocks.one_pass()
    clocks.pass_s(GRACE_NS / NS)
    statements, counts, due = list[str](), list[int](), dict[str, int]()
    event.listen(
        service.database.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2])
    )
    for copies in (0, 5):
        for number, job in enumerate(ended if copies else []):
            copy_job(service.database, job, copies, name=f"copy{number}of")
        statements.clear()
        due = {item["job"]: item["due_trials"] for item in client.get("/v1/storage").json()["items"]}
        counts.append(len(statements))
        assert len(due) == len(ended) * (copies + 1)
    assert counts[0] == counts[1] > 0
    for number, job in enumerate(ended):
        retain = kinds[number]["artifacts"]["retain"]
        of_copies = {due[f"job_copy{number}of{copy}"] for copy in range(1, 6)}
        assert of_copies == {due[job]} == {delete_artifacts(service, job, retain).trials} != {0}


def test_sizes_of_several_jobs_are_recorded_at_once(service: FakeService, client: TestClient) -> None:
    new, same, changed, ahead = (
        stored_files.DueMeasurement(fakes.submit(client), "default") for _ in range(4)
    )
    with service.database.write() as db:
        stored_files.record_sizes(db, {same: 5, changed: 5}, Instant(100))
        stored_files.record_sizes(db, {ahead: 5}, Instant(300))  # the clock is set back afterwards
        stored_files.record_sizes(db, {new: 7, same: 5, changed: 6, ahead: 6}, Instant(200))
        rows = db.execute(select(storage_spans).order_by(storage_spans.c.since)).all()
    spans = {
        due: [(row.since, row.until, row.bytes, row.seen_at) for row in rows if row.job == due.job]
        for due in (new, same, changed, ahead)
    }
    # since, until, bytes, and when it was measured last
    assert spans == {
        new: [(200, None, 7, 200)],
        same: [(100, None, 5, 200)],
        changed: [(100, 200, 5, 100), (200, None, 6, 200)],
        ahead: [(300, 301, 5, 300), (301, None, 6, 200)],
    }


def test_sizes_measured_before_the_storage_failed_are_recorded(
    service: FakeService, client: TestClient, clocks: Clocks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = [finished(service, client, tmp_path) for _ in range(REFUSALS + 2)]
    asked = list[str]()

    def fails_after_the_first(_storage: Storage, _project: str, job: str) -> int:
        asked.append(job)
        if len(asked) > 1:
            raise OSError("the bucket does not answer")
        return 17

    monkeypatch.setattr(Storage, "used_bytes", fails_after_the_first)
    clocks.one_pass()
    assert len(asked) == 1 + REFUSALS
    with service.database.read() as db:
        known = [
            (span.job, span.size_bytes)
            for span in stored_files.spans(db, "default", Instant(0), Instant(2**62))
        ]
    assert known == [(asked[0], 17)]
    assert asked[0] in done


def test_job_that_ends_while_files_are_measured_is_measured_again(
    service: FakeService, client: TestClient, clocks: Clocks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = finished(service, client, tmp_path)
    measured = list[str]()

    def ends_meanwhile(_storage: Storage, _project: str, job: str) -> int:
        measured.append(job)
        service.now.pass_s(60)
        with service.database.write() as db:
            db.execute(update(jobs_table).where(jobs_table.c.id == job).values(ended_at=service.now()))
        service.now.pass_s(60)
        return len(measured)

    monkeypatch.setattr(Storage, "used_bytes", ends_meanwhile)
    clocks.lifecycle.one_pass()
    clocks.lifecycle.one_pass()
    assert measured == [job, job]


def test_storage_is_measured_and_shown_with_its_price(
    service: FakeService,
    client: TestClient,
    clocks: Clocks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = finished(service, client, tmp_path, artifacts={"retain": "best"})
    clocks.one_pass()
    root = folder_of(service, job)
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    (item,) = client.get("/v1/storage").json()["items"]
    assert (item["job"], item["bytes"], item["keeps"], item["retain"]) == (job, size, "all", "best")
    assert item["usd_per_month"] is None
    clocks.pass_s(DAY_S)
    made = Client("http://tuner", fakes.KEY, transport=client._transport)
    monkeypatch.setattr("tuner.client.Client", lambda: made)
    runner = CliRunner()
    assert job in runner.invoke(app, ["storage", "ls"]).output
    dry = runner.invoke(app, ["storage", "gc", "--dry-run"])
    assert f"{job} has {size} bytes and keeps the files of best" in dry.output
    assert deletions(service) == []
    (due,) = json.loads(runner.invoke(app, ["storage", "gc", "--dry-run", "--json"]).stdout)["items"]
    assert due["due_trials"] == len(recorded(service, job)) - 1
    assert "deleted the files of" in runner.invoke(app, ["storage", "gc"]).output
    assert client.get("/v1/storage").json()["items"][0]["due_trials"] == 0
    for words in (["storage", "gc", "--dry-run"], ["storage", "gc"]):
        assert "no ended job has files to delete" in runner.invoke(app, words).output
    assert len(deletions(service)) == 1
    assert files(service, job) > {best_trial(service, job)}
    clocks.one_pass()
    clocks.one_pass()
    assert client.get("/v1/storage").json()["bytes"] < size
    (item,) = made.storage(job).items
    assert item.storage_usd is None
    assert item.storage_gb_months == pytest.approx(size / 1e9 * DAY_S / (730 * 3600), rel=0.01, abs=1e-9)
    with pytest.raises(ApiError, match="job_none"):
        made.storage("job_none")
    with service.database.read() as db:
        spans = list(stored_files.spans(db, "default", Instant(0), Instant(2**62)))
    assert spans[0].size_bytes == size
    assert spans[0].until == spans[1].since


def test_refused_deletion_does_not_stop_the_deletions_of_other_jobs(
    service: FakeService, client: TestClient, clocks: Clocks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        finished(service, client, tmp_path, artifacts={"retain": "none"})
    clocks.one_pass()
    clocks.pass_s(DAY_S)
    made = Client("http://tuner", fakes.KEY, transport=client._transport)
    listed = made.storage()
    needed, other = (item.job for item in listed.items)
    later = fakes.submit(client, warm_start={"jobs": [needed]})
    monkeypatch.setattr("tuner.client.Client", lambda: made)
    monkeypatch.setattr(made, "storage", lambda: listed)
    result = CliRunner().invoke(app, ["storage", "gc", "--json"])
    assert result.exit_code == 1
    assert f"{later} continues trials of this job" in result.stderr
    assert [deleted["job"] for deleted in json.loads(result.stdout)["items"]] == [other]


def test_period_that_has_not_begun_has_no_storage_cost(service: FakeService, client: TestClient) -> None:
    priced = fakes.client_of(
        replace(service, settings=replace(service.settings, storage_usd_per_gb_month=Decimal("0.023")))
    )
    job = fakes.submit(client)
    fakes.simulate(service, job)
    with service.database.write() as db:
        stored_files.record_sizes(db, {stored_files.DueMeasurement(job, "default"): 10**12}, service.now())
    service.now.pass_s(60)
    query = {"group_by": "job", "since": rfc3339(service.now() + 30 * DAY_NS)}
    answer = priced.get("/v1/spend", params=query).json()
    assert (answer["items"], answer["total"]["storage_usd"]) == ([], 0)


def test_spend_has_the_storage_of_each_group_outside_the_budgets(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    priced = fakes.client_of(
        replace(service, settings=replace(service.settings, storage_usd_per_gb_month=Decimal("0.023")))
    )
    ids = [fakes.submit(client, tags={"project": name}, budget={"usd": 0.0005}) for name in ("a", "b")]
    for job in ids:
        fakes.simulate(service, job)
    midnight = (service.now() // DAY_NS + 1) * DAY_NS
    for job, gigabytes in zip(ids, (73, 146), strict=True):
        with service.database.write() as db:
            due = stored_files.DueMeasurement(job, "default")
            stored_files.record_sizes(db, {due: gigabytes * 10**9}, Instant(midnight - 10 * HOUR_NS))
            stored_files.record_sizes(db, {due: 0}, Instant(midnight + 10 * HOUR_NS))
    service.now.at = midnight + DAY_NS

    def storage(group: str, **query: str) -> dict[str | None, tuple[float, float]]:
        answer = priced.get("/v1/spend", params={"group_by": group, **query}).json()
        total = answer["total"]
        spent = sum(line["usd"] for line in answer["items"])
        assert total["usd"] == pytest.approx(spent)
        return {
            line["keys"][group]: (line["storage_gb_months"], line["storage_usd"])
            for line in [*answer["items"], {**total, "keys": {group: "total"}}]
        }

    a, b, both = (2.0, 0.046), (4.0, 0.092), (6.0, 0.138)
    assert storage("tag:project") == {"a": a, "b": b, "total": both}
    assert storage("job") == {ids[0]: a, ids[1]: b, "total": both}
    days = storage("day")
    assert days.pop("total") == both
    assert [figures for figures in days.values() if figures[0]] == [(3.0, 0.069)] * 2
    assert set(storage("market").values()) == {(None, None), both}
    after = rfc3339(midnight + 5 * HOUR_NS)
    assert storage("tag:project", since=after) == {
        "a": (0.5, 0.0115),
        "b": (1.0, 0.023),
        "total": (1.5, 0.0345),
    }
    assert spend_of(service, ("job",)).total.storage_usd is None
    made = Client("http://tuner", fakes.KEY, transport=priced._transport)
    monkeypatch.setattr("tuner.client.Client", lambda: made)
    shown = CliRunner().invoke(app, ["spend"]).output
    assert "storage: 6 GB-months for $0.138, not counted in bills and budgets" in shown


@pytest.mark.parametrize("group_by", [("day",), ("tag:owner", "day", "job"), ("trainable", "tag:owner")])
def test_storage_in_spend_takes_as_many_steps_for_many_jobs(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch, group_by: tuple[str, ...]
) -> None:
    """Count SQL statements, and days that are searched for in the calendar."""
    steps, period_of = list[str](), calendar.period_of

    def note(*given: Any) -> Any:
        steps.append("day")
        return period_of(*given)

    monkeypatch.setattr(calendar, "period_of", note)
    event.listen(service.database.engine, "before_cursor_execute", lambda *given: steps.append(given[2]))

    def store(jobs: int) -> None:
        for _ in range(jobs):
            due = stored_files.DueMeasurement(fakes.submit(client, tags={"owner": "ada"}), "default")
            with service.database.write() as db:
                stored_files.record_sizes(db, {due: 10**9}, Instant(service.now() - 20 * DAY_NS))

    def needed() -> int:
        del steps[:]
        spend_of(service, group_by, timezone="Europe/Berlin")
        return len(steps)

    store(2)
    few = needed()
    store(9)
    assert needed() == few


@examples(100)
@given(
    timezone=st.sampled_from(["UTC", "Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia"]),
    year=st.sampled_from([2011, 2018, 2026]),
    parts=st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 9000), st.integers(1, 9000), st.integers(1, 9)),
        min_size=1,
        max_size=5,
    ),
)
def test_storage_of_each_day_equals_the_parts_on_that_day(
    timezone: str, year: int, parts: list[tuple[str, int, int, int]]
) -> None:
    where, begin = calendar.zone(timezone), int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    stored = [
        spend.StoredPart(job, (begin + since * HOUR_S) * NS, (begin + (since + hours) * HOUR_S) * NS, size)
        for job, since, hours, size in parts
    ]
    wanted = Counter[tuple[str, str]]()
    for job, since, hours, size in parts:
        for hour in range(since, since + hours):  # each of these time zones changes its clocks at full hours
            at = datetime.fromtimestamp(begin + hour * HOUR_S, where)
            wanted[job, at.date().isoformat()] += size * HOUR_S * NS
    assert spend.stored_by_group(stored, ("job", "day"), {}, timezone) == wanted
