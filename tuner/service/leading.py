"""Which of several services acts. Any of them answers requests; the one that leads launches jobs, lets them go on and sends webhooks.

Whoever leads renews its term every second. Where it gave up, or was not heard of for three seconds, another begins the next term; what
the one before still meant to write is refused, however late it comes (`write`).
"""

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tuner.domain.errors import TunerError
from tuner.domain.time import NS, Instant
from tuner.settings import release
from tuner.store import leadership
from tuner.store.database import Connection, Database
from tuner.store.leadership import Term as Term

log = logging.getLogger("tuner.leading")

ROLE = "controller"
LEASE_NS = 3 * NS
RENEW_NS = NS
# A leader that cannot do its work, such as one that alone does not reach Ray, lets the others try.
UNFIT_NS = 60 * NS
REST_NS = 2 * LEASE_NS


class Leading:
    """One service's part in it. Thread-safe."""

    def __init__(self, database: Database, now: Callable[[], Instant]) -> None:
        self.holder = f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"
        self._database, self._now = database, now
        self._lock = threading.Lock()
        self._term: Term | None = None
        self._looked_at: Instant | None = None
        self._fit_at = self._rests_until = Instant(0)
        self._is_over = False

    def term(self) -> Term | None:
        """Ours, begun or renewed where that is due; None while another one leads. Raises Unavailable."""
        with self._lock:
            now = self._now()
            if self._looked_at is None or not 0 <= now - self._looked_at < LEASE_NS:
                self._fit_at = now  # it begins, or stood still
            if self._looked_at is None or not 0 <= now - self._looked_at < RENEW_NS:
                self._set(self._look(now), now)
            return self._term

    def is_leading(self) -> bool:
        """As far as this service knows, without asking."""
        term, looked_at = self._term, self._looked_at
        return term is not None and looked_at is not None and self._now() - looked_at < LEASE_NS

    @contextmanager
    def write(self, term: Term, name: str = "") -> Iterator[Connection]:
        """A write transaction of what was decided in a term of ours. Raises Fenced where the next one has begun, and
        Unavailable."""
        with leadership.write(self._database, term, name) as db:
            yield db

    def went_well(self) -> None:
        """The work of a leader was done just now."""
        self._fit_at = self._now()

    def give_up(self) -> None:
        """For good; another one may lead at once. Raises Unavailable: then it may when this term has run out."""
        with self._lock:
            self._is_over = True
            term, self._term = self._term, None
            if term is not None:
                with self._database.write("leading.give_up") as db:
                    leadership.give_up(db, term)
                log.info("this service leads no more")

    def _look(self, now: Instant) -> Term | None:
        term = self._term
        if (
            self._is_over or 0 < self._rests_until - now <= REST_NS
        ):  # a clock that is set back makes no longer rest
            return None
        if term is None and self._is_taken(now):
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
        log.warning("no pass went well for %d s: another service may lead", UNFIT_NS // NS)
        self._rests_until = Instant(now + REST_NS)
        return None

    def _is_taken(self, now: Instant) -> bool:
        """Asked without a write, since those who wait ask all the time."""
        with self._database.read() as db:
            present = leadership.get(db, ROLE)
            return present is not None and present.lasts(leadership.clock(db, now))

    def _set(self, term: Term | None, now: Instant) -> None:
        before, self._term, self._looked_at = self._term, term, now
        if before is None:
            self._fit_at = now
        if term is not None and term != before:
            log.info("this service leads, by term %d", term.token)
        elif term is None and before is not None:
            log.warning("this service leads no more")


class Renewing(threading.Thread):
    """Keeps a service's term, or waits for one, while its other threads are at work; over for good after `stop()`."""

    def __init__(self, leading: Leading) -> None:
        super().__init__(name="leading", daemon=True)
        self._leading = leading
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(RENEW_NS / NS):
            try:
                self._leading.term()
            except TunerError as error:  # the controller says so, too
                log.debug("%s", error.detail)
            except Exception:
                log.exception("the term was not renewed; it is tried again")

    def stop(self, timeout_s: float = 5.0) -> None:
        """Gives the term up. Call it when what the leader does has ended."""
        self._over.set()
        self.join(timeout_s)
        try:
            self._leading.give_up()
        except TunerError as error:
            log.warning("the term was not given up, and runs out: %s", error.detail)
