"""Test the rows that the SQL journal writes and that users see."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Row, Table, select

from tests.store.builders import JOB, PROJECT, budget, cost, create, hold, new_job
from tuner.database.database import Database
from tuner.database.tables import checkpoints, front, launches, reports, trials
from tuner.domain.checkpointing import Losses
from tuner.domain.events import Completed, WallClockEnded
from tuner.domain.job import StopReason
from tuner.domain.money import FREE
from tuner.domain.objective import Fidelity, Mode, Objective
from tuner.domain.records import DRIVER_ENDED, AttemptRow, CheckpointRow, ReportRow
from tuner.domain.time import Instant
from tuner.domain.usage import Usage
from tuner.service.checkpoints import choose
from tuner.store import attempt_rows, jobs
from tuner.store import journal as sql_journal
from tuner.store.best import best_trials
from tuner.store.evidence import losses
from tuner.store.journal import SqlJournal

AT = Instant(5)
TRIAL = "trial_00003"
OTHER = "job_0000000000000002"


@pytest.fixture
def mode() -> Mode:
    return "max"


@pytest.fixture
def journal(database: Database, mode: Mode) -> SqlJournal:
    """The journal of a running job with one running trial."""
    job = new_job()
    objective = replace(job.spec.objective, mode=mode)
    create(database, replace(job, spec=replace(job.spec, objective=objective)))
    with database.write() as db:
        jobs.begin_running(db, JOB, at=Instant(1))
    new_journal = SqlJournal(database, JOB, PROJECT, 1, Instant(4))
    with new_journal.transaction() as tx:
        tx.put_trial(TRIAL, "running", at=AT, config={"lr": 0.1, "opt": None})
    return new_journal


def only(database: Database, table: Table) -> Row[Any]:
    with database.read() as db:
        return db.execute(select(table)).one()


def put_report(journal: SqlJournal, step: int, value: float | None, metrics: Mapping[str, object]) -> None:
    with journal.transaction() as tx:
        tx.put_report(ReportRow(TRIAL, 1, step, Instant(step), value, metrics, FREE, 0))


def test_size_of_all_metrics_is_counted_and_read_again_by_the_next_driver(
    database: Database, journal: SqlJournal
) -> None:
    put_report(journal, 1, 0.5, {"acc": 0.5, "note": "é"})
    put_report(journal, 2, 0.6, {"acc": 0.6})
    put_report(journal, 2, 0.7, {"acc": 0.7, "note": "a repeated report is not recorded"})
    size = len(json.dumps({"acc": 0.5, "note": "é"})) + len(json.dumps({"acc": 0.6}))
    assert journal.metrics_bytes() == size
    assert SqlJournal(database, JOB, PROJECT, 1, Instant(4)).metrics_bytes() == size


def test_failed_turn_adds_no_metrics_and_no_turn_counts_them_again(
    journal: SqlJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting takes seconds for a large job, which is too long for a transaction that writes."""
    put_report(journal, 1, 0.5, {"acc": 0.5})
    assert journal.metrics_bytes() == len('{"acc": 0.5}')
    monkeypatch.delattr(sql_journal, "_METRICS_BYTES")
    with pytest.raises(ZeroDivisionError):
        fail_a_turn(journal)
    put_report(journal, 2, 0.75, {"acc": 0.75})
    assert journal.metrics_bytes() == len('{"acc": 0.5}') + len('{"acc": 0.75}')


def save(journal: SqlJournal, step: int) -> None:
    with journal.transaction() as tx:
        tx.put_checkpoint(CheckpointRow(TRIAL, step, 1, f"s3://{step}", 1, 0.5, AT))


def fail_a_turn(journal: SqlJournal) -> None:
    with journal.transaction() as tx:
        tx.put_report(ReportRow(TRIAL, 1, 2, AT, 0.9, {"acc": 0.9, "lost": 1}, FREE, 0))
        tx.put_attempt(AttemptRow(TRIAL, 2, Instant(5)))
        tx.put_checkpoint(CheckpointRow(TRIAL, 2, 1, "s3://2", 1, 0.5, AT))
        raise ZeroDivisionError


def test_trial_row_keeps_its_number_configuration_and_creation_time(
    journal: SqlJournal, database: Database
) -> None:
    with journal.transaction() as tx:
        tx.put_trial(TRIAL, "stopped", at=Instant(8), config={"lr": 9}, reason="worse than others")
    row = only(database, trials)
    assert (row.number, json.loads(row.config)) == (3, {"lr": 0.1, "opt": None})
    assert (row.state, row.reason, row.steps, row.value) == ("stopped", "worse than others", 0, None)
    assert (row.created_at, row.updated_at, row.project) == (5, 8, PROJECT)


