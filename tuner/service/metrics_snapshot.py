"""Compute from the database the figures that `/metrics` shows, and cache them for a few seconds."""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from tuner.database.database import Connection
from tuner.domain.access import DEFAULT_PROJECT
from tuner.domain.budget import spent_share
from tuner.domain.ledger import Account
from tuner.domain.money import FREE, ZERO, Cost, Money
from tuner.domain.shared_budget import SharedBudget
from tuner.domain.time import NS, Instant
from tuner.ledger import shared_budgets
from tuner.service.bootstrap import Service
from tuner.service.shared_budgets import full_name
from tuner.store import exports, jobs, launches, totals
from tuner.store.cluster_hours import Kind, idle_cost, times
from tuner.store.totals import Counts, Posted, Running, Totals
from tuner.tuning.rungs import rungs_of

ENTRIES_PAGE = 20_000  # ledger entries summed in one query
# Number of newest ledger entries that are read again each time, because in PostgreSQL an entry may become visible later than an entry with
# a higher number.
UNSETTLED = 5000
# Tolerance for differences between clocks, because the end of a job may be recorded by another machine.
CLOCKS_NS = 600 * NS


class PostedSums:
    """Keep the sums of the ledger's entries in memory, so that `read` does not sum the whole ledger each time.

    `_sums` are the sums of the entries up to number `_upto`. `read` adds the entries with higher numbers.
    """

    def __init__(self) -> None:
        self._sums: Posted = {}
        self._upto = 0

    def read(self, service: Service) -> Posted:
        """Return the sums of all entries.

        The entries are read in pages, because the first call in a process reads all of them.
        """
        with service.database.read() as db:
            newest = totals.newest_entry(db)
        while self._upto < newest - UNSETTLED:
            page = min(newest - UNSETTLED, self._upto + ENTRIES_PAGE)
            with service.database.read() as db:
                totals.add(self._sums, totals.posted_between(db, self._upto, page))
            self._upto = page
        sums = dict(self._sums)
        with service.database.read() as db:
            totals.add(sums, totals.posted_between(db, self._upto, newest))
        return sums


@dataclass(frozen=True, slots=True)
class JobShape:
    """The facts about a job that never change: the CPUs of one trial, and the job's rungs."""

    cpus: Fraction
    rungs: tuple[int, ...]


class TrialCounter:
    """Count the trials, steps and ended attempts of all jobs, and the promotions since the first call of `read`.

    The first call of `read` counts all jobs. Each later call counts only the jobs that may have changed: those that are running or
    paused, and those that have ended since the last call. For the jobs that had ended at the first call, only a sum is kept. If one of
    them is resumed, or has another end time because it was resumed and has ended again, all jobs are counted again, as in the first
    call. The promotions since the call before are then missing.

    To count ten jobs of 10,000 trials each again takes 0.1 s, most of it for the promotions.
    """

    def __init__(self) -> None:
        self._sum: Counts = Counter()
        self._known: dict[str, Counts] = {}
        self._shapes: dict[str, JobShape] = {}
        self._ended: dict[str, Instant] = {}
        self._ended_before: set[str] = set()
        self._open: set[str] = set()
        self._read_at: Instant | None = None

    def read(self, service: Service, now: Instant) -> Counts:
        with service.database.read() as db:
            opened = set(totals.started_and_open(db))
            since = now if self._read_at is None else min(now, self._read_at)
            ended = totals.ended_since(db, Instant(since - CLOCKS_NS))
            fresh = {job for job, at in ended.items() if self._ended.get(job) != at}
            if self._read_at is None or (opened | fresh) & self._ended_before:
                self._count_all(db, opened, self._sum["promotions",])
            else:
                self._count(db, opened | self._open | fresh)
        self._open, self._ended, self._read_at = opened, ended, now
        return Counter(self._sum)

    def _count_all(self, db: Connection, opened: set[str], promoted: int) -> None:
        self._sum = totals.of_all(db)
        self._known = self._of(db, opened)
        self._ended_before = totals.all_ended(db)
        self._sum["promotions",] = promoted

    def _count(self, db: Connection, due: Iterable[str]) -> None:
        for job, counts in self._of(db, due).items():
            self._sum.update(counts)
            self._sum.subtract(self._known.get(job, Counter()))
            self._known[job] = counts

    def _of(self, db: Connection, due: Iterable[str]) -> dict[str, Counts]:
        counts_by_job = {}
        for job, (counted, reached) in totals.of_jobs(db, list(due)).items():
            counted["promotions",] = promotions(reached, self.shape_of(db, job).rungs)
            counts_by_job[job] = counted
        return counts_by_job

    def shape_of(self, db: Connection, job: str) -> JobShape:
        if job not in self._shapes:
            spec = jobs.get(db, job).spec
            self._shapes[job] = JobShape(Fraction(str(spec.resources.all_cpus)), rungs_of(spec))
        return self._shapes[job]


def promotions(reached: Mapping[int, int], rungs: tuple[int, ...]) -> int:
    """Return the number of promotions. A trial that reached a step after a rung was promoted at that rung.

    Args:
        reached: For each step, the number of trials whose last step it was.
        rungs: The steps at which trials are compared.

    >>> promotions({1: 6, 3: 2, 9: 1}, (1, 3))
    4
    """
    return sum(count * sum(1 for rung in rungs if rung < step) for step, count in reached.items())


KEEP_NS = 5 * NS  # how long computed figures are reused
BUDGETS_MAX = 20  # maximum number of shared budgets shown; those with the highest used fraction are kept
# A running job is stalled if its last report is older than five of its mean steps and older than ten minutes.
STALLED_STEPS = 5
STALLED_NS = 600 * NS


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """A shared budget with the account of its current period."""

    budget: SharedBudget
    account: Account
    project: str = DEFAULT_PROJECT

    @property
    def name(self) -> str:
        return full_name(self.project, self.budget.name)

    @property
    def used(self) -> Fraction:
        """Return the spent share of the budget."""
        return spent_share(self.budget.usd, self.budget.gpu_ms, self.account.posted)


