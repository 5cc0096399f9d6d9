"""Keep services from leading while a command replaces the database or changes its schema.

A service that led meanwhile would launch drivers, and the money that they spend would be missing after the command.
"""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from typing import IO

from tuner.database.database import Connection, Database
from tuner.domain.errors import Conflict, HomeInUse, TunerError
from tuner.domain.time import NS, Instant, system_now
from tuner.service.leading import RENEW_NS, ROLE
from tuner.service.periodic import PeriodicService
from tuner.settings import Settings, release
from tuner.store import leadership
from tuner.store.leadership import Term

# How long a command's term lasts without a renewal. It is longer than that of a service, because a busy machine must not end it.
LEASE_NS = 10 * NS
TERM, GIVE_UP = "leading.term", "leading.give_up"  # names in `tuner.database.failpoints`


class HomeLock:
    """A lock on TUNER_HOME, so that only one service uses the SQLite database in it, and none while a command replaces the database.

    The kernel releases the lock when the process ends for any reason. Services with a PostgreSQL database take no lock, because several of
    them may share a home.
    """

    def __init__(self, settings: Settings) -> None:
        """Take the lock.

        Raises:
            HomeInUse: Another service, or a command that no service may interrupt, holds it.
        """
        self._file: IO[str] | None = None
        if not settings.database_url.startswith("sqlite:"):
            return
        settings.make_home()
        file = (settings.home / "service.lock").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            with file:
                file.seek(0)
                holder = file.read().strip() or "another service, which is starting,"
            raise HomeInUse(
                f"{holder} already uses TUNER_HOME {settings.home}: stop that process first, or set another TUNER_HOME and TUNER_PORT"
            ) from error
        self._file = file
        self.describe("the service")

    def describe(self, name: str) -> None:
        """Record `name` as the holder of the lock, in the lock file. Another process shows this text in its error message."""
        if self._file is not None:
            now = f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %Z}"
            self._file.truncate(0)
            self._file.write(f"{name} with pid {os.getpid()}, started at {now},")
            self._file.flush()

    def release(self) -> None:
        if self._file is not None:
            self._file.close()


@contextmanager
def home_of_one(settings: Settings, name: str) -> Iterator[None]:
    """Hold the lock on TUNER_HOME in the `with` block, as `name`. With PostgreSQL, do nothing.

    Raises:
        HomeInUse: A service or another such command holds the lock.
    """
    home = HomeLock(settings)
    try:
        home.describe(name)
        yield
    finally:
        home.release()


def _term_transaction(database: Database, name: str) -> AbstractContextManager[Connection]:
    """Open a write transaction that begins, renews or ends a command's term. It has the failpoint of a service's term."""
    return database.write(name)


class CommandTerm(PeriodicService):
    """The leader's term of a command, renewed in a thread, so that no service can lead."""

    def __init__(self, database: Database, name: str) -> None:
        """Begin the term.

        Raises:
            Conflict: A service or another command leads.
            Unavailable: The database does not answer.
        """
        super().__init__("command-term", every_s=RENEW_NS / NS, first_s=RENEW_NS / NS)
        self._database = database
        holder = f"{name} with pid {os.getpid()} on {socket.gethostname()[:60]}"
        with _term_transaction(database, TERM) as db:
            at = leadership.clock(db, system_now())
            until = Instant(at + LEASE_NS)
            term = leadership.begin(db, ROLE, holder, release(), now=at, until=until)
        if term is None:
            raise Conflict(
                "a service or command uses this database: stop it and all other services, and wait for ten seconds"
            )
        self._term: Term = term

    def one_pass(self) -> None:
        with suppress(TunerError):  # `check` reports a term that has ended
            self.check()

    def check(self) -> None:
        """Renew the term.

        Raises:
            Conflict: The term is over, because a service has begun another one.
            Unavailable: The database does not answer.
        """
        with _term_transaction(self._database, TERM) as db:
            until = Instant(leadership.clock(db, system_now()) + LEASE_NS)
            if not leadership.renew(db, self._term, until=until):
                raise Conflict(
                    "a service began to use this database: stop all services, and run the command again"
                )

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop the thread and end the term."""
        super().stop(timeout_s)
        with suppress(TunerError), _term_transaction(self._database, GIVE_UP) as db:
            leadership.give_up(db, self._term)


@contextmanager
def term_of(database: Database, name: str) -> Iterator[CommandTerm]:
    """Lead in the `with` block as the command `name`, so that no service can.

    Raises:
        Conflict: A service or another command leads.
        Unavailable: The database does not answer.
    """
    term = CommandTerm(database, name)
    term.start()
    try:
        yield term
    finally:
        term.stop()
