"""Test the rows of jobs: they are created once, can be listed and filtered, and change only as allowed."""

import itertools
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event

from tests import fakes
from tests.store.builders import JOB, OFFER, PROJECT, budget, cost, create, hold, new_job, spec
from tests.strategies import examples
from tuner.database.database import Database
from tuner.domain.budget import Budget
from tuner.domain.errors import Conflict, IdempotencyConflict, NotFound
from tuner.domain.job import FINAL, JOB_STATES, MOVES, JobState
from tuner.domain.ledger import Account
from tuner.domain.money import Cost
from tuner.domain.time import NS, Instant
from tuner.ledger import ledger
from tuner.store import jobs, launches

OTHER = "job_0000000000000002"
DAY_NS = 24 * 3600 * NS
TAGS = {"team": "vision", "stage": "draft"}


def get(database: Database, job: str = JOB, project: str | None = None) -> jobs.JobRow:
    with database.read() as db:
        return jobs.get(db, job, project)


def account(database: Database, job: str = JOB) -> Account:
    with database.read() as db:
        return ledger.account(db, job)


def move(database: Database, state: JobState, at: int = 0) -> None:
    with database.write() as db:
        jobs.move(db, JOB, state, None, at=Instant(at), detail=f"now {state}")


def set_budget(database: Database, limits: Budget) -> None:
    with database.write() as db:
        jobs.set_budget(db, JOB, limits)


def job_in(database: Database, state: JobState) -> None:
    """Create a job and bring it to `state` on the shortest path."""
    create(database, new_job())
    for passed in {"queued": [], "succeeded": ["running", "succeeded"]}.get(state, [state]):
        move(database, passed)  # type: ignore[arg-type]


def listed(database: Database, **wanted: object) -> list[str]:
    query = {"state": None, "tag": None, "before": None, "limit": 100, **wanted}
    with database.read() as db:
        return [row.id for row in jobs.page(db, PROJECT, **query)]  # type: ignore[arg-type]


def test_new_job_is_queued_with_an_account_and_a_wanted_launch(database: Database) -> None:
    limits = budget(500, 70)
    create(database, new_job(limits=limits, tags=TAGS, at=3))
    row = get(database)
    assert (row.spec, row.budget, row.offer, row.tags) == (spec(limits, TAGS), limits, OFFER, TAGS)
    assert (row.state, row.budget_version, row.created_at, row.ran_ns) == ("queued", 0, 3, 0)
    assert account(database) == Account(cost(500, 70))
    with database.read() as db:
        assert [(launch.job, launch.epoch) for launch in launches.live(db)] == [(JOB, 1)]


def test_same_key_and_body_return_the_same_job(database: Database) -> None:
    first = create(database, new_job(JOB, key="k", body="b"))
    assert create(database, new_job(OTHER, key="k", body="b", at=DAY_NS)) == first
    assert listed(database) == [JOB]


def test_same_key_with_another_body_is_a_conflict_and_creates_nothing(database: Database) -> None:
    create(database, new_job(JOB, key="k", body="b"))
    with pytest.raises(IdempotencyConflict):
        create(database, new_job(OTHER, key="k", body="c"))
    assert listed(database) == [JOB]


def test_key_of_another_project_or_no_key_creates_another_job(database: Database) -> None:
    create(database, new_job(JOB, key="k", body="b"))
    assert create(database, new_job(OTHER, project="home", key="k", body="c")) == OTHER
    assert create(database, new_job("job_3", body="b")) == "job_3"
    assert create(database, new_job("job_4", body="b")) == "job_4"


def test_failed_creation_leaves_no_job_and_no_key(database: Database) -> None:
    with pytest.raises(Exception, match="never_overspent"):
        create(database, new_job(limits=budget(-1), key="k"))
    with pytest.raises(NotFound):
        get(database)
    assert create(database, new_job(key="k")) == JOB


def test_missing_job_or_job_of_another_project_is_not_found(database: Database) -> None:
    create(database, new_job(JOB))
    assert get(database, JOB, PROJECT).id == JOB
    with pytest.raises(NotFound, match=JOB):
        get(database, JOB, "home")
    with pytest.raises(NotFound, match=OTHER):
        get(database, OTHER)


@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4), max_size=4))
@examples(25)
def test_set_tags_replaces_only_the_tags_of_its_job(written: list[dict[str, str]]) -> None:
    database = fakes.database_in_memory()
    create(database, new_job(tags=TAGS))
    create(database, new_job(OTHER, tags=TAGS))
    for tags in written:
        with database.write() as db:
            jobs.set_tags(db, JOB, PROJECT, tags)
    assert get(database).tags == ([TAGS, *written])[-1]
    assert get(database, OTHER).tags == TAGS
    database.dispose()


def test_started_jobs_of_a_trainable_are_sorted_by_their_start(database: Database) -> None:
    names = ["job_a", "job_b", "job_c", "job_waiting"]
    for number, name in enumerate(names):
        create(database, new_job(name, at=number, tags={"name": name}))
    with database.write() as db:
        for at, name in enumerate(["job_c", "job_a", "job_b"], 10):
            jobs.move(db, name, "running", None, at=Instant(at))
    with database.read() as db:
        rows = jobs.started_of_trainable(db, PROJECT, "m:f", 2)
    assert [(row.id, row.tags) for row in rows] == [(name, {"name": name}) for name in ("job_b", "job_a")]


