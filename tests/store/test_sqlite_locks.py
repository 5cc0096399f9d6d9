"""Test transactions on a SQLite file: the threads of one process read and commit one at a time, and processes
retry until they can proceed.
"""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from tests.store.crowd import FORKS
from tuner.database import database as database_module
from tuner.database.database import Database, ReaderWriterLock, retry_while_locked
from tuner.domain.errors import Unavailable

LONG_S = 60.0


class Other:
    """A thread that takes the lock and keeps it until `leave`."""

    def __init__(self, turn: Callable[[], AbstractContextManager[None]], order: list[str], name: str) -> None:
        self.inside, self._leave = threading.Event(), threading.Event()
        self._turn, self._order, self._name = turn, order, name
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with self._turn():
            self._order.append(self._name)
            self.inside.set()
            self._leave.wait(LONG_S)

    def leave(self) -> None:
        self._leave.set()
        self.thread.join(LONG_S)


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch) -> ReaderWriterLock:
    """A lock with a very long timeout."""
    monkeypatch.setattr(database_module, "WAIT_S", LONG_S)
    return ReaderWriterLock()


def waiting(lock: ReaderWriterLock, count: int) -> None:
    """Wait until `count` threads are waiting for the lock."""
    conditions: tuple[Any, ...] = (lock._may_read, lock._may_commit)
    while sum(len(condition._waiters) for condition in conditions) < count:
        threading.Event().wait(0.001)


def test_commit_waits_for_readers_and_blocks_later_readers(lock: ReaderWriterLock) -> None:
    order = list[str]()
    reader = Other(lock.reading, order, "reader")
    assert reader.inside.wait(LONG_S)
    commit = Other(lock.committing, order, "commit")
    waiting(lock, 1)
    late = Other(lock.reading, order, "late")
    waiting(lock, 2)
    assert order == ["reader"]
    reader.leave()
    assert commit.inside.wait(LONG_S)
    assert order == ["reader", "commit"]
    commit.leave()
    assert late.inside.wait(LONG_S)
    late.leave()
    assert order == ["reader", "commit", "late"]


def test_no_reader_starves(lock: ReaderWriterLock) -> None:
    """Other readers and commits take the lock again as soon as they have released it."""
    over, through = threading.Event(), threading.Event()

    def again(turn: Callable[[], AbstractContextManager[None]]) -> None:
        while not over.is_set():
            with turn():
                pass

    def once() -> None:
        for _ in range(50):
            with lock.reading():
                pass
        through.set()

    hot = [threading.Thread(target=again, args=[turn]) for turn in (*[lock.reading] * 3, lock.committing)]
    asked = threading.Thread(target=once)
    for thread in (*hot, asked):
        thread.start()
    assert through.wait(LONG_S)
    over.set()
    for thread in (*hot, asked):
        thread.join(LONG_S)
    assert (lock._readers, lock._commits) == (0, 0)


def test_thread_that_waits_too_long_proceeds_without_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that reads twice at once waits neither for itself nor for a commit that waits for it."""
    monkeypatch.setattr(database_module, "WAIT_S", 0.01)
    lock = ReaderWriterLock()
    with lock.reading(), lock.reading(), lock.committing(), lock.reading():
        pass
    assert (lock._readers, lock._commits) == (0, 0)


def holds(path: Path, how: str, parent: Connection) -> None:
    """Lock the file in another process until the parent sends a message."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(how)
        db.execute("SELECT * FROM a").fetchall()
        parent.send("locked")
        parent.recv()


@pytest.fixture
def database(tmp_path: Path) -> Any:
    made = Database(f"sqlite:///{tmp_path}/of.db")
    with made.write() as db:
        db.exec_driver_sql("CREATE TABLE a (b)")
    yield made
    made.dispose()


def locked(database: Database, how: str) -> tuple[Any, Connection]:
    mine, theirs = FORKS.Pipe()
    process = FORKS.Process(target=holds, args=(database.url.database, how, theirs))
    process.start()
    assert mine.recv() == "locked"
    return process, mine


@pytest.mark.parametrize(("how", "what"), [("BEGIN EXCLUSIVE", "read"), ("BEGIN", "write")])
def test_locked_file_is_retried_until_the_other_process_releases_it(
    database: Database, monkeypatch: pytest.MonkeyPatch, how: str, what: str
) -> None:
    """A reader waits for the other process's commit, and a commit waits for its reads."""
    process, other = locked(database, how)
    tried = list[float]()

    def look_again(seconds: float) -> None:
        tried.append(seconds)
        if len(tried) == 5:
            other.send("go on")
            process.join()

    monkeypatch.setattr(database_module.time, "sleep", look_again)
    with getattr(database, what)() as db:
        db.exec_driver_sql("SELECT * FROM a" if what == "read" else "INSERT INTO a VALUES (1)")
    assert len(tried) == 5
    with database.read() as db:
        assert len(db.exec_driver_sql("SELECT * FROM a").all()) == (what == "write")


@pytest.mark.parametrize(("how", "what"), [("BEGIN EXCLUSIVE", "read"), ("BEGIN", "write")])
def test_file_that_stays_locked_is_reported_and_nothing_is_written(
    database: Database, monkeypatch: pytest.MonkeyPatch, how: str, what: str
) -> None:
    process, other = locked(database, how)
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_S", 0.05)
    with pytest.raises(Unavailable, match="locked"), getattr(database, what)() as db:
        db.exec_driver_sql("SELECT * FROM a" if what == "read" else "INSERT INTO a VALUES (1)")
    other.send("go on")
    process.join()
    with database.read() as db:
        assert db.exec_driver_sql("SELECT * FROM a").all() == []


def test_reading_transaction_takes_its_lock_at_the_beginning(database: Database) -> None:
    """No statement within the transaction waits for a lock any more, because nothing would retry it."""
    other = sqlite3.connect(str(database.url.database), timeout=0, isolation_level=None)
    with closing(other), database.read():
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO a VALUES (1)")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("COMMIT")


def test_failed_commit_reports_the_reason_and_writes_nothing(database: Database) -> None:
    with database.write() as db:
        db.exec_driver_sql("CREATE TABLE c (a INTEGER PRIMARY KEY)")
        db.exec_driver_sql("CREATE TABLE d (c REFERENCES c (a) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(IntegrityError, match="FOREIGN KEY"), database.write() as db:
        db.exec_driver_sql("INSERT INTO d VALUES (1)")
    with database.write() as db:
        assert db.exec_driver_sql("SELECT * FROM d").all() == []
        db.exec_driver_sql("INSERT INTO c VALUES (1)")
        db.exec_driver_sql("INSERT INTO d VALUES (1)")
    with database.read() as db:
        assert len(db.exec_driver_sql("SELECT * FROM d").all()) == 1


def test_error_other_than_a_lock_is_returned_without_retry() -> None:
    closed = sqlite3.connect(":memory:")
    closed.close()
    assert isinstance(retry_while_locked(lambda: closed.execute("SELECT 1")), sqlite3.ProgrammingError)
