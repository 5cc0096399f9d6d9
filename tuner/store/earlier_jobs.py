"""The history of earlier jobs of a trainable: thinned learning curves of their trials, with training times, and ended attempts."""

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy import Connection, and_, func, or_, select

from tuner.database.tables import reports, trials
from tuner.domain.records import AttemptRow, TimePoint
from tuner.domain.space import Config
from tuner.domain.trial import TrialState
from tuner.store import attempt_rows, job_summaries
from tuner.store.job_summaries import Version

TRIALS_PAGE = 100
TRIALS_MAX = 300
ATTEMPTS_MAX = 500
HISTORIES_KEPT = 20  # number of jobs whose histories stay in memory; each takes at most about 3 MB
# The steps that a thinned curve keeps, about 15 % apart. The first and last step of each trial are kept too.
THINNED_STEPS = tuple(sorted({round(1.15**n) for n in range(116)}))


@dataclass(frozen=True, slots=True)
class TrialPace:
    """A trial with its learning curve, thinned to its first step, its last step and the steps in `THINNED_STEPS`."""

    trial: str
    config: Config
    state: TrialState
    points: tuple[TimePoint, ...]  #: Ascending by step.


def paced(db: Connection, job: str) -> Iterator[TrialPace]:
    """Yield the newest TRIALS_MAX trials that have reported a step, in ascending order of their numbers."""
    t = trials.c
    newest = select(t.trial, t.config, t.state).where(t.job == job, t.steps > 0)
    rows = db.execute(newest.order_by(t.number.desc()).limit(TRIALS_MAX)).all()[::-1]
    for first in range(0, len(rows), TRIALS_PAGE):
        page = {row.trial: row for row in rows[first : first + TRIALS_PAGE]}
        for trial, points in _points(db, job, list(page)):
            row = page[trial]
            yield TrialPace(trial, json.loads(row.config), row.state, points)


def _points(db: Connection, job: str, names: Sequence[str]) -> Iterator[tuple[str, tuple[TimePoint, ...]]]:
    r = reports.c
    ends = (
        select(r.trial, func.min(r.step).label("low"), func.max(r.step).label("high"))
        .where(r.job == job, r.trial.in_(names))
        .group_by(r.trial)
        .subquery()
    )
    e = ends.c
    kept = or_(r.step.in_(THINNED_STEPS), r.step == e.low, r.step == e.high)
    query = (
        select(r.trial, r.step, r.value, r.duration_ns)
        .join(ends, and_(r.trial == e.trial))
        .where(r.job == job, kept)
        .order_by(r.trial, r.step)
    )
    for trial, group in groupby(db.execute(query).all(), key=lambda row: str(row.trial)):
        yield trial, tuple(TimePoint(row.step, row.value, row.duration_ns) for row in group)


@dataclass(frozen=True, slots=True, eq=False)  # equal only to itself, so that caches can use it as a key
class History:
    """The trials of a job with their thinned learning curves, and the job's ended attempts, both oldest first."""

    trials: tuple[TrialPace, ...]
    attempts: tuple[AttemptRow, ...]
    saves: tuple[int | None, ...]  #: The checkpoints that each attempt saved. None if this was not measured.


class Histories:
    """The histories of earlier jobs that were requested last, at most `HISTORIES_KEPT`. Thread-safe.

    Each submission of a trainable with a small budget reads the same few jobs. Reading them takes most of the time of such a submission.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Version, History]] = OrderedDict()

    def kept(self, db: Connection, ids: Sequence[str]) -> dict[str, History]:
        """Return, by job, the histories that are kept and still current. This takes one short query."""
        versions = job_summaries.versions(db, ids)
        unchanged = dict[str, History]()
        with self._lock:
            for job in ids:
                version, history = self._kept.get(job, (None, None))
                if history is not None and version == versions.get(job):
                    self._kept.move_to_end(job)
                    unchanged[job] = history
        return unchanged

    def read(self, db: Connection, job: str, project: str) -> History:
        """Read the history of a job, and keep it. This can take a tenth of a second.

        Raises:
            NotFound: The project has no such job.
        """
        version = job_summaries.version(db, job, project)
        ended = attempt_rows.newest_ended(db, job, ATTEMPTS_MAX)
        saves = tuple(None if usage is None else usage.saves for _, usage in ended)
        history = History(tuple(paced(db, job)), tuple(row for row, _ in ended), saves)
        with self._lock:
            self._kept[job] = version, history
            self._kept.move_to_end(job)
            while len(self._kept) > HISTORIES_KEPT:
                self._kept.popitem(last=False)
        return history