def test_priority_is_kept_and_control_request_is_cleared_when_the_job_stops(database: Database) -> None:
    create(database, new_job())
    move(database, "running")
    with database.write() as db:
        jobs.set_priority(db, JOB, -3)
        jobs.set_control_request(db, JOB, "pause")
    with database.read() as db:
        assert jobs.control(db, JOB) == jobs.Control("pause", budget(), 0, 2, 0)
    move(database, "paused")
    assert (get(database).priority, get(database).control_request) == (-3, None)


def spend(database: Database, posted: Cost, held: Cost) -> None:
    with database.write() as db:
        ledger.place(db, PROJECT, JOB, hold(1, posted))
        ledger.settle(db, PROJECT, JOB, hold(1, posted).id, {"train": posted}, Instant(0))
        ledger.place(db, PROJECT, JOB, hold(2, held))


@pytest.mark.parametrize("limits", [budget(49, 100), budget(100, 49), budget(0, 0), Budget(gpu_ms=49)])
def test_budget_below_spend_and_holds_is_refused_and_changes_nothing(
    database: Database, limits: Budget
) -> None:
    create(database, new_job(limits=budget(100, 100)))
    spend(database, cost(30, 30), cost(20, 20))
    before = get(database), account(database)
    with pytest.raises(Conflict, match=r"^\$0\.00005 and 0\.000014 GPU-hours are already"):
        set_budget(database, limits)
    assert (get(database), account(database)) == before


def test_budget_equal_to_spend_and_holds_is_accepted(database: Database) -> None:
    create(database, new_job(limits=budget(100, 100)))
    spend(database, cost(30, 30), cost(20, 20))
    set_budget(database, budget(50, 50))
    assert account(database).left == Cost()


def test_each_budget_change_increments_the_version(database: Database) -> None:
    create(database, new_job())
    for version, limits in enumerate([budget(200), budget(200), Budget(gpu_ms=5, trials=3)], start=1):
        set_budget(database, limits)
        with database.read() as db:
            assert jobs.control(db, JOB) == jobs.Control(None, limits, version, 2, 0)
        assert account(database).limit == limits.limit
    assert get(database).spec.budget == budget()


@pytest.mark.parametrize(("old", "new"), list(itertools.permutations(JOB_STATES, 2)))
def test_job_state_changes_only_along_allowed_transitions(
    database: Database, old: JobState, new: JobState
) -> None:
    job_in(database, old)
    before = get(database)
    if new in MOVES[old]:
        move(database, new, at=9)
        after = get(database)
        assert (after.state, after.detail) == (new, f"now {new}")
        assert (after.ended_at is not None) is (new in FINAL)
        return
    with pytest.raises(Conflict, match=f"{old} cannot become {new}"):
        move(database, new, at=9)
    assert get(database) == before


def test_running_time_excludes_pauses(database: Database) -> None:
    create(database, new_job(at=1))
    for state, at in [("running", 10), ("running", 12), ("paused", 15), ("running", 100), ("succeeded", 107)]:
        move(database, state, at)  # type: ignore[arg-type]
    row = get(database)
    assert (row.started_at, row.running_since, row.ended_at, row.ran_ns) == (10, None, 107, 5 + 7)


def test_running_time_includes_the_current_run(database: Database) -> None:
    create(database, new_job())
    for state, at in [("running", 10), ("paused", 15), ("running", 100)]:
        move(database, state, at)  # type: ignore[arg-type]
    with database.read() as db:
        assert jobs.get(db, JOB).running_ns(Instant(103)) == 8


def test_clock_set_back_does_not_reduce_running_time(database: Database) -> None:
    create(database, new_job())
    move(database, "running", 10)
    with database.read() as db:
        assert jobs.get(db, JOB).running_ns(Instant(4)) == 0
    move(database, "paused", 4)
    assert get(database).ran_ns == 0


def test_revived_job_counts_running_time_only_once_it_has_a_driver(database: Database) -> None:
    job_in(database, "succeeded")
    with database.write() as db:
        jobs.revive(db, JOB)
    row = get(database)
    assert (row.state, row.detail, row.ended_at, row.running_since) == ("running", "", None, None)
    with database.write() as db:
        jobs.begin_running(db, JOB, at=Instant(50))
    move(database, "succeeded", 57)
    assert get(database).ran_ns == 7


@pytest.mark.parametrize("state", [state for state in JOB_STATES if "running" not in MOVES[state]])
def test_job_that_may_not_change_to_running_is_not_revived(database: Database, state: JobState) -> None:
    job_in(database, state)
    before = get(database)
    with pytest.raises(Conflict), database.write() as db:
        jobs.revive(db, JOB)
    assert get(database) == before


def test_sqlite_writers_of_one_process_begin_one_at_a_time(tmp_path: Path) -> None:
    database, begun = Database(f"sqlite:///{tmp_path}/of.db"), list[str]()

    @event.listens_for(database.engine, "connect")
    def trace(raw: Any, _: object) -> None:
        raw.set_trace_callback(
            lambda statement: begun.append(statement) if statement.startswith("BEGIN") else None
        )

    def write() -> None:
        with database.write() as db:
            db.exec_driver_sql("CREATE TABLE IF NOT EXISTS a (b)")

    others = [Thread(target=write) for _ in range(3)]
    with database.write():
        for other in others:
            other.start()
        others[0].join(0.1)
        assert begun == ["BEGIN IMMEDIATE"]
    for other in others:
        other.join()
    assert begun.count("BEGIN IMMEDIATE") == 4
    database.dispose()
