"""Figures over all jobs, for people who watch the service. They are read from the record, and kept for some seconds."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from tuner.domain.above import AboveBudget
from tuner.domain.ledger import Account
from tuner.domain.money import FREE, ZERO, Cost, Money
from tuner.domain.time import NS, Instant
from tuner.service.wiring import Service
from tuner.store import above, jobs, launches, totals
from tuner.store.database import Connection
from tuner.store.totals import ENTRIES_PAGE, Posted, Running
from tuner.store.totals import Totals as Totals

KEEP_NS = 5 * NS
# An entry becomes visible with its transaction, in PostgreSQL perhaps after one of a higher number: so many are added up anew.
UNSETTLED = 5000
# A job that ends may be written so by another machine's clock.
CLOCKS_NS = 600 * NS
BUDGETS_MAX = 20
# A running job is stalled whose last report is older than both: five of its mean steps, and ten minutes.
STALLED_STEPS = 5
STALLED_NS = 600 * NS


@dataclass(frozen=True, slots=True)
class Budget:
    """One above jobs, in its present period."""

    budget: AboveBudget
    account: Account

    @property
    def used(self) -> Fraction:
        """The share of the limit that is nearest to its end."""
        limit, posted = self.account.limit, self.account.posted
        return max(Fraction(posted.usd.micro_usd, limit.usd.micro_usd), Fraction(posted.gpu_ms, limit.gpu_ms))


@dataclass(frozen=True, slots=True)
class Watched:
    """Of the running jobs: the oldest last report, how many are stalled, the most that one has spent since its best improved, in
    dollars and as a share of its budget, and the shares of processors and GPUs in use by attempts under way (None: not
    measured)."""

    reported_since: Instant | None
    stalled: int
    unimproved: Money
    unimproved_share: Fraction
    cpu_share: Fraction | None
    gpu_share: Fraction | None


@dataclass(frozen=True, slots=True)
class Figures:
    """`now` is when they were read. `promotions` counts from when this process began, of jobs that were open since."""

    now: Instant
    totals: Totals
    posted: Posted
    budgets: tuple[Budget, ...]
    watched: Watched
    promotions: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What does not change of a job: the processors of a trial, its rungs, and when it was submitted."""

    cpus: Fraction
    rungs: tuple[int, ...]
    created_at: Instant


class Reader:
    """Thread-safe; one a process, since it goes on from where it last read."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._last: Figures | None = None
        self._ledger = _Ledger()
        self._promotions = _Promotions()
        self._shapes: dict[str, Shape] = {}

    def read(self) -> Figures:
        """Raises Unavailable where the database does not answer."""
        with self._lock:
            now, last = self._service.now(), self._last
            if last is None or not 0 <= now - last.now < KEEP_NS:
                self._last = last = self._read(now)
            return last

    def _read(self, now: Instant) -> Figures:
        """In short transactions: with SQLite's rollback journal nobody can commit while somebody reads."""
        service = self._service
        posted = self._ledger.read(service)
        with service.database.read() as db:
            found = totals.totals(db, now)
            budgets = _budgets(db, service.project, now)
        with service.database.read() as db:
            running = totals.running(db)
            self._shapes = {one.job: self._shapes.get(one.job) or _shape(db, one.job) for one in running}
        cpus = {job: shape.cpus for job, shape in self._shapes.items()}
        promoted = self._promotions.read(service, now)
        return Figures(now, found, posted, budgets, watched(running, cpus, now), promoted)


class _Ledger:
    """Sums of entries, which are only ever added: those up to `_upto` are known, those behind it are read each time."""

    def __init__(self) -> None:
        self._sums: Posted = {}
        self._upto = 0

    def read(self, service: Service) -> Posted:
        """By pages: the first time of a process it reads all there are."""
        with service.database.read() as db:
            newest = totals.newest_entry(db)
        while self._upto < newest - UNSETTLED:
            page = min(newest - UNSETTLED, self._upto + ENTRIES_PAGE)
            with service.database.read() as db:
                totals.add(self._sums, totals.posted_between(db, self._upto, page))
            self._upto = page
        found = dict(self._sums)
        with service.database.read() as db:
            totals.add(found, totals.posted_between(db, self._upto, newest))
        return found


