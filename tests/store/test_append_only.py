"""Test that money cannot be written around the ledger: what the database refuses, and what SQLAlchemy refuses."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from sqlalchemy import delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import ArgumentError

from tests import books
from tests.store.builders import JOB, PROJECT, budget, cost, create, hold, new_job
from tuner.database import ledger_tables
from tuner.database.database import Database
from tuner.database.sqlite import sqlite3
from tuner.domain.events import Completed
from tuner.domain.time import Instant
from tuner.ledger import ledger, readable
from tuner.store.journal import SqlJournal

AT = Instant(0)
REPLACED = "id, job, project, entry, kind, trial, attempt, slice, 0, gpu_ms, at FROM entries"
COLUMNS = "id, job, project, entry, kind, trial, attempt, slice, usd, gpu_ms, at"


@pytest.fixture
def raw(database: Database) -> Iterator[sqlite3.Connection]:
    """A direct connection to a job with $0.0001, of which 10 micro-dollars are posted and 20 held."""
    create(database, new_job(limits=budget(100, 100)))
    journal = SqlJournal(database, JOB, PROJECT, 1, AT)
    with journal.transaction() as tx:
        tx.hold(hold(1, cost(30, 30)))
        tx.settle(hold(1, cost(30, 30)).id, {"train": cost(10, 10)}, at=AT)
        tx.hold(hold(2, cost(20, 20)))
        tx.append(Completed(AT, "trial_00000"))
    with closing(sqlite3.connect(str(database.url.database), isolation_level=None)) as connection:
        yield connection


def rows(raw: sqlite3.Connection) -> list[object]:
    return [raw.execute(f"SELECT * FROM {table} ORDER BY seq").fetchall() for table in ("entries", "events")]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET usd = 0",
        "UPDATE entries SET usd = usd",
        "UPDATE entries SET at = 0 WHERE entry = 'post'",
        "UPDATE OR IGNORE entries SET usd = 0",
        "DELETE FROM entries",
        "DELETE FROM entries WHERE entry = 'release'",
        f"INSERT OR REPLACE INTO entries ({COLUMNS}) SELECT {REPLACED}",
        f"INSERT INTO entries ({COLUMNS}) SELECT {COLUMNS} FROM entries",
        "UPDATE events SET at = 1",
        "DELETE FROM events",
    ],
)
def test_entry_or_event_cannot_be_changed_deleted_or_replaced(
    raw: sqlite3.Connection, statement: str
) -> None:
    before = rows(raw)
    with pytest.raises(sqlite3.IntegrityError, match=r"(entries|events) is append-only"):
        raw.execute(statement)
    assert rows(raw) == before


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("held_usd = held_usd + 71", "never_overspent_usd"),
        ("posted_usd = 81", "never_overspent_usd"),
        ("limit_usd = 29", "never_overspent_usd"),
        ("held_gpu_ms = held_gpu_ms + 71", "never_overspent_gpu_ms"),
        ("posted_gpu_ms = 81", "never_overspent_gpu_ms"),
        ("limit_gpu_ms = 29", "never_overspent_gpu_ms"),
        ("held_usd = -1", "no_negative_usd"),
        ("posted_usd = -1", "no_negative_usd"),
        ("held_gpu_ms = -1", "no_negative_gpu_ms"),
        ("posted_gpu_ms = -1", "no_negative_gpu_ms"),
    ],
)
def test_account_refuses_overspending_and_negative_amounts(
    raw: sqlite3.Connection, database: Database, change: str, constraint: str
) -> None:
    with pytest.raises(sqlite3.IntegrityError, match=constraint):
        raw.execute(f"UPDATE accounts SET {change}")
    with database.read() as db:
        assert ledger.account(db, JOB).left == cost(70, 70)


def test_account_can_be_filled_to_its_limit(raw: sqlite3.Connection) -> None:
    raw.execute("UPDATE accounts SET held_usd = 90, held_gpu_ms = 90")


@pytest.mark.parametrize("entry", ["hold", "post", "release"])
def test_only_a_correction_can_be_negative(raw: sqlite3.Connection, entry: str) -> None:
    row = (
        f"SELECT 'new', job, project, '{entry}', kind, trial, attempt, slice, -1, 0, at FROM entries LIMIT 1"
    )
    with pytest.raises(sqlite3.IntegrityError, match="only_corrections_negative"):
        raw.execute(f"INSERT INTO entries ({COLUMNS}) {row}")


@pytest.mark.parametrize("change", ["usd = -1", "gpu_ms = -1", "state = 'lost'", "job = 'job_of_nobody'"])
def test_invalid_hold_row_is_refused(raw: sqlite3.Connection, change: str) -> None:
    raw.execute("PRAGMA foreign_keys = ON")
    with pytest.raises(sqlite3.IntegrityError):
        raw.execute(f"UPDATE holds SET {change}")


def test_violations_name_an_account_changed_outside_the_ledger(
    raw: sqlite3.Connection, database: Database
) -> None:
    raw.execute("UPDATE accounts SET posted_usd = 9, held_gpu_ms = 19")
    with database.read() as db:
        violations = books.faults(db)
    faults = (
        "the posted amount differs from the sum of its entries",
        "the held amount differs from the sum of its entries",
        "the held amount differs from the sum of the open holds",
    )
    assert violations == [f"{JOB}: {fault}" for fault in faults]


READABLE = ("accounts", "entries", "holds")


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.parametrize("write", [insert, update, delete])
def test_other_packages_cannot_write_the_tables_that_they_read(
    name: str, write: Callable[..., object]
) -> None:
    with pytest.raises(ArgumentError, match="expected"):
        write(getattr(readable, name))


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.parametrize("dialect", [postgresql.dialect(), sqlite.dialect()])
def test_readable_tables_produce_the_same_sql_as_the_ledger_tables(name: str, dialect: Dialect) -> None:
    own, others = (
        str(select(getattr(module, name)).compile(dialect=dialect)) for module in (ledger_tables, readable)
    )
    assert others == own.replace(f"FROM {name}", f"FROM {name} AS {name}")