def test_trial_row_has_steps_and_value_of_its_furthest_report(
    journal: SqlJournal, database: Database
) -> None:
    for step, value in [(1, 0.1), (3, 0.3), (2, 0.2), (3, 0.9)]:
        put_report(journal, step, value, {})
    row = only(database, trials)
    assert (row.steps, row.value) == (3, 0.3)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_step_without_a_finite_value_counts_and_keeps_the_last_value(
    journal: SqlJournal, database: Database, value: float | None
) -> None:
    put_report(journal, 1, 0.1, {})
    put_report(journal, 2, value, {"acc": value})
    row = only(database, trials)
    assert (row.steps, row.value) == (2, 0.1)
    with database.read() as db:
        assert db.execute(select(reports.c.value).order_by(reports.c.step)).scalars().all() == [0.1, None]


def test_non_finite_metrics_are_stored_as_strict_json(journal: SqlJournal, database: Database) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    put_report(journal, 1, math.nan, {"acc": math.nan, "loss": math.inf})
    json.loads(only(database, reports).metrics, parse_constant=refuse)


@pytest.mark.parametrize(("mode", "best"), [("max", (0.4, 2)), ("min", (0.3, 3))])
def test_steps_with_other_proxies_are_not_compared(
    database: Database, mode: Mode, best: tuple[float, int]
) -> None:
    """The first step has the best metric in both directions, but was trained with the first value of the proxy."""
    fidelity = Fidelity(max=4, reduction_factor=2, proxies={"resolution": (16, 32)})
    job = new_job()
    with_proxies = replace(job.spec, fidelity=fidelity, objective=Objective("acc", mode))
    create(database, replace(job, spec=with_proxies))
    journal = SqlJournal(database, JOB, PROJECT, 1, Instant(4))
    with journal.transaction() as tx:
        for trial, steps in ((TRIAL, 3), ("trial_00004", 1)):
            tx.put_trial(trial, "running", at=AT, config={"lr": 0.1})
            for step, value in enumerate([0.9 if mode == "max" else 0.1, 0.4, 0.3][:steps], start=1):
                tx.put_report(ReportRow(trial, 1, step, Instant(step), value, {}, FREE, 0))
    for step in (1, 2, 3):
        save(journal, step)
    assert journal.best_checkpoint(TRIAL) == best
    with database.read() as db:
        assert choose(db, jobs.get(db, JOB), TRIAL, None).step == best[1]
        assert [trial.trial for trial in best_trials(db, JOB, with_proxies, 9)] == [TRIAL, "trial_00004"]


@pytest.mark.parametrize(("mode", "best"), [("max", (0.9, 2)), ("min", (0.1, 1))])
def test_best_checkpoint_belongs_to_the_best_reported_step_with_a_checkpoint(
    journal: SqlJournal, best: tuple[float, int]
) -> None:
    for step, value in enumerate([0.1, 0.9, None, 0.9, 2.0, -2.0], start=1):
        put_report(journal, step, value, {})
    for step in (1, 2, 3, 4):
        save(journal, step)
    assert journal.best_checkpoint(TRIAL) == best
    assert journal.best_checkpoint("trial_00001") is None


@pytest.mark.parametrize(("mode", "kept"), [("max", [2, 5, 6]), ("min", [1, 5, 6])])
def test_pruned_checkpoints_are_removed_from_the_journal(
    journal: SqlJournal, database: Database, kept: list[int]
) -> None:
    for step, value in enumerate([0.1, 0.9, None, 0.3, 0.2, 0.2], start=1):
        put_report(journal, step, value, {})
        save(journal, step)
        with journal.transaction() as tx:
            tx.keep_checkpoints(TRIAL, keep=2)
    with database.read() as db:
        assert list(db.execute(select(checkpoints.c.step).order_by(checkpoints.c.step)).scalars()) == kept


