"""Test that PostgreSQL, the production database, behaves like SQLite: the schema, jobs, fronts, shared budgets
and spend by user.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import given
from sqlalchemy import delete, func, insert, select
from sqlalchemy.exc import SQLAlchemyError

from tests import books, fakes
from tests.postgres import SharedServer
from tests.store import hammer
from tests.store import test_pareto_front as fronts
from tests.store.builders import PROJECT, budget, create, hold, new_job
from tests.store.crowd import crowd
from tests.strategies import examples
from tuner.database.database import Connection, Database, newest_revision
from tuner.database.ledger_tables import metadata
from tuner.database.tables import jobs as jobs_rows
from tuner.database.tables import leases
from tuner.domain.budget import Quota
from tuner.domain.cost import CostKind
from tuner.domain.errors import Conflict, Fenced, Unavailable
from tuner.domain.money import Cost, Money
from tuner.domain.objective import Mode
from tuner.domain.shared_budget import SharedBudget
from tuner.domain.time import DAY_NS, Instant
from tuner.ledger import ledger, shared_budget_changes, shared_budgets
from tuner.service import access, audit_log, control
from tuner.store import jobs, launches, leadership, queue, self_tests, spend, stored_files, warm_starts
from tuner.store.journal import SqlJournal
from tuner.store.leadership import Term
from tuner.store.self_tests import SelfTestRow
from tuner.store.spend import Span

pytestmark = pytest.mark.needs("postgresql")


@contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """Run `act` in a thread. The block calls what it gets where the thread may begin, and the thread ends after the block.

    The thread gets 0.3 s for what it must not do until the block's transaction ends.
    """
    thread = threading.Thread(target=act)

    def begin() -> None:
        thread.start()
        thread.join(0.3)

    yield begin
    thread.join(120)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def database(postgres_module_url: str) -> Iterator[Database]:
    postgresql = Database(postgres_module_url)
    yield postgresql
    postgresql.dispose()


def test_alembic_finds_nothing_to_change_in_the_migrated_schema(database: Database) -> None:
    with database.read() as db:
        context = MigrationContext.configure(db, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_refused_statements_and_an_exhausted_pool_are_reported(
    database: Database, postgres_server: SharedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cover a read-only database such as a standby, a user without rights, and a pool without a free connection."""
    postgres_server.run("CREATE ROLE guest LOGIN")
    read_only = database.url.update_query_dict({"options": "-c default_transaction_read_only=on"})
    for url, refusal in ((read_only, "read-only"), (database.url.set(username="guest"), "permission denied")):
        other = Database(url.render_as_string(hide_password=False))
        with pytest.raises(Unavailable, match=f"refused the operation: .*{refusal}"), other.write() as db:
            db.exec_driver_sql("DELETE FROM leases")
        other.dispose()
    postgres_server.run("DROP ROLE guest")  # a role belongs to the server, which other tests use, too
    monkeypatch.setattr(database.engine.pool, "_timeout", 0.01)
    with ExitStack() as stack:
        for _ in range(15):
            stack.enter_context(database.read())
        with pytest.raises(Unavailable, match="all connections are in use"):
            stack.enter_context(database.read())


def test_second_transaction_inside_a_write_transaction_is_refused(database: Database) -> None:
    for begin in (database.read, database.write):
        with pytest.raises(RuntimeError, match="in a write transaction"), database.write(), begin():
            pass
    with database.write() as db:
        assert db.exec_driver_sql("SELECT 1").scalar_one() == 1


def test_connection_waits_for_an_unavailable_database(
    postgres_server: SharedServer, postgres_empty_url: str
) -> None:
    patient, answers = Database(postgres_empty_url, connect_timeout_s=60), list[int]()
    allow = f"ALTER DATABASE {patient.url.database} ALLOW_CONNECTIONS"
    postgres_server.run(f"{allow} false")
    with pytest.raises(Unavailable, match="not currently accepting"), Database(postgres_empty_url).read():
        pass

    def ask() -> None:
        with patient.write() as db:
            answers.append(db.exec_driver_sql("SELECT 1").scalar_one())

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        asking.join(0.5)
        assert asking.is_alive()
    finally:
        postgres_server.run(f"{allow} true")
        asking.join(60)
    assert answers == [1]
    patient.dispose()


def test_lost_connections_of_the_pool_are_replaced(
    postgres_server: SharedServer, postgres_empty_url: str
) -> None:
    database = Database(postgres_empty_url)
    for open_transaction in (database.read, database.write):
        with ExitStack() as stack:  # three connections are in the pool afterwards
            for _ in range(3):
                stack.enter_context(database.read())
        name = database.url.database
        postgres_server.run(
            f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name}'"
        )
        with open_transaction() as db:
            assert db.exec_driver_sql("SELECT 1").scalar_one() == 1
    database.dispose()


