"""Keep sums over records that are only ever added. The first reading reads all records, later readings only new ones."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from tuner.domain.time import NS, Instant
from tuner.service.bootstrap import Service
from tuner.store import counts, jobs, totals
from tuner.store.counts import Counts
from tuner.store.database import Connection
from tuner.store.totals import Posted

ENTRIES_PAGE = 20_000
# Number of newest ledger entries that are read again each time: in PostgreSQL, an entry may become visible after an entry with a
# higher number.
UNSETTLED = 5000
# Tolerance for a wrong clock of another machine that records the end of a job.
CLOCKS_NS = 600 * NS


class Ledger:
    """Sums of the ledger entries. The sums of entries up to number `_upto` are kept; later entries are read each time."""

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
        found = dict(self._sums)
        with service.database.read() as db:
            totals.add(found, totals.posted_between(db, self._upto, newest))
        return found


@dataclass(frozen=True, slots=True)
class Shape:
    """The facts of a job that never change: the CPUs of one trial, and the job's rungs."""

    cpus: Fraction
    rungs: tuple[int, ...]


def shape_of(db: Connection, job: str) -> Shape:
    spec = jobs.get(db, job).spec
    return Shape(Fraction(str(spec.resources.cpus)), spec.fidelity.rungs())


class Tally:
    """Counts of trials, steps and ended attempts of all jobs, and of promotions since the first reading.

    A job is counted again at each reading while it is open, and once more after it has ended. All jobs are counted again
    if a job that had ended before the last complete count is resumed.
    """

    def __init__(self) -> None:
        self._sum: Counts = Counter()
        self._known: dict[str, Counts] = {}
        self._shapes: dict[str, Shape] = {}
        self._ended: dict[str, Instant] = {}
        self._ended_before: set[str] = set()
        self._open: set[str] = set()
        self._read_at: Instant | None = None

    def read(self, service: Service, now: Instant) -> Counts:
        with service.database.read() as db:
            opened = set(counts.begun(db))
            since = now if self._read_at is None else min(now, self._read_at)
            ended = counts.ended_since(db, Instant(since - CLOCKS_NS))
            if self._read_at is None or opened & self._ended_before:
                self._count_all(db, opened, self._sum["promotions",])
            else:
                fresh = {job for job, at in ended.items() if self._ended.get(job) != at}
                self._count(db, opened | self._open | (fresh - self._ended_before))
        self._open, self._ended, self._read_at = opened, ended, now
        return Counter(self._sum)

    def _count_all(self, db: Connection, opened: set[str], promoted: int) -> None:
        self._sum = counts.of_all(db)
        self._known = self._of(db, opened)
        self._ended_before = counts.all_ended(db)
        self._sum["promotions",] = promoted

    def _count(self, db: Connection, due: Iterable[str]) -> None:
        for job, found in self._of(db, due).items():
            self._sum.update(found)
            self._sum.subtract(self._known.get(job, Counter()))
            self._known[job] = found

    def _of(self, db: Connection, due: Iterable[str]) -> dict[str, Counts]:
        found = {}
        for job, (counted, reached) in counts.of_jobs(db, list(due)).items():
            if job not in self._shapes:
                self._shapes[job] = shape_of(db, job)
            counted["promotions",] = promotions(reached, self._shapes[job].rungs)
            found[job] = counted
        return found


def promotions(reached: Mapping[int, int], rungs: tuple[int, ...]) -> int:
    """Return the number of promotions. A trial that reached a step after a rung was promoted at that rung.

    Args:
        reached: Number of trials by the last step that they reached.

    >>> promotions({1: 6, 3: 2, 9: 1}, (1, 3))
    4
    """
    return sum(count * sum(1 for rung in rungs if rung < step) for step, count in reached.items())