def test_events_are_read_page_by_page(journal: SqlJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.store.job_record.EVENTS_PAGE", 3)
    before = list(journal.events())
    recorded = [WallClockEnded(Instant(at)) for at in range(7)]
    with journal.transaction() as tx:
        for event in recorded:
            tx.append(event)
    assert list(journal.events()) == [*before, *recorded]


def test_running_time_is_measured_up_to_the_launch(journal: SqlJournal) -> None:
    assert journal.running_ns() == 3


def test_reopened_journal_continues_after_the_last_event(journal: SqlJournal, database: Database) -> None:
    with journal.transaction() as tx:
        tx.hold(hold(1, FREE))
        tx.append(Completed(AT, TRIAL))
    reopened = SqlJournal(database, JOB, PROJECT, 1, Instant(4))
    assert reopened.open_holds() == [hold(1, FREE)]
    assert list(reopened.events()) == [Completed(AT, TRIAL)]
    with reopened.transaction() as tx:
        assert tx.append(Completed(AT, TRIAL)) == 2


@pytest.mark.parametrize("how", ["reopened", "failed"])
def test_journal_knows_what_is_recorded_after_it_was_reopened_or_a_turn_failed(
    journal: SqlJournal, database: Database, how: str
) -> None:
    put_report(journal, 1, 0.4, {})
    save(journal, 1)
    with journal.transaction() as tx:
        tx.put_attempt(AttemptRow(TRIAL, 1, Instant(3)))
    with pytest.raises(ZeroDivisionError):
        fail_a_turn(journal)
    if how == "reopened":
        journal = SqlJournal(database, JOB, PROJECT, 1, Instant(4))
    put_report(journal, 1, 0.8, {})
    put_report(journal, 2, 0.3, {})
    with journal.transaction() as tx:
        tx.put_trial(TRIAL, "paused", at=AT)
        tx.put_attempt(AttemptRow(TRIAL, 1, Instant(3), node="here"))
        tx.put_attempt(AttemptRow(TRIAL, 2, Instant(6)))
        tx.put_checkpoint(CheckpointRow(TRIAL, 1, 2, "s3://again", 1, 0.5, AT))
    with database.read() as db:
        assert db.execute(select(reports.c.step, reports.c.value)).all() == [(1, 0.4), (2, 0.3)]
        assert db.execute(select(trials.c.state, trials.c.steps, trials.c.value)).one() == ("paused", 2, 0.3)
        assert db.execute(select(checkpoints.c.step, checkpoints.c.uri)).all() == [(1, "s3://again")]
        assert db.execute(select(front.c.step)).scalars().all() == [1]
    assert [(row.attempt, row.began_at) for row in journal.attempts()] == [(2, 6)]


def test_jobs_in_one_database_do_not_see_each_other(journal: SqlJournal, database: Database) -> None:
    with journal.transaction() as tx:
        tx.append(Completed(AT, TRIAL))
        tx.hold(hold(1, cost(3)))
        tx.settle(hold(1, FREE).id, {"train": cost(2)}, at=AT)
        tx.hold(hold(2, cost(5)))
        tx.put_attempt(AttemptRow(TRIAL, 1, AT))
    put_report(journal, 1, 0.1, {})
    save(journal, 1)
    create(database, new_job(OTHER))
    other = SqlJournal(database, OTHER, PROJECT, 1, AT)
    assert (list(other.events()), other.open_holds(), other.attempts()) == ([], [], [])
    assert (other.newest_checkpoints(), other.best_checkpoint(TRIAL)) == ({}, None)
    assert (other.account().posted, other.account().held) == (FREE, FREE)
    with other.transaction() as tx:
        assert (tx.posted(TRIAL, 1), tx.reached(TRIAL, 1)) == ({}, None)
        assert tx.append(Completed(AT, TRIAL)) == 1
        tx.put_attempt(AttemptRow(TRIAL, 1, AT, node="other"))
        tx.set_limit(budget(50))
    assert [row.node for row in journal.attempts()] == [""]
    assert [row.node for row in other.attempts()] == ["other"]
    assert journal.account().limit == budget(100).limit


def test_launch_ends_with_its_job(journal: SqlJournal, database: Database) -> None:
    with journal.transaction() as tx:
        tx.put_job("succeeded", "trials", at=AT, detail="all trials are done")
    assert only(database, launches).state == "ended"
    with database.read() as db:
        row = jobs.get(db, JOB)
    ended = (row.state, row.stop_reason, row.detail, row.ended_at, row.ran_ns)
    assert ended == ("succeeded", "trials", "all trials are done", AT, 4)


@pytest.mark.parametrize(
    ("reason", "goes_on"), [("budget_usd", True), ("wall_clock", True), ("target", False)]
)
def test_job_with_an_unseen_top_up_at_its_end_gets_another_driver(
    journal: SqlJournal, database: Database, reason: StopReason, goes_on: bool
) -> None:
    with database.write() as db:
        jobs.set_budget(db, JOB, budget(200))
    with journal.transaction() as tx:
        tx.put_job("succeeded", reason, at=AT)
    launch = only(database, launches)
    with database.read() as db:
        state = jobs.get(db, JOB).state
    assert (state, launch.state, launch.epoch) == (
        ("running", "wanted", 2) if goes_on else ("succeeded", "ended", 1)
    )


def test_top_up_seen_by_the_driver_does_not_relaunch_the_job(journal: SqlJournal, database: Database) -> None:
    with database.write() as db:
        jobs.set_budget(db, JOB, budget(200))
        journal.budget_version = jobs.control(db, JOB).budget_version
    with journal.transaction() as tx:
        tx.put_job("paused", "budget_usd", at=AT)
    assert only(database, launches).state == "ended"


def test_job_with_a_requested_pause_stays_paused_after_an_unseen_top_up(
    journal: SqlJournal, database: Database
) -> None:
    with database.write() as db:
        jobs.set_control_request(db, JOB, "pause")
        jobs.set_budget(db, JOB, budget(200))
    with journal.transaction() as tx:
        tx.put_job("paused", "budget_usd", at=AT)
    assert only(database, launches).state == "ended"


def test_attempt_that_saved_a_step_is_recorded(journal: SqlJournal) -> None:
    save(journal, 3)
    with journal.transaction() as tx:
        tx.put_checkpoint(CheckpointRow(TRIAL, 3, 4, "s3://3", 1, 0.5, AT))
    assert journal.saved_by(TRIAL, 3) == 4
    assert journal.saved_by(TRIAL, 2) is None
    assert journal.saved_by("trial_00009", 3) is None


def test_losses_count_time_since_each_attempt_got_its_machine(
    journal: SqlJournal, database: Database
) -> None:
    """The first four attempts each waited three seconds for a machine, and the fourth is still running. Attempts 5
    and 6 never had a machine; attempt 5 is over.
    """
    ends: list[Any] = ["lost", "paused", "lost", None]
    with journal.transaction() as tx:
        for number, end in enumerate(ends):
            began, ended = Instant(10 * number), Instant(10 * number + 7) if end else None
            assigned_at = Instant(began + 3)
            tx.put_attempt(AttemptRow(TRIAL, number + 1, began, ended, end, assigned_at=assigned_at))
        tx.put_attempt(AttemptRow(TRIAL, 5, Instant(0), Instant(50), "lost"))
        tx.put_attempt(AttemptRow(TRIAL, 6, Instant(50)))
    with database.read() as db:
        market_losses = losses(db, JOB, "on_demand", Instant(90))
        assert losses(db, OTHER, "on_demand", Instant(90)) == Losses()
    assert market_losses == Losses(4 + 4 + 4 + 57, {"lost": 2, "paused": 1})


def test_losses_are_per_market_and_exclude_attempts_ended_by_their_driver(
    journal: SqlJournal, database: Database
) -> None:
    """The attempt that ended with its driver had a machine, and did not lose it."""
    had: list[tuple[Any, Any, str]] = [
        ("spot", "preempted", ""),
        ("spot", "lost", DRIVER_ENDED),
        ("on_demand", "lost", DRIVER_ENDED),
        ("on_demand", "completed", ""),
    ]
    with journal.transaction() as tx:
        for number, (market, end, why) in enumerate(had):
            times = {"began_at": Instant(0), "ended_at": Instant(10), "assigned_at": Instant(number)}
            tx.put_attempt(AttemptRow(TRIAL, number + 1, end=end, reason=why, market=market, **times))
    with database.read() as db:
        assert losses(db, JOB, "spot", Instant(90)) == Losses(10 + 9, {"preempted": 1})
        assert losses(db, JOB, "on_demand", Instant(90)) == Losses(8 + 7, {"completed": 1})


def test_usage_of_an_attempt_is_replaced_and_missing_usage_is_none(
    journal: SqlJournal, database: Database
) -> None:
    with journal.transaction() as tx:
        for attempt in (1, 2):
            tx.put_attempt(AttemptRow(TRIAL, attempt, AT))
        for cpu_ns in (1, 2):
            used = Usage(wall_ns=5, cpu_ns=cpu_ns, facts={"precision": "fp32", "batch_size": 8})
            tx.put_usage(TRIAL, 2, used)
    with database.read() as db:
        attempts = list(attempt_rows.of_trials(db, JOB, [TRIAL]))
    assert [(row.attempt, usage) for row, usage in attempts] == [(1, None), (2, used)]
    assert attempts[1][0] == AttemptRow(TRIAL, 2, AT)