def test_reading_transaction_sees_one_state_and_cannot_write(database: Database) -> None:
    count = "SELECT count(*) FROM leases"
    with database.read() as reading:
        before = reading.exec_driver_sql(count).scalar_one()
        with database.write() as db:
            db.execute(insert(leases).values(name="test", holder="me", until=0))
        assert reading.exec_driver_sql(count).scalar_one() == before
    with database.read() as db:
        assert db.exec_driver_sql(count).scalar_one() == before + 1
    with pytest.raises(Unavailable, match="read-only transaction"), database.read() as db:
        db.exec_driver_sql("DELETE FROM leases")


def test_silent_server_times_out_as_configured_in_the_url(
    database: Database,
) -> None:
    url = database.url.update_query_dict({"connect_timeout": "77"})
    own = Database(url.render_as_string(hide_password=False))
    for configured_database, timeout in ((database, "10"), (own, "77")):
        with configured_database.read() as db:
            used = db.connection.dbapi_connection.info.get_parameters()  # type: ignore[union-attr]
        assert used["connect_timeout"] == timeout
        assert used["tcp_user_timeout"] == "20000"
    own.dispose()


def test_concurrent_services_migrate_an_empty_database_once(postgres_empty_url: str) -> None:
    fresh = Database(postgres_empty_url)
    with crowd(hammer.migrate, fresh, [()] * 3):
        pass
    assert fresh.revision() == newest_revision()
    fresh.dispose()


@examples(25, gate=8)
@given(given_reports=fronts.REPORTS, mode=fronts.MODES)
def test_answers_equal_a_search_through_all_reports(
    database: Database, given_reports: list[fronts.Given], mode: Mode
) -> None:
    fronts.check_answers(database, given_reports, mode)


JOBS = range(70, 74)


def jobs_of(database: Database) -> list[str]:
    names = [f"job_{number:016}" for number in JOBS]
    for number, name in enumerate(names):
        create(database, new_job(name, limits=budget(10**6, 10**6), tags={"n": str(number % 2)}))
    return names


def test_concurrent_jobs_never_exceed_a_shared_budget_that_changes(database: Database) -> None:
    """Four processes renew holds while the shared budget is created, raised and lowered."""
    names = jobs_of(database)
    limits = [*range(60, 200, 10), 190, 200]
    with crowd(hammer.renew_for, database, [(number, 30) for number in JOBS]) as processes:
        for usd in limits:
            time.sleep(0.02)
            change_budget(database, SharedBudget("all", usd=Money(usd)))
            check_books(database)
        for writer in processes:
            writer.join()
    check_books(database)
    with database.read() as db:
        held = shared_budgets.period_at(db, PROJECT, SharedBudget("all", usd=Money(200)), Instant(0)).account
        own = [ledger.account(db, name) for name in names]
    assert held.limit.usd == Money(200)
    assert held.posted == sum((account.posted for account in own), Cost())
    assert held.posted.usd.micro_usd > 0
    spans = Span(Instant(0), Instant(10**18), "America/New_York")
    with database.read() as db:
        for keys in ((), ("tag:n", "market"), ("day", "trainable"), ("job",)):
            rows = spend.rows(db, PROJECT, keys, spans)
            assert sum((row.cost for row in rows), Cost()) == held.posted
        assert spend.slots(db, PROJECT, Instant(0), 10**9).keys() == set(names)


def change_budget(database: Database, new: SharedBudget) -> None:
    with suppress(Conflict), database.write() as db:
        shared_budgets.lock_exclusive(db)
        shared_budget_changes.put(db, PROJECT, new, secret="", at=Instant(0))


def check_books(database: Database) -> None:
    with database.write() as db:
        shared_budgets.lock_exclusive(db)
        assert books.shared_faults(db, PROJECT, Instant(0)) == []


