"""Statements that the driver of the database executes without SQLAlchemy."""

import contextlib
from typing import Any

import pytest
from sqlalchemy import Float, bindparam, func, insert, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.exc import DBAPIError, IntegrityError, NoResultFound

from tuner.database.database import Database
from tuner.database.ledger_tables import metadata
from tuner.database.prepared import PreparedStatement
from tuner.database.tables import projects
from tuner.domain.errors import Unavailable

INSERT = PreparedStatement(insert(projects))
SELECT = PreparedStatement(select(projects.c.created_at).where(projects.c.name == bindparam("of_name")))
UPDATE = PreparedStatement(update(projects).where(projects.c.name == "a").returning(projects.c.created_at))


@pytest.mark.parametrize("dialect", [sqlite.dialect(), psycopg.dialect()], ids=["sqlite", "postgresql"])
def test_values_of_all_columns_need_no_conversion(dialect: Any) -> None:
    columns = [column for table in metadata.tables.values() for column in table.columns]
    kinds: list[Any] = [column.type.dialect_impl(dialect) for column in columns]
    # An integer in a column of floats becomes a float in the database. 701 is the type of a float in PostgreSQL.
    assert not [kind for kind in kinds if kind.bind_processor(dialect) and not isinstance(kind, Float)]
    assert not [kind for kind in kinds if kind.result_processor(dialect, 701)]


def test_a_statement_runs_in_the_transaction_of_its_connection(database: Database) -> None:
    with contextlib.suppress(ZeroDivisionError), database.write() as db:
        INSERT.run_all(db, [{"name": "a", "created_at": 1}])
        raise ZeroDivisionError
    with database.write() as db:
        assert SELECT.first(db, {"of_name": "a"}) is None
        INSERT.run_all(db, [])
        INSERT.run_all(db, [{"name": name, "created_at": 2} for name in "ab"])
        assert UPDATE.one(db, {"created_at": 3}) == (3,)
    with database.read() as db:
        assert [SELECT.all(db, {"of_name": name}) for name in "abc"] == [[(3,)], [(2,)], []]
        with pytest.raises(NoResultFound):
            SELECT.one(db, {"of_name": "c"})


def test_errors_are_those_of_sqlalchemy(database: Database) -> None:
    with pytest.raises(IntegrityError, match="UNIQUE"), database.write() as db:
        INSERT.run_all(db, [{"name": "a", "created_at": 1}, {"name": "a", "created_at": 2}])
    with pytest.raises(DBAPIError, match="of_name"), database.read() as db:
        SELECT.first(db, {"another": 1})


def test_error_in_a_later_row_is_that_of_sqlalchemy(database: Database) -> None:
    of_rows = PreparedStatement(
        select(func.abs(projects.c.created_at)).order_by(projects.c.created_at.desc())
    )
    with database.write() as db:
        INSERT.run_all(db, [{"name": "a", "created_at": 1}, {"name": "b", "created_at": -(2**63)}])
    with pytest.raises(Unavailable, match="overflow"), database.read() as db:
        of_rows.all(db, {})
