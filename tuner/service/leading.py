"""Leader election among services that share a database.

Every service answers requests. Only the leader launches jobs, lets waiting jobs continue and sends webhooks. The
leader renews its term every second. If it gives up, or has not renewed its term for three seconds, another service begins the
next term. Writes of an earlier term are refused, however late they arrive (`Leading.write`).
"""

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tuner.database.database import Connection, Database
from tuner.domain.errors import TunerError
from tuner.domain.time import NS, Instant
from tuner.service.periodic import PeriodicService
from tuner.settings import release
from tuner.store import leadership
from tuner.store.leadership import Term as Term

log = logging.getLogger("tuner.leading")

ROLE = "controller"
LEASE_NS = 3 * NS
RENEW_NS = NS
# A leader that has not done its work for this long lets the others try: it may be the only one that cannot reach Ray.
UNFIT_NS = 60 * NS
REST_NS = 2 * LEASE_NS  # how long such a leader then waits before it tries to lead again


class Leading:
    """One service's part in the election of the leader. Thread-safe."""

    def __init__(self, database: Database, now: Callable[[], Instant]) -> None:
        self.holder = f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"
        self._database, self._now = database, now
        self._lock = threading.Lock()
        self._term: Term | None = None
        self._looked_at: Instant | None = None
        self._fit_at = self._rests_until = Instant(0)
        self._is_over = False

    def term(self) -> Term | None:
        """Return the term of this service, or None if it does not lead. Begin or renew the term first if that is due.

        Raises:
            Unavailable: The database does not answer.
        """
        with self._lock:
            now = self._now()
            if self._looked_at is None or not 0 <= now - self._looked_at < LEASE_NS:
                self._fit_at = now  # this service has just started, or it was suspended
            if self._looked_at is None or not 0 <= now - self._looked_at < RENEW_NS:
                self._set(self._renew_or_begin(now), now)
            return self._term

    def is_leading(self) -> bool:
        """Return whether this service leads, according to its last access to the database."""
        term, looked_at = self._term, self._looked_at
        return term is not None and looked_at is not None and self._now() - looked_at < LEASE_NS

    @contextmanager
    def write(self, term: Term, name: str = "") -> Iterator[Connection]:
        """Open a write transaction for changes that were decided in the given term.

        Raises:
            Fenced: The next term has begun.
            Unavailable: The database does not answer.
        """
        with leadership.write(self._database, term, name) as db:
            yield db

    def pass_succeeded(self) -> None:
        """Record that the work of a leader was just done successfully."""
        self._fit_at = self._now()

    def give_up(self) -> None:
        """Give up the term and never lead again, so that another service may lead at once.

        Raises:
            Unavailable: The database does not answer. Another service can lead only after this term has run out.
        """
        with self._lock:
            self._is_over = True
            term, self._term = self._term, None
            if term is not None:
                with self._database.write("leading.give_up") as db:
                    leadership.give_up(db, term)
                log.info("this service gave up its term as the leader")

    def _renew_or_begin(self, now: Instant) -> Term | None:
        """Renew or begin a term in the database and return it, or None if this service does not lead."""
        term = self._term
        # `<= REST_NS`: setting the clock back must not make the pause longer
        if self._is_over or 0 < self._rests_until - now <= REST_NS:
            return None
        if term is None and self.is_led():
            return None
        unfit = now - self._fit_at > UNFIT_NS
        with self._database.write("leading.term") as db:
            at = leadership.clock(db, now)
            until = Instant(at + LEASE_NS)
            if term is not None and unfit:
                leadership.give_up(db, term)
            elif term is not None and leadership.renew(db, term, until=until):
                return term
            else:
                return leadership.begin(db, ROLE, self.holder, release(), now=at, until=until)
        log.warning("no pass has succeeded for %d s: this service lets another one lead", UNFIT_NS // NS)
        self._rests_until = Instant(now + REST_NS)
        return None

    def is_led(self) -> bool:
        """Return whether any service leads.

        It uses a read transaction, because waiting services check this all the time and would block each other's writes.

        Raises:
            Unavailable: The database does not answer.
        """
        with self._database.read() as db:
            present = leadership.get(db, ROLE)
            return present is not None and present.lasts(leadership.clock(db, self._now()))

    def _set(self, term: Term | None, now: Instant) -> None:
        before, self._term, self._looked_at = self._term, term, now
        if before is None:
            self._fit_at = now
        if term is not None and term != before:
            log.info("this service is the leader, in term %d", term.token)
        elif term is None and before is not None:
            log.warning("this service is not the leader any more")


class Renewing(PeriodicService):
    """Renew the term of a service, or try to begin one, in a thread of its own."""

    def __init__(self, leading: Leading) -> None:
        super().__init__("leading", every_s=RENEW_NS / NS, first_s=RENEW_NS / NS)
        self._leading = leading

    def one_pass(self) -> None:
        with suppress(TunerError):  # the controller logs it
            self._leading.term()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop the thread and give up the term. First stop all threads that do the leader's work."""
        super().stop(timeout_s)
        try:
            self._leading.give_up()
        except TunerError as error:
            log.warning("the term could not be given up and will expire: %s", error.detail)
