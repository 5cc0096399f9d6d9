"""Test that only one of several services leads. No write of an earlier term follows a write of a later term,
even if a service is suspended, its clock jumps, or it is late.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection
from sqlalchemy.exc import InternalError

from tests.fakes import FakeClock, database_in
from tests.store import hammer
from tests.store.builders import JOB, create, new_job
from tests.store.crowd import crowd, process
from tests.strategies import examples
from tuner.cluster.dashboard import RayUnavailable
from tuner.database.database import Database
from tuner.domain.errors import Fenced, Unavailable
from tuner.domain.time import NS, Instant, system_now
from tuner.service.leading import LEASE_NS, ROLE, Leading, Term
from tuner.store import launches, leadership

SERVICES = range(3)
ACTS = st.sampled_from(["look", "write", "late", "give up"])
STEPS = st.lists(st.tuples(ACTS, st.sampled_from(SERVICES), st.integers(0, 5 * NS)), max_size=30)


class Crowd:
    """Services whose clocks are wrong by the given amounts, and what each of them wrote, in the order of
    commits.
    """

    def __init__(self, database: Database, wrong_by: tuple[int, ...]) -> None:
        self.clocks = [FakeClock() for _ in SERVICES]
        for clock, wrong in zip(self.clocks, wrong_by, strict=True):
            clock.at += wrong
        self.services = [Leading(database, clock) for clock in self.clocks]
        self.remembered: list[Term | None] = [None] * len(SERVICES)
        self.written: list[tuple[int, str]] = []

    def act(self, act: str, who: int, later_ns: int) -> None:
        for clock in self.clocks:
            clock.at += later_ns
        if act == "give up":
            self.services[who].give_up()
            self.services[who] = Leading(self.services[who]._database, self.clocks[who])
            return
        if act != "late":  # otherwise it continues with the term that it knew before it stopped
            self.remembered[who] = self.services[who].term()
        term = self.remembered[who]
        if act != "look" and term is not None:
            self.write(who, term)

    def write(self, who: int, term: Term) -> None:
        try:
            with self.services[who].write(term):
                self.written.append((term.token, term.holder))
        except Fenced:
            assert self.written[-1:] == [] or term.token < self.newest()

    def newest(self) -> int:
        with self.services[0]._database.read() as db:
            term = leadership.get(db, ROLE)
        assert term is not None
        return term.token


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    sqlite_database = database_in(tmp_path_factory.mktemp("led"))
    yield sqlite_database
    sqlite_database.dispose()


@examples(60)
@given(steps=STEPS, wrong_by=st.tuples(*[st.integers(-10 * NS, 10 * NS) for _ in SERVICES]))
def test_terms_never_overlap_and_earlier_terms_never_write_after_later_ones(
    sqlite: Database, steps: list[tuple[str, int, int]], wrong_by: tuple[int, ...]
) -> None:
    with sqlite.write() as db:
        db.exec_driver_sql("DELETE FROM leadership")
    crowd = Crowd(sqlite, wrong_by)
    for step in steps:
        crowd.act(*step)
    tokens = [token for token, _ in crowd.written]
    assert tokens == sorted(tokens)
    assert len(set(crowd.written)) == len(set(tokens)), "two holders of one term"


def test_next_service_leads_only_after_the_term_has_expired(sqlite: Database) -> None:
    clock = FakeClock()
    clock.at += 10**15
    first, second = Leading(sqlite, clock), Leading(sqlite, clock)
    term = first.term()
    assert term is not None
    assert second.term() is None
    clock.at += LEASE_NS - 1
    assert second.term() is None
    clock.at += NS
    after = second.term()
    assert after is not None
    assert after.token == term.token + 1
    with (
        pytest.raises(Fenced, match=rf"term {term.token} .* has ended: {second.holder} leads"),
        first.write(term),
    ):
        pass
    assert first.term() is None
    assert (first.is_leading(), second.is_leading()) == (False, True)


def test_clock_set_back_does_not_prevent_a_new_leader(sqlite: Database) -> None:
    """The holder of the earlier term can no longer write once the next leader has begun its term."""
    clock = FakeClock()
    clock.at += 4 * 10**15
    first, second = Leading(sqlite, clock), Leading(sqlite, clock)
    term = first.term()
    assert term is not None
    clock.at -= 3600 * NS
    assert second.term() is not None
    with pytest.raises(Fenced), first.write(term):
        pass


def test_service_that_gives_up_is_succeeded_at_once_and_leads_no_more(sqlite: Database) -> None:
    clock = FakeClock()
    clock.at += 2 * 10**15
    first, second = Leading(sqlite, clock), Leading(sqlite, clock)
    assert first.term() is not None
    first.give_up()
    assert second.term() is not None
    second.give_up()
    clock.at += 10 * LEASE_NS
    assert first.term() is None


def test_leader_whose_passes_all_fail_gives_way_to_another_service(sqlite: Database) -> None:
    clock = FakeClock()
    clock.at += 3 * 10**15
    first, second = Leading(sqlite, clock), Leading(sqlite, clock)
    led = []
    for _ in range(80):
        led.append((first.term() is not None, second.term() is not None))
        if led[-1][1]:
            second.pass_succeeded()
        clock.at += NS
    assert led[0] == (True, False)
    assert led[-1] == (False, True)
    assert (True, True) not in led


def test_leader_keeps_its_term_while_its_cluster_starts_but_not_if_the_start_fails(sqlite: Database) -> None:
    clock = FakeClock()
    leading = Leading(sqlite, clock)
    term = leading.term()

    def terms_during(seconds: int) -> set[Term | None]:
        seen = set()
        for _ in range(seconds):
            clock.at += NS
            seen.add(leading.term())
        return seen

    with leading.starting_cluster():
        assert terms_during(200) == {term}
    assert terms_during(30) == {term}
    with contextlib.suppress(RayUnavailable), leading.starting_cluster():
        assert terms_during(200) == {term}
        raise RayUnavailable("the local Ray head was not ready in time")
    assert terms_during(1) == {None}


def test_leader_whose_cluster_fails_to_start_again_and_again_gives_way_to_another_service(
    sqlite: Database,
) -> None:
    """The next start begins so soon after a failed one that the term is always renewed during a start."""
    clock = FakeClock()
    leading = Leading(sqlite, clock)
    terms = [leading.term()]

    def start_seconds(seconds: int) -> None:
        for _ in range(seconds):
            clock.at += NS
            terms.append(leading.term())

    for seconds in (61, 10):
        with contextlib.suppress(RayUnavailable), leading.starting_cluster():
            start_seconds(seconds)
            raise RayUnavailable("the local Ray head was not ready in time")
    assert terms.index(None) == 62, "one second after the first start failed"
    with leading.starting_cluster():
        start_seconds(20)
    assert terms[-1] not in (None, terms[0])
    with leading.starting_cluster():
        start_seconds(200)
    assert set(terms[-200:]) == {terms[-1]}, "the start after one that succeeded may take long"


def test_start_of_a_running_cluster_does_not_count_as_a_successful_pass(sqlite: Database) -> None:
    clock = FakeClock()
    leading = Leading(sqlite, clock)
    terms = []
    for _ in range(62):
        terms.append(leading.term())
        with leading.starting_cluster():
            pass
        clock.at += NS
    assert terms[-1] is None
    assert None not in terms[:-1]


def rows(database: Database) -> list[int]:
    with database.read() as db:
        return [token for (token,) in db.exec_driver_sql("SELECT token FROM written ORDER BY id")]


def make_room(database: Database, key: str) -> None:
    with database.write() as db:
        db.exec_driver_sql(f"CREATE TABLE written (id {key}, token BIGINT, holder VARCHAR(100))")


def check(database: Database, terms_min: int) -> None:
    with database.read() as db:
        written_rows = db.exec_driver_sql("SELECT token, holder FROM written ORDER BY id").all()
    tokens = [token for token, _ in written_rows]
    assert tokens == sorted(tokens)
    assert len({(token, holder) for token, holder in written_rows}) == len(set(tokens)) >= terms_min


def test_suspended_processes_write_in_the_order_of_their_terms(tmp_path: Path) -> None:
    database = database_in(tmp_path)
    make_room(database, "INTEGER PRIMARY KEY")
    with crowd(hammer.lead, database, [(1, 3), (2, 3)]):
        pass
    check(database, terms_min=2)
    database.dispose()


@pytest.mark.needs("postgresql")
def test_postgresql_leader_suspended_during_a_write_is_succeeded(
    postgres_url: str,
) -> None:
    """A suspended leader loses its locks within three seconds, and its uncommitted writes are rolled back."""
    database = Database(postgres_url)
    make_room(database, "SERIAL PRIMARY KEY")
    with crowd(hammer.lead, database, [(1, 3), (2, 3)]):
        pass
    check(database, terms_min=2)
    with process(hammer.stop_in_a_write, database) as (stopped, _):
        before = len(rows(database))
        after = follow(database)
        with Leading(database, system_now).write(after) as db:
            assert setting(db, "idle_in_transaction_session_timeout") == "3s"
            assert setting(db, "lock_timeout") == "2s"
            db.exec_driver_sql(f"INSERT INTO written (token, holder) VALUES ({after.token}, 'next')")
        assert stopped.pid is not None
        os.kill(stopped.pid, hammer.CONTINUE)
        stopped.join(120)
        assert stopped.exitcode == hammer.REFUSED
        assert rows(database)[before:] == [after.token]
    assert LEASE_NS <= 3 * NS
    database.dispose()


def setting(db: Connection, name: str) -> str:
    return str(db.exec_driver_sql(f"SHOW {name}").scalar_one())


@pytest.mark.needs("postgresql")
def test_driver_suspended_during_a_turn_loses_its_locks(postgres_url: str) -> None:
    database = Database(postgres_url)
    create(database, new_job())
    leading = Leading(database, system_now)
    with process(hammer.stop_in_a_turn, database, 500) as (stopped, _):
        order_next_launch(leading)
        leading.give_up()
        follow(database)
        assert stopped.pid is not None
        os.kill(stopped.pid, hammer.CONTINUE)
        stopped.join(120)
        assert stopped.exitcode == hammer.REFUSED
    database.dispose()


@pytest.mark.needs("postgresql")
def test_leader_does_not_wait_for_a_drivers_lock_until_its_term_ends(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "LOCKED_MS", 100)
    database = Database(postgres_url)
    create(database, new_job())
    leading = Leading(database, system_now)
    with process(hammer.stop_in_a_turn, database, 600_000):
        with pytest.raises(Unavailable, match="lock timeout"):
            order_next_launch(leading)
        leading.give_up()
        follow(database)
    database.dispose()


def order_next_launch(leading: Leading) -> None:
    """Order the next launch of the job, as the controller of the leader does if the driver died."""
    term = leading.term()
    assert term is not None
    with leading.write(term) as db:
        launch = launches.get(db, JOB)
        assert launch is not None
        assert launches.again(db, launch, at=Instant(1), not_before=Instant(0), quick_deaths=0)


def follow(database: Database) -> Term:
    """Wait until a new service leads, and return its term."""
    leading = Leading(database, system_now)
    deadline = time.monotonic() + 60
    while (term := leading.term()) is None:
        assert time.monotonic() < deadline, "no service leads within 60 s"
        time.sleep(0.05)
    return term


def test_write_before_the_first_term_is_fenced(tmp_path: Path) -> None:
    database = database_in(tmp_path)
    term = Term(ROLE, 1, "nobody", "1", Instant(0), Instant(NS))
    with pytest.raises(Fenced, match="no service leads"), leadership.write(database, term):
        pass
    database.dispose()


def test_other_errors_in_a_leaders_write_are_raised_unchanged(sqlite: Database) -> None:
    clock = FakeClock()
    clock.at += 5 * 10**15
    leading = Leading(sqlite, clock)
    term = leading.term()
    assert term is not None
    with pytest.raises(InternalError, match="is damaged"), leadership.write(sqlite, term):
        raise InternalError("SELECT 1", {}, Exception("an index is damaged"))