@dataclass(frozen=True, slots=True)
class RunningMetrics:
    """Metrics of the running jobs."""

    #: For the running job that has not reported for longest, the time of its last report, or of its start if it has no report.
    #: None if no job runs.
    reported_since: Instant | None
    stalled: int  #: Number of stalled jobs.
    unimproved: Money  #: The most that a running job has spent since its best result last improved.
    #: The highest fraction of its budget in dollars that a running job has spent since its best result last improved.
    unimproved_share: Fraction
    #: Used fraction of the CPUs of running attempts; None if it was not measured.
    cpu_share: Fraction | None
    #: Used fraction of the GPUs of running attempts; None if it was not measured.
    gpu_share: Fraction | None


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """All metrics, read at one time."""

    now: Instant  #: When the metrics were read.
    totals: Totals
    counts: Counts  #: Counts by key. The key `("promotions",)` counts promotions since this process began.
    posted: Posted
    budgets: tuple[BudgetUse, ...]
    watched: RunningMetrics
    idle: Mapping[Kind, Money]  #: Cost of machines while no trial ran on them, by instance type and market.


class MetricsReader:
    """Read the metrics. Thread-safe. Use one reader per process, because it keeps sums and reads only new records."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._last: MetricsSnapshot | None = None
        self._ledger, self._tally = PostedSums(), TrialCounter()

    def read(self) -> MetricsSnapshot:
        """Return the metrics, at most `KEEP_NS` old. Raise Unavailable if the database does not answer."""
        with self._lock:
            now, last = self._service.now(), self._last
            if last is None or not 0 <= now - last.now < KEEP_NS:
                self._last = last = self._read(now)
            return last

    def _read(self, now: Instant) -> MetricsSnapshot:
        """Read the metrics in short transactions, because with SQLite's rollback journal a read blocks every commit."""
        service = self._service
        posted = self._ledger.read(service)
        with service.database.read() as db:
            current_totals = totals.totals(db, now)
            budgets = _budgets(db, now)
            idle = idle_cost(times(db, DEFAULT_PROJECT, Instant(0), now))
        with service.database.read() as db:
            running = totals.running(db)
            cpus = {row.job: self._tally.shape_of(db, row.job).cpus for row in running}
        counted = self._tally.read(service, now)
        return MetricsSnapshot(
            now, current_totals, counted, posted, budgets, watched(running, cpus, now), idle
        )


def watched(running: list[Running], cpus: Mapping[str, Fraction], now: Instant) -> RunningMetrics:
    """Return the metrics of the running jobs.

    Args:
        cpus: The number of CPUs of one trial, by the id of its job.
    """
    since = [(job, job.reported_at or job.running_since) for job in running]
    spent = [max(ZERO, job.account.posted.usd - job.improved_spent) for job in running]
    limits = [job.account.limit.usd for job in running]
    shares = [
        Fraction(usd.micro_usd, limit.micro_usd)
        for usd, limit in zip(spent, limits, strict=True)
        if limit > ZERO
    ]
    cpu_ns, percent, samples = (
        sum(job.used.get(name, 0) for job in running) for name in ("cpu_ns", "gpu_percent", "gpu_samples")
    )
    paid = sum((job.used.get("cpu_wall_ns", 0) * cpus[job.job] for job in running), Fraction(0))
    return RunningMetrics(
        min((at for _, at in since), default=None),
        sum(1 for job, at in since if now - at > max(STALLED_NS, STALLED_STEPS * (job.step_ns or 0))),
        max(spent, default=ZERO),
        max(shares, default=Fraction(0)),
        cpu_ns / paid if paid else None,
        Fraction(percent, samples * 100) if samples else None,
    )


def _budgets(db: Connection, now: Instant) -> tuple[BudgetUse, ...]:
    """Return the shared budgets of all projects that are closest to their limits.

    At most `BUDGETS_MAX` are returned, to limit the number of metrics.
    """
    uses = [
        BudgetUse(kept.budget, shared_budgets.period_at(db, project, kept.budget, now).account, project)
        for project in shared_budgets.projects(db)
        for kept in shared_budgets.kept(db, project)
    ]
    return tuple(sorted(uses, key=lambda use: (-use.used, use.name))[:BUDGETS_MAX])


def spent(posted: Posted) -> dict[str, Cost]:
    """Return the spend by market.

    Corrections are left out. They only move cost between cost kinds, and their negative entries could make a counter fall.
    """
    spend_by_market: dict[str, Cost] = {}
    for (entry, _, market), cost in posted.items():
        if entry == "post":
            spend_by_market[market] = spend_by_market.get(market, FREE) + cost
    return spend_by_market


def by_kind(posted: Posted) -> dict[tuple[str, str], Cost]:
    """Return the spend by cost kind and market. Corrections are included, as in bills."""
    spend_by_kind: dict[tuple[str, str], Cost] = {}
    for (_, kind, market), cost in posted.items():
        spend_by_kind[kind, market] = spend_by_kind.get((kind, market), FREE) + cost
    return spend_by_kind


def check_database(service: Service) -> None:
    """Raise Unavailable if the database does not answer."""
    with service.database.read() as db:
        totals.ping(db)


def has_live_jobs(service: Service) -> bool:
    """Return whether any job has a driver, waits for one, or has an export that has not ended."""
    with service.database.read() as db:
        return bool(launches.live(db) or exports.live(db))
