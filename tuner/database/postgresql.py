"""PostgreSQL: how long client and server wait for each other, and how a transaction begins.

psycopg begins a transaction by itself before the first statement. Here each transaction is begun by a message of its own. It finds out
whether a connection of the pool still works, so the pool does not have to send a statement for that. It also sets the isolation level and
the time limits of the transaction.
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
# The same for the server, which detects a lost client with them. Without them the session of a client whose machine has vanished would
# keep its locks and its place among `max_connections` for two hours.
SERVER_TIMEOUTS = (
    "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 2; "
    "SET tcp_user_timeout = 20000"
)
# If a process is suspended or lost in the middle of a write transaction, its locks block the other processes. The server therefore ends
# the session of a transaction that has not sent a statement for this time. The longest pauses in a healthy write are those in which a driver
# computes a suggestion or a forecast.
WRITE_IDLE_MS = 20_000
# A read transaction blocks only migrations and the removal of dead rows, and may evaluate many rows between two statements.
READ_IDLE_MS = 300_000
# How long a statement of a write transaction waits for a lock: longer than a lost process can keep one, so that such a process delays
# others but does not make them fail. Reads have no limit, because they wait only for migrations.
LOCKED_MS = 30_000
# Error codes of a refused write: the server is a read-only standby, or the user lacks the permission.
REFUSED = ("25006", "42501")
# Error code of a transaction that the server has rolled back, because it sent no statement for WRITE_IDLE_MS or READ_IDLE_MS.
WAS_IDLE = "25P03"
# With PostgreSQL's default level, READ COMMITTED, a bill could have entries of a trial that is not in its list of trials.
BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


def begin(*, write: bool) -> str:
    """Return the statements that begin a transaction. They are sent as one message.

    The limits are set for the transaction and not for the session, so that a transaction also has them behind a connection pooler.
    """
    idle = "SET LOCAL idle_in_transaction_session_timeout ="
    if write:
        return f"BEGIN; {idle} {WRITE_IDLE_MS}; SET LOCAL lock_timeout = {LOCKED_MS}"
    return f"{BEGIN_READ}; {idle} {READ_IDLE_MS}"


def configure(engine: Engine) -> None:
    """Begin each transaction of the engine explicitly. A connection without the execution option `write` can only read."""

    @event.listens_for(engine, "connect")
    def _on_connect(raw: Any, _record: object) -> None:
        raw.autocommit = True  # psycopg begins no transactions by itself
        raw.execute(SERVER_TIMEOUTS, prepare=False)

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        statement = begin(write=connection.get_execution_options().get("write", False))
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