class _Promotions:
    """How often trials went on beyond a rung, since the first reading."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._shapes: dict[str, Shape] = {}
        self._open: set[str] = set()
        self._began_at: Instant | None = None
        self._read_at = Instant(0)

    def read(self, service: Service, now: Instant) -> int:
        if self._began_at is None:
            self._began_at = self._read_at = now
        with service.database.read() as db:
            opened = set(totals.open_jobs(db))
            ended = set(totals.ended_since(db, Instant(self._read_at - CLOCKS_NS)))
        for job in opened | ended | self._open:
            with service.database.read() as db:
                self._count(db, job, self._began_at)
        self._open, self._read_at = opened, now
        return sum(self._counts.values())

    def _count(self, db: Connection, job: str, began_at: Instant) -> None:
        """What a job that is older than this process had when it was first looked at was counted by another."""
        shape = self._shapes.get(job) or _shape(db, job)
        found = promotions(totals.reached(db, job), shape.rungs)
        if job not in self._shapes and shape.created_at < began_at:
            self._before[job] = found
        self._shapes[job] = shape
        self._counts[job] = found - self._before.get(job, 0)


def promotions(reached: Mapping[int, int], rungs: tuple[int, ...]) -> int:
    """`reached`: how many trials came to each step. One that came beyond a rung was promoted there.

    >>> promotions({1: 6, 3: 2, 9: 1}, (1, 3))
    4
    """
    return sum(count * sum(1 for rung in rungs if rung < step) for step, count in reached.items())


def watched(running: list[Running], cpus: Mapping[str, Fraction], now: Instant) -> Watched:
    """`cpus`: how many a trial of each job has."""
    since = [(one, one.reported_at or one.running_since) for one in running]
    spent = [max(ZERO, one.account.posted.usd - one.improved_spent) for one in running]
    shares = [
        Fraction(usd.micro_usd, one.account.limit.usd.micro_usd)
        for one, usd in zip(running, spent, strict=True)
        if one.account.limit.usd > ZERO
    ]
    used = {
        name: sum(one.used.get(name, 0) for one in running)
        for name in ("cpu_ns", "gpu_percent", "gpu_samples")
    }
    paid = sum((one.used.get("cpu_wall_ns", 0) * cpus[one.job] for one in running), Fraction(0))
    samples = used["gpu_samples"]
    return Watched(
        min((at for _, at in since), default=None),
        sum(1 for one, at in since if now - at > max(STALLED_NS, STALLED_STEPS * (one.step_ns or 0))),
        max(spent, default=ZERO),
        max(shares, default=Fraction(0)),
        used["cpu_ns"] / paid if paid else None,
        Fraction(used["gpu_percent"], samples * 100) if samples else None,
    )


def _shape(db: Connection, job: str) -> Shape:
    row = jobs.get(db, job)
    return Shape(Fraction(str(row.spec.resources.cpus)), row.spec.fidelity.rungs(), row.created_at)


def _budgets(db: Connection, project: str, now: Instant) -> tuple[Budget, ...]:
    """Those that are nearest to their end, so that their number is bounded."""
    kept = [one.budget for one in above.kept(db, project)]
    found = [Budget(one, above.standing(db, project, one, now).account) for one in kept]
    return tuple(sorted(found, key=lambda one: (-one.used, one.budget.name))[:BUDGETS_MAX])


def spent(posted: Posted) -> dict[str, Cost]:
    """By market, before corrections, which only move cost between kinds: it never falls."""
    found: dict[str, Cost] = {}
    for (entry, _, market), cost in posted.items():
        if entry == "post":
            found[market] = found.get(market, FREE) + cost
    return found


def by_kind(posted: Posted) -> dict[tuple[str, str], Cost]:
    """By kind and market, as bills have it."""
    found: dict[tuple[str, str], Cost] = {}
    for (_, kind, market), cost in posted.items():
        found[kind, market] = found.get((kind, market), FREE) + cost
    return found


def check_database(service: Service) -> None:
    """Raises Unavailable."""
    with service.database.read() as db:
        totals.ping(db)


def has_live_jobs(service: Service) -> bool:
    """Whether a job has a driver, or waits for one."""
    with service.database.read() as db:
        return bool(launches.live(db))