@pytest.mark.parametrize("budget_before", [False, True])
def test_budget_change_waits_for_a_settlement_in_progress(database: Database, budget_before: bool) -> None:
    """Otherwise the budget would count neither released holds nor costs that are not posted yet. The two must
    not deadlock.
    """
    name, project = "job_0000000000000090", f"settled-{budget_before}"
    create(database, new_job(name + str(int(budget_before)), project=project, limits=budget(100)))
    job = name + str(int(budget_before))
    shared_budget = SharedBudget("all", usd=Money(1000))
    with database.write() as db:
        if budget_before:
            shared_budget_changes.put(db, project, shared_budget, secret="", at=Instant(0))
        assert ledger.place(db, project, job, hold(1, Cost(Money(7)), job=job))

    def change() -> None:
        with database.write() as db:
            shared_budgets.lock_exclusive(db)
            shared_budget_changes.put(db, project, shared_budget, secret="", at=Instant(0))
            jobs.set_budget(db, job, budget(200))

    with meanwhile(change) as begin, database.write() as db:
        ledger.settle(db, project, job, hold(1, Cost(), job=job).id, {"train": Cost(Money(3))}, Instant(0))
        begin()
    with database.write() as db:
        assert books.shared_faults(db, project, Instant(0)) == []
        assert shared_budgets.period_at(db, project, shared_budget, Instant(0)).account.posted == Cost(
            Money(3)
        )
        assert jobs.get(db, job).budget == budget(200)


def test_queries_of_a_read_see_the_same_state_and_cannot_write(database: Database) -> None:
    def count(db: Connection) -> int:
        return int(db.execute(select(func.count()).select_from(jobs_rows)).scalar_one())

    with database.read() as db:
        before = count(db)
        create(database, new_job("job_0000000000000089"))
        assert count(db) == before
    with database.read() as db:
        assert count(db) == before + 1
        with pytest.raises(SQLAlchemyError, match="read-only"):
            db.execute(delete(jobs_rows))


def test_two_drivers_settling_the_same_hold_post_it_once(database: Database) -> None:
    job = "job_0000000000000095"
    create(database, new_job(job, project="twice", limits=budget(100)))
    with database.write() as db:
        for number in (1, 2):
            assert ledger.place(db, "twice", job, hold(number, Cost(Money(7)), job=job))

    def settle(kind: CostKind) -> None:
        with database.write() as db:
            ledger.settle(db, "twice", job, hold(1, Cost(), job=job).id, {kind: Cost(Money(7))}, Instant(0))

    with meanwhile(lambda: settle("lost")) as begin, database.write() as db:
        ledger.settle(db, "twice", job, hold(1, Cost(), job=job).id, {"train": Cost(Money(7))}, Instant(0))
        begin()
    with database.read() as db:
        assert ledger.account(db, job).posted == ledger.account(db, job).held == Cost(Money(7))


def test_takeover_waits_for_the_journal_transaction_of_the_old_driver(database: Database) -> None:
    """Otherwise the rest of the transaction would be written after the next driver has read the state."""
    job = "job_0000000000000096"
    create(database, new_job(job, project="fenced"))
    order: list[str] = []

    def take_over() -> None:
        with database.write() as db:
            launch = launches.get(db, job)
            assert launch is not None
            launches.again(db, launch, at=Instant(1), not_before=Instant(0), quick_deaths=0)
        order.append("next driver")

    journal = SqlJournal(database, job, "fenced", 1, Instant(0))
    with meanwhile(take_over) as begin, journal.transaction() as tx:
        begin()
        tx.put_trial("trial_00000", "running", at=Instant(1), config={})
        order.append("turn")
    assert order == ["turn", "next driver"]
    with pytest.raises(Fenced), SqlJournal(database, job, "fenced", 1, Instant(0)).transaction():
        pass


def test_second_change_of_concurrency_counts_the_first(database: Database, tmp_path: Path) -> None:
    """Otherwise two jobs that are widened at once could exceed the quota of their project."""
    project = "widened"
    service = fakes.FakeService(fakes.service_in(tmp_path).settings, database, project=project)
    service.cluster.fake_nodes = [replace(fakes.SMALL, cpus=100)]
    first, second = (
        create(database, new_job(f"job_00000000000000f{number}", project=project)) for number in (1, 2)
    )
    with database.write() as db:
        queue.put(db, project, Quota(concurrent_trials=6), Instant(0))
        for job in (first, second):
            assert launches.submitted(db, job, 1, Instant(1))
    with (
        meanwhile(lambda: control.patch(service, second, max_concurrent_trials=6)) as begin,
        database.write() as db,
    ):
        jobs.lock_concurrency(db, project)
        jobs.set_concurrency(db, first, 4, 4)
        begin()
    with database.read() as db:
        assert [jobs.get(db, job).concurrency for job in (first, second)] == [4, 2]


