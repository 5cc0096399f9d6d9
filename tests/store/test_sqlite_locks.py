"""Test transactions on a SQLite file: the threads of one process read one at a time, and processes retry until they
can proceed. With a write-ahead log, reads and commits do not wait for each other.
"""

import threading
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from tests.store.crowd import FORKS
from tuner.database import sqlite
from tuner.database.database import Database
from tuner.database.sqlite import retry_while_locked, sqlite3
from tuner.domain.errors import Unavailable


def holds(path: Path, how: str, parent: Connection) -> None:
    """Lock the file in another process until the parent sends a message."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(how)
        db.execute("SELECT * FROM a").fetchall()
        parent.send("locked")
        parent.recv()


@pytest.fixture
def database(tmp_path: Path) -> Any:
    """A database with a rollback journal."""
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

    monkeypatch.setattr(sqlite.time, "sleep", look_again)
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
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
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


def mode(database: Database) -> str:
    with database.read() as db:
        return str(db.exec_driver_sql("PRAGMA journal_mode").scalar())


@pytest.fixture
def logged(database: Database) -> Database:
    """A database with a write-ahead log."""
    assert mode(database) == "delete"
    database.use_write_ahead_log()
    assert mode(database) == "wal"
    return database


@pytest.mark.parametrize(("how", "what", "rows"), [("BEGIN IMMEDIATE", "read", 0), ("BEGIN", "write", 1)])
def test_read_and_commit_do_not_wait_for_each_other_with_a_log(
    logged: Database, monkeypatch: pytest.MonkeyPatch, how: str, what: str, rows: int
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.0)
    process, other = locked(logged, how)
    with getattr(logged, what)() as db:
        db.exec_driver_sql("SELECT * FROM a" if what == "read" else "INSERT INTO a VALUES (1)")
    other.send("go on")
    process.join()
    with logged.read() as db:
        assert len(db.exec_driver_sql("SELECT * FROM a").all()) == rows


def test_threads_read_one_at_a_time(database: Database) -> None:
    reading, most = set[int](), list[int]()

    def read(number: int) -> None:
        for _ in range(50):
            with database.read() as db:
                reading.add(number)
                db.exec_driver_sql("SELECT * FROM a").all()
                most.append(len(reading))
                reading.remove(number)

    threads = [threading.Thread(target=read, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 200


def test_thread_that_reads_within_a_read_proceeds_after_the_timeout(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "READ_TIMEOUT_S", 0.01)
    with database.read(), database.read() as db:
        assert db.exec_driver_sql("SELECT * FROM a").all() == []
    with database.read():
        assert not database._reader_lock.acquire(blocking=False)
    assert database._reader_lock.acquire(blocking=False), "the lock was released once"


def test_open_connections_use_the_log_after_the_switch(database: Database, tmp_path: Path) -> None:
    other = Database(f"sqlite:///{tmp_path}/of.db")
    with other.write() as db:
        db.exec_driver_sql("INSERT INTO a VALUES (1)")
    database.use_write_ahead_log()
    with other.write() as db:
        db.exec_driver_sql("INSERT INTO a VALUES (2)")
    with database.read() as db, other.write() as writing:
        writing.exec_driver_sql("INSERT INTO a VALUES (3)")
        assert db.exec_driver_sql("SELECT * FROM a").all() == [(1,), (2,)]
    other.dispose()


def test_locked_file_keeps_its_journal(database: Database) -> None:
    process, other = locked(database, "BEGIN IMMEDIATE")
    database.use_write_ahead_log()
    other.send("go on")
    process.join()
    assert mode(database) == "delete"


def test_old_sqlite_goes_back_to_a_journal(logged: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its write-ahead log can be corrupted by several writers."""
    logged.dispose()
    monkeypatch.setattr(sqlite, "LOG_IS_SAFE", False)
    assert mode(logged) == "truncate"
    logged.use_write_ahead_log()
    assert mode(logged) == "truncate"


def test_new_database_has_a_log(tmp_path: Path) -> None:
    new = Database(f"sqlite:///{tmp_path}/new.db")
    new.migrate()
    assert mode(new) == "wal"
    new.dispose()
    assert [file.name for file in tmp_path.iterdir()] == ["new.db"]
