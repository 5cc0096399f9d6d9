"""Leader election among services that share a database.

Every service answers requests. Only the leader launches jobs, lets waiting jobs continue and sends webhooks. The leader
renews its term every second. If it gives up its term, or has not renewed it for three seconds, another service begins
the next term. `Leading.write` then refuses writes of the earlier term, however late they arrive.
"""

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from tuner.database.database import Connection, Database
from tuner.domain.errors import TunerError
from tuner.domain.time import NS, Instant
from tuner.service.periodic import PeriodicService
from tuner.settings import release
from tuner.store import copies, leadership
from tuner.store.leadership import Term as Term

log = logging.getLogger("tuner.leading")

ROLE = "controller"
LEASE_NS = 3 * NS
RENEW_NS = NS
# A leader gives up its term if all passes of its controller have failed for this long, for example because it cannot reach Ray.
# Another service may be able to do the work.
UNFIT_NS = 60 * NS
REST_NS = (
    2 * LEASE_NS
)  # How long a service waits before it tries to lead again, after it gave up its term for this reason.


class Leading:
    """One service's participation in the election of the leader, with its term if it leads. Thread-safe."""

    def __init__(self, database: Database, now: Callable[[], Instant]) -> None:
        self.holder = f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"
        self._database, self._now = database, now
        self._lock = threading.Lock()
        self._term: Term | None = None
        self._looked_at: Instant | None = None
        self._fit_at = self._rests_until = Instant(0)
        self._is_over = self._is_starting = self._start_failed = False

    def term(self) -> Term | None:
        """Return the term of this service, or None if it does not lead.

        If the last check is `RENEW_NS` ago or more, first renew the term, or try to begin one.

        Raises:
            Unavailable: The database does not answer.
        """
        with self._lock:
            now = self._now()
            if self._looked_at is None or not 0 <= now - self._looked_at < LEASE_NS:
                # This service has just started or was suspended, so no pass could succeed. It is not unfit for that reason.
                self._fit_at = now
            if self._looked_at is None or not 0 <= now - self._looked_at < RENEW_NS:
                self._set(self._renew_or_begin(now), now)
            return self._term

    def is_leading(self) -> bool:
        """Return whether this service leads, according to the last result of `term`. The database is not read.

        Return False if that result is older than `LEASE_NS`, because the term may have expired.
        """
        term, looked_at = self._term, self._looked_at
        return term is not None and looked_at is not None and self._now() - looked_at < LEASE_NS

    def write(self, term: Term, name: str = "") -> AbstractContextManager[Connection]:
        """Open a write transaction for changes that this service decided as the leader in the given term.

        Args:
            name: The name of the transaction. A test can use it to end the process before or after the commit.

        Raises:
            Fenced: The term is over, because another one has begun.
            Unavailable: The database does not answer.
        """
        return leadership.write(self._database, term, name)

    def pass_succeeded(self) -> None:
        """Record that the leader's work has just succeeded, so that this service stays fit to lead."""
        self._fit_at = self._now()

    @contextmanager
    def starting_cluster(self) -> Iterator[None]:
        """Keep the term while the body of a `with` statement starts the cluster, however long that takes.

        On a busy machine the start of a local Ray head can take minutes, in which no pass can succeed. The time of a start does not count
        as time without a successful pass, unless the start fails. The time of the starts after a failed one counts while they run, too.
        Another start begins at once after a failed one, so the term would otherwise always be renewed during a start.
        """
        began, self._is_starting = self._now(), not self._start_failed
        self._start_failed = True  # Until the start has succeeded.
        try:
            yield
            now = self._now()
            self._fit_at = Instant(min(now, self._fit_at + now - began))
            self._start_failed = False
        finally:
            self._is_starting = False

    def give_up(self) -> None:
        """Give up the term, so that another service can lead at once. This service never leads again.

        Raises:
            Unavailable: The database does not answer. Another service can then lead only after this term has expired.
        """
        with self._lock:
            self._is_over = True
            term, self._term = self._term, None
            if term is not None:
                with self._database.write("leading.give_up") as db:
                    leadership.give_up(db, term)
                log.info("this service gave up its term as the leader")

    def _renew_or_begin(self, now: Instant) -> Term | None:
        """Renew or begin a term in the database and return it, or return None if this service does not lead.

        If no pass of the leader's work has succeeded for `UNFIT_NS`, give up the term instead.
        """
        term = self._term
        # If the clock was set back, the remaining rest exceeds REST_NS. The rest then ends at once, instead of getting longer.
        if self._is_over or 0 < self._rests_until - now <= REST_NS:
            return None
        if term is None and self.is_led():
            return None
        unfit = not self._is_starting and now - self._fit_at > UNFIT_NS
        with self._database.write("leading.term") as db:
            at = leadership.clock(db, now)
            until = Instant(at + LEASE_NS)
            if term is not None and unfit:
                leadership.give_up(db, term)
            elif term is not None and leadership.renew(db, term, until=until):
                return term
            elif copies.is_half_restored(db):
                return None  # This service started before the restore. Its drivers would spend money while the accounts are corrected.
            else:
                return leadership.begin(db, ROLE, self.holder, release(), now=at, until=until)
        log.warning(
            "no pass of the controller has succeeded for %d s: this service gives up its term so that another service can lead",
            UNFIT_NS // NS,
        )
        self._rests_until = Instant(now + REST_NS)
        return None

    def is_led(self) -> bool:
        """Return whether any service leads.

        Services that do not lead check this once a second. They use a read transaction, because write transactions would
        block the writes of other services.

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
    """Renew the term of a service, or try to begin one, every `RENEW_NS` in a separate thread."""

    def __init__(self, leading: Leading) -> None:
        super().__init__("leading", every_s=RENEW_NS / NS, first_s=RENEW_NS / NS)
        self._leading = leading

    def one_pass(self) -> None:
        with suppress(TunerError):  # The controller, which also calls `term`, logs the error.
            self._leading.term()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop the thread and give up the term. Before calling this, stop all threads that do the leader's work."""
        super().stop(timeout_s)
        try:
            self._leading.give_up()
        except TunerError as error:
            log.warning("the term could not be given up and will expire: %s", error.detail)
