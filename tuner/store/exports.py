"""The exports of jobs: the request, the state and the result of each.

A request queues an export, and the leader submits it to Ray, where it runs in a process of its own. This process records the start and
the end of the export. If the process dies, the leader records the end. Each update requires a certain state, so that only the first of
two competing updates takes effect.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Select, func, insert, select, update

from tuner.database.codec import decode, encode
from tuner.database.tables import exports
from tuner.domain.errors import NotFound
from tuner.domain.ids import export_id, hold_id
from tuner.domain.money import Cost, Money, Rate
from tuner.domain.offer import Offer
from tuner.domain.text import storable
from tuner.domain.time import NS, Instant

ExportState = Literal["queued", "running", "succeeded", "failed"]
# The shortest and the longest lease of an export. Importing PyTorch and tracing a small module take half of the shortest one.
LEAST_NS, MOST_NS = 30 * NS, 3600 * NS
LIVE: tuple[ExportState, ...] = ("queued", "running")
CODE_CHARACTERS = 40  # the size of the column `code`


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """What was requested of an export: the formats, what it may cost, and how much worse the metric of an exported file may be."""

    formats: tuple[str, ...]
    max_cost: Money
    #: A variant is delivered only if its metric is worse by at most this amount. None means no limit.
    max_drop: float | None

    def lease_ns(self, rate: Rate, left: Cost) -> int:
        """Return how long the export may use a machine, in nanoseconds, at most `MOST_NS`.

        Both `max_cost` and the rest of the budget (`left`) must be enough to pay for this time.
        """
        return min(rate.affords_ns(Cost(min(left.usd, self.max_cost), left.gpu_ms)), MOST_NS)


@dataclass(frozen=True, slots=True)
class ExportRow:
    """An export of a job."""

    job: str
    id: str
    project: str
    trial: str
    step: int  #: The step of the exported checkpoint.
    attempt: int  #: The attempt that saved the checkpoint.
    spec: ExportSpec
    state: ExportState
    code: (
        str | None
    )  #: Why the export failed, or why variants are missing. None if it did not fail and all variants exist.
    detail: str
    offer: Offer | None  #: The offer of the machine that the export runs on. None until it has a machine.
    result: Mapping[str, Any]  #: `metric`, `threads` and `variants`. Empty until the export has ended.
    created_at: Instant
    submitted_at: Instant | None
    heartbeat_at: Instant | None
    started_at: Instant | None
    ended_at: Instant | None

    @property
    def submission_id(self) -> str:
        """The id of the Ray Job that runs the export.

        The export's own id is not enough. It is used again after a restore if the backup lacks the export, and Ray submits each id once.
        """
        return f"{self.job}-{self.id}-{self.created_at // NS}"

    @property
    def hold(self) -> str:
        return hold_id(self.job, self.id, 1, 1)


def add(
    db: Connection,
    project: str,
    job: str,
    *,
    trial: str,
    step: int,
    attempt: int,
    spec: ExportSpec,
    at: Instant,
) -> ExportRow:
    """Queue an export of a checkpoint.

    Call `jobs.change_alone` first, because the new id is derived from the number of the job's exports.
    """
    number = int(db.execute(select(func.count()).where(exports.c.job == job)).scalar_one()) + 1
    wanted = {"formats": spec.formats, "max_cost": spec.max_cost.micro_usd, "max_drop": spec.max_drop}
    new = {"job": job, "export": export_id(number), "project": project, "trial": trial, "step": step}
    new |= {
        "attempt": attempt,
        "wanted": json.dumps(wanted),
        "state": "queued",
        "detail": "",
        "created_at": at,
    }
    db.execute(insert(exports).values(**new))
    return get(db, job, export_id(number))


def get(db: Connection, job: str, export: str) -> ExportRow:
    """Return an export.

    Raises:
        NotFound: The job has no such export.
    """
    row = db.execute(select(exports).where(exports.c.job == job, exports.c.export == export)).one_or_none()
    if row is None:
        raise NotFound(f"{job} has no export {export!r}")
    return _row(row)


def of_job(db: Connection, job: str) -> list[ExportRow]:
    """Return the exports of a job, newest first."""
    return of_jobs(db, [job])


def of_jobs(db: Connection, names: Collection[str]) -> list[ExportRow]:
    """Return the exports of the jobs with these ids, newest first within each job."""
    query = select(exports).where(exports.c.job.in_(names)).order_by(exports.c.job, exports.c.export.desc())
    return [_row(row) for row in db.execute(query)]


def count_of(job: Any) -> Select[int]:
    """Return a query for the number of successful exports of a job. `job` is the id of the job, or a column with the id."""
    return select(func.count()).where(exports.c.job == job, exports.c.state == "succeeded")


def live(db: Connection) -> list[ExportRow]:
    """Return all unfinished exports of all jobs, oldest first."""
    query = select(exports).where(exports.c.state.in_(LIVE)).order_by(exports.c.created_at)
    return [_row(row) for row in db.execute(query)]


def last_submissions(db: Connection) -> dict[str, Instant]:
    """Return when the last export of each project was submitted. A project without a submitted export is left out."""
    e = exports.c
    query = select(e.project, func.max(e.submitted_at)).where(e.submitted_at.is_not(None)).group_by(e.project)
    return {project: Instant(at) for project, at in db.execute(query)}


def live_of(db: Connection, job: str) -> ExportRow | None:
    """Return the job's unfinished export, or None if all its exports have ended. A job has at most one unfinished export."""
    return next((row for row in of_job(db, job) if row.state in LIVE), None)


