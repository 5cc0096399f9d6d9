"""PostgreSQL: how long to wait for a server, and how a transaction begins.

psycopg begins a transaction by itself before the first statement. Here each transaction is begun by a statement of its own. It finds out
whether a connection of the pool still works, so the pool does not have to send a statement for that, and it also sets the isolation level.
"""

from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

# Connection settings with which a lost or unreachable server is detected within about 20 s. Without them a connection would wait for
# minutes, because such a server sends no error. Settings in the URL take precedence.
TIMEOUTS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 20_000,  # ms
}
# Error codes of a refused write: the server is a read-only standby, or the user lacks the permission.
REFUSED = ("25006", "42501")
# With PostgreSQL's default level, READ COMMITTED, a bill could have entries of a trial that is not in its list of trials.
BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


def configure(engine: Engine) -> None:
    """Begin each transaction of the engine explicitly. A connection without the execution option `write` can only read."""

    @event.listens_for(engine, "connect")
    def _on_connect(raw: Any, _record: object) -> None:
        raw.autocommit = True  # psycopg begins no transactions by itself

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        statement = "BEGIN" if connection.get_execution_options().get("write", False) else BEGIN_READ
        raw: Any = connection.connection.driver_connection
        dialect = connection.dialect
        kinds = dialect.loaded_dbapi.Error
        try:
            raw.execute(statement, prepare=False)
        except kinds as error:
            is_lost = dialect.is_disconnect(error, raw, None)
            if is_lost:
                connection.invalidate(error)
            raise DBAPIError.instance(
                statement, (), error, kinds, connection_invalidated=is_lost, dialect=dialect
            ) from error