def test_removed_member_keeps_no_key_that_is_rotated_at_the_same_time(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = fakes.FakeService(fakes.service_in(tmp_path).settings, database)
    access.put_member(service, "ada", "submitter")
    key = access.make(service, "ada", "laptop", DAY_NS).row.id
    note = audit_log.note

    def noted(*args: Any, **kwargs: Any) -> None:
        note(*args, **kwargs)
        if args[2] == "key.rotate":
            begin()

    monkeypatch.setattr(audit_log, "note", noted)
    with meanwhile(lambda: access.remove_member(service, "ada")) as begin:
        access.rotate(service, key, 0)
    keys = access.keys(service, before=None, limit=9)
    assert [(view.row.user, view.state) for view in keys] == [("ada", "revoked")] * 2


def test_self_tests_of_the_same_code_that_end_together_are_recorded(database: Database) -> None:
    one, other = (create(database, new_job(f"job_00000000000000e{number}")) for number in (1, 2))
    first = SelfTestRow("trainables.one:train", "digest", True, "", one, Instant(1))
    second = replace(first, passed=False, reason="it lost its model", job=other, at=Instant(2))

    def put_second() -> None:
        with database.write() as db:
            self_tests.put(db, PROJECT, second)

    with meanwhile(put_second) as begin, database.write() as db:
        self_tests.put(db, PROJECT, first)
        begin()
    with database.read() as db:
        assert self_tests.get(db, PROJECT, first.trainable, first.code) == second


@pytest.mark.parametrize("action", ["cancel", "pause", "resume"])
def test_request_waits_for_the_turn_that_pauses_the_job(
    database: Database, tmp_path: Path, action: str
) -> None:
    """Otherwise the driver could overwrite the request, or the job could be paused just before a request that only its driver sees."""
    service = fakes.FakeService(fakes.service_in(tmp_path).settings, database)
    job = "job_00000000000000d" + {"cancel": "1", "pause": "2", "resume": "3"}[action]
    create(database, new_job(job, project=service.project))
    with database.write() as db:
        jobs.begin_running(db, job, at=Instant(1))
        jobs.set_control_request(db, job, "pause" if action == "resume" else None)
    journal = SqlJournal(database, job, service.project, 1, Instant(1))
    with meanwhile(lambda: getattr(control, action)(service, job)) as begin, journal.transaction() as tx:
        begin()
        tx.put_job("paused", None, at=Instant(2))
    with database.read() as db:
        row, launch = jobs.get(db, job), launches.get(db, job)
    assert row.control_request is None
    assert row.state == {"cancel": "cancelled", "pause": "paused", "resume": "running"}[action]
    assert launch is not None
    assert launch.state == ("wanted" if action == "resume" else "ended")


def test_turn_sees_the_request_that_came_before_it(database: Database, tmp_path: Path) -> None:
    service = fakes.FakeService(fakes.service_in(tmp_path).settings, database)
    job = create(database, new_job("job_00000000000000b0", project=service.project))
    with database.write() as db:
        launches.submitted(db, job, 1, Instant(1))
        jobs.begin_running(db, job, at=Instant(1))
    journal = SqlJournal(database, job, service.project, 1, Instant(1))

    def turn() -> None:
        with journal.transaction() as tx:
            tx.put_job("paused", None, at=Instant(2))

    with meanwhile(turn) as begin, database.write() as db:
        jobs.change_alone(db, job)
        begin()
        jobs.set_control_request(db, job, "cancel")
    with database.read() as db:
        assert jobs.get(db, job).state == "cancelled"


def test_concurrent_holds_are_both_counted(database: Database) -> None:
    job = "job_0000000000000097"
    create(database, new_job(job, project="both", limits=budget(100)))

    def place(number: int) -> None:
        with database.write() as db:
            assert ledger.place(db, "both", job, hold(number, Cost(Money(30)), job=job))

    with meanwhile(lambda: place(2)) as begin, database.write() as db:
        assert ledger.place(db, "both", job, hold(1, Cost(Money(30)), job=job))
        begin()
    with database.read() as db:
        assert ledger.account(db, job).held == Cost(Money(60))
        assert books.faults(db) == []


@pytest.mark.parametrize("need", ["warm start", "resume"])
def test_removal_of_files_waits_for_what_needs_them_and_sees_it(database: Database, need: str) -> None:
    digit = "a" if need == "resume" else "b"
    source, user = (f"job_00000000000000{digit}{number}" for number in (1, 2))
    for job in (source, user):
        create(database, new_job(job, project="files"))
    with database.write() as db:
        launches.end(db, source, 1)
        jobs.begin_running(db, source, at=Instant(1))
        jobs.move(db, source, "succeeded", None, at=Instant(2))
    needed_by: list[str | None] = []

    def remove() -> None:
        with database.write() as db:
            stored_files.lock_job(db, source)
            needed_by.append(stored_files.needed_by(db, source))

    remove()
    with meanwhile(remove) as begin, database.write() as db:
        if need == "resume":
            jobs.revive(db, source)
        else:
            warm_starts.note(db, user, "files", [source])
        begin()
        assert needed_by == [None]
    assert needed_by[1] == (
        "the job is running" if need == "resume" else f"{user} continues trials of this job"
    )


def test_only_one_of_two_services_begins_the_first_term(database: Database) -> None:
    terms: list[Term | None] = []

    def lead(holder: str) -> None:
        with database.write() as db:
            terms.append(leadership.begin(db, "first", holder, "1", now=Instant(0), until=Instant(10**9)))

    with meanwhile(lambda: lead("late")) as begin, database.write() as db:
        first = leadership.begin(db, "first", "early", "1", now=Instant(0), until=Instant(10**9))
        begin()
    assert terms == [None]
    with database.read() as db:
        assert leadership.get(db, "first") == first


def test_leader_suspended_during_a_write_is_rolled_back_and_gets_an_error(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "STOPPED_MS", 50)
    until = Instant(10**9)
    with database.write() as db:
        term = leadership.begin(db, "stands", "still", "1", now=Instant(0), until=until)
    assert term is not None
    alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = {}"

    def write() -> None:
        with leadership.write(database, term) as db:
            assert leadership.take(db, "stands", "still", now=Instant(0), until=until)
            pid = db.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            while True:
                with database.engine.connect() as other:
                    if not other.exec_driver_sql(alive.format(pid)).scalar_one():
                        return

    # The server's last message names the reason, but it is lost if the client sends its query just before it is read.
    with pytest.raises(Unavailable, match=r"was suspended|server closed the connection"):
        write()
    with database.write() as db:
        assert leadership.take(db, "stands", "another", now=Instant(0), until=until)


def test_terms_use_the_clock_of_the_database(database: Database) -> None:
    with database.read() as db:
        first, second = leadership.clock(db, Instant(5)), leadership.clock(db, Instant(0))
    assert 10**18 < first < second


def test_only_one_of_two_holders_takes_a_lease(database: Database) -> None:
    taken: list[bool] = []

    def take(holder: str) -> None:
        with database.write() as db:
            taken.append(leadership.take(db, "both", holder, now=Instant(0), until=Instant(10)))

    with meanwhile(lambda: take("late")) as begin, database.write() as db:
        assert leadership.take(db, "both", "early", now=Instant(0), until=Instant(10))
        begin()
    assert taken == [False]


def test_budget_is_not_lowered_between_reading_the_account_and_placing_a_hold(
    database: Database,
) -> None:
    """A driver whose new hold is refused after it has posted the previous one would exit and lose its attempts."""
    job = create(database, new_job("job_0000000000000098"))
    journal, answers = SqlJournal(database, job, PROJECT, 1, Instant(1)), list[str]()

    def lower() -> None:
        try:
            with database.write() as db:
                jobs.set_budget(db, job, budget(1))
            answers.append("lowered")
        except Conflict:
            answers.append("refused")

    with meanwhile(lower) as begin, journal.transaction() as tx:
        left = Cost(tx.allowance(Instant(1)).left.usd, 0)
        begin()
        assert not answers, "the account changed while a transaction was deciding on it"
        assert tx.hold(hold(1, left, job=job))
    assert answers == ["refused"]
    with database.read() as db:
        assert ledger.account(db, job).held == left


def test_connection_that_breaks_during_a_turn_is_reported_and_replaced(database: Database) -> None:
    job = create(database, new_job("job_0000000000000088"))
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(Unavailable))
        db = stack.enter_context(database.write())
        process = db.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        with database.engine.connect() as another:
            another.exec_driver_sql(f"SELECT pg_terminate_backend({process})")
        ledger.account(db, job)
    with database.write() as db:
        assert ledger.account(db, job).held.nothing


def test_tags_with_unusual_text_are_read_with_their_jobs(database: Database) -> None:
    tags = {"z": '{"json": "[1, 2]"}', "a": "", "quote's \"": "back\\slash", "snow ☃": "🎉"}
    create(database, new_job("job_tagged", tags=tags, at=10**18 + 1))
    create(database, new_job("job_plain", at=10**18 + 2))
    create(database, new_job("job_other", tags={"a": "b"}, at=10**18 + 3))
    with database.read() as db:
        rows = jobs.page(db, PROJECT, state=None, tag=None, before=None, limit=3)
        alone = jobs.get(db, "job_tagged")
    assert [row.tags for row in rows] == [{"a": "b"}, {}, tags]
    assert list(alone.tags.items()) == sorted(tags.items())