def submitted(db: Connection, row: ExportRow, at: Instant) -> None:
    """Record that the export was submitted to Ray."""
    _change(db, row, LIVE, submitted_at=at)


def record_heartbeat(db: Connection, row: ExportRow, at: Instant) -> bool:
    """Record a heartbeat of the export's process. Return False if the export has ended."""
    return _change(db, row, LIVE, heartbeat_at=at)


def start(db: Connection, row: ExportRow, offer: Offer, at: Instant) -> bool:
    """Record that a queued export now runs, on a machine of this offer. Return False if the export is not queued any more."""
    return _change(db, row, ("queued",), state="running", offer=encode(offer), started_at=at, heartbeat_at=at)


def end(
    db: Connection,
    row: ExportRow,
    state: Literal["succeeded", "failed"],
    at: Instant,
    *,
    code: str | None = None,
    detail: str = "",
    result: Mapping[str, Any] | None = None,
) -> bool:
    """End an export. If it has already ended, change nothing and return False.

    `code`, `detail` and `result` may contain text of user code, so characters that databases reject are replaced.
    """
    values = {
        "code": None if code is None else storable(code, CODE_CHARACTERS),
        "detail": storable(detail),
        "result": None if result is None else storable(json.dumps(result, ensure_ascii=False)),
    }
    return _change(db, row, LIVE, state=state, ended_at=at, **values)


def cancel(db: Connection, row: ExportRow, at: Instant, detail: str) -> bool:
    """End a queued export, for the reason that `detail` says. Return False if the export is not queued any more.

    A running export is left unchanged: it has a hold, which only its process or the leader settles.
    """
    return _change(db, row, ("queued",), state="failed", ended_at=at, code="cancelled", detail=detail)


def forget_files(db: Connection, job: str, export: str) -> None:
    """Record in the export's result that its files were deleted. Do nothing if the job has no such export."""
    e = exports.c
    mine = (e.job == job) & (e.export == export)
    for text in db.execute(select(e.result).where(mine, e.result.is_not(None))).scalars():
        result = json.loads(text)
        for variant in result.get("variants", ()):
            if variant["file"] is not None:
                variant |= {
                    "file": None,
                    "code": "deleted",
                    "detail": "the file of this variant was deleted; export again",
                }
        db.execute(update(exports).where(mine).values(result=json.dumps(result)))


def _change(db: Connection, row: ExportRow, among: tuple[ExportState, ...], **values: object) -> bool:
    e = exports.c
    mine = (e.job == row.job) & (e.export == row.id) & e.state.in_(among)
    return db.execute(update(exports).where(mine).values(**values)).rowcount == 1


def _row(row: Any) -> ExportRow:
    columns = dict(row._mapping)
    wanted = json.loads(columns.pop("wanted"))
    columns["id"] = columns.pop("export")
    columns["spec"] = ExportSpec(tuple(wanted["formats"]), Money(wanted["max_cost"]), wanted["max_drop"])
    columns["offer"] = None if row.offer is None else decode(row.offer)
    columns["result"] = {} if row.result is None else json.loads(row.result)
    return ExportRow(**columns)
