"""Statements that are compiled once, and then executed without SQLAlchemy.

To execute a compiled statement, SQLAlchemy takes 40 to 60 µs of processor time, and Python's `sqlite3` module takes 2 to 10 µs
(`python -m benchmarks.journal`). A driver executes about ten statements for each message of a worker.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ClauseElement, Connection, Dialect
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError, NoResultFound
from sqlalchemy.sql.compiler import SQLCompiler

Row = tuple[Any, ...]
Parameters = Mapping[str, object]


class PreparedStatement:
    """A statement that is passed to the database's Python driver directly.

    It runs in the caller's transaction. Errors are raised as SQLAlchemy's exceptions. Values are not converted, which is
    right for the types of our tables: integers, floats and texts.

    Args:
        statement: The statement. It must not contain lists of values (`IN`). In INSERT and UPDATE, the names of the parameters are the
            columns to set, as in SQLAlchemy.
    """

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        # The compiled SQL with its constants. The key consists of SQLAlchemy's name of the database and the names of the parameters.
        self._compiled: dict[tuple[str, ...], tuple[str, Parameters]] = {}

    def __str__(self) -> str:
        return str(self._statement)

    def first(self, db: Connection, parameters: Parameters) -> Row | None:
        """Execute the statement, and return its first row, or None if it returns no row."""
        rows = self.all(db, parameters)
        return rows[0] if rows else None

    def one(self, db: Connection, parameters: Parameters) -> Row:
        """Execute the statement, and return its first row. Raise NoResultFound if it returns no row."""
        row = self.first(db, parameters)
        if row is None:
            raise NoResultFound("the statement returned no row")
        return row

    def all(self, db: Connection, parameters: Parameters) -> list[Row]:
        rows: list[Row] = self._execute(db, parameters, fetches=True)
        return rows

    def run(self, db: Connection, parameters: Parameters) -> int:
        """Execute the statement, and return how many rows it changed."""
        count: int = self._execute(db, parameters).rowcount
        return count

    def run_all(self, db: Connection, rows: Sequence[Parameters]) -> None:
        """Execute the statement once for each set of parameters. All sets must have the same parameter names."""
        if len(rows) == 1:
            self._execute(db, rows[0])
        elif rows:
            self._execute(db, rows[0], rows)

    def _execute(
        self,
        db: Connection,
        parameters: Parameters,
        rows: Sequence[Parameters] = (),
        *,
        fetches: bool = False,
    ) -> Any:
        key = (db.dialect.name, *parameters)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self._compile(db.dialect, list(parameters))
        sql, constants = compiled
        connection: Any = db.connection.driver_connection
        kinds = db.dialect.loaded_dbapi.Error
        try:
            if rows:
                return connection.cursor().executemany(sql, [{**constants, **row} for row in rows])
            cursor = connection.execute(sql, {**constants, **parameters})
            # Fetch the rows inside this `try`, because SQLite computes each row when it is fetched, so fetching can fail too.
            return cursor.fetchall() if fetches else cursor
        except kinds as error:
            if db.dialect.is_disconnect(error, connection, None):
                db.invalidate(error)
            given: Any = [dict(row) for row in rows] or dict(parameters)
            raise DBAPIError.instance(
                sql, given, error, kinds, dialect=db.dialect, ismulti=bool(rows)
            ) from error

    def _compile(self, dialect: Dialect, names: list[str]) -> tuple[str, Parameters]:
        if dialect.name == "sqlite":
            # Use named parameters. SQLAlchemy's default for SQLite is positional parameters, whose values must be put in order for each execution.
            dialect = sqlite.dialect(paramstyle="named")
        # `for_executemany` prevents SQLAlchemy from adding a clause that returns the new row's key.
        compiled = self._statement.compile(dialect=dialect, column_keys=names, for_executemany=True)
        assert isinstance(compiled, SQLCompiler)
        return str(compiled), {
            name: value for name, value in compiled.params.items() if value is not None and name not in names
        }
