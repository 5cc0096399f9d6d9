"""The account, launch, newest event and newest removal of files of several jobs, in one query, and the version of a job's data."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, select

from tuner.database.tables import events, jobs, launches
from tuner.domain.errors import NotFound
from tuner.domain.ledger import Account
from tuner.ledger.ledger import AMOUNTS, account_of
from tuner.ledger.readable import accounts
from tuner.store import audit_log
from tuner.store.launches import Launch


@dataclass(frozen=True, slots=True, eq=False)
class JobSummary:
    """A job's account, launch, newest event and newest removal of files.

    Instances compare by identity. Reading an unchanged row again returns the same object while the row is cached.
    """

    account: Account
    launch: Launch | None
    #: Number of the newest event, or 0 if there is none. It changes whenever a trial or report is recorded.
    seq: int
    #: Number of the audit log's entry about the newest removal of the job's files, or 0 if there is none.
    removal: int


_LAUNCH = [column for column in launches.c if column.name not in ("job", "project")]
_NAMES = [column.name for column in _LAUNCH]
_SEQ = (
    select(func.max(events.c.seq)).where(events.c.job == accounts.c.job).correlate(accounts).scalar_subquery()
)
_REMOVAL = audit_log.newest_removal(accounts.c.project, accounts.c.job)
_COLUMNS = ["newest", "removal", *accounts.c.keys(), *_NAMES]
_QUERY = (
    select(_SEQ.label("newest"), _REMOVAL.label("removal"), accounts, *_LAUNCH)
    .outerjoin(launches, launches.c.job == accounts.c.job)
    .where(accounts.c.job.in_(bindparam("jobs", expanding=True)))
)


def of_jobs(db: Connection, names: Collection[str]) -> dict[str, JobSummary]:
    return {row.job: _summary(tuple(row)) for row in db.execute(_QUERY, {"jobs": list(names)}).all()}


@lru_cache(maxsize=4096)
def _summary(values: tuple[Any, ...]) -> JobSummary:
    """Convert a row to a `JobSummary`. Equal rows are converted once and cached, because clients request the same pages repeatedly."""
    row = dict(zip(_COLUMNS, values, strict=True))
    launch = None if row["epoch"] is None else Launch(row["job"], **{name: row[name] for name in _NAMES})
    account = account_of(*(row[name] for name in AMOUNTS))
    return JobSummary(account, launch, row["newest"] or 0, row["removal"])


_ALL_VERSIONS = select(
    jobs.c.id, jobs.c.state, func.coalesce(_SEQ, 0), _REMOVAL, *(accounts.c[name] for name in AMOUNTS)
).join(accounts, accounts.c.job == jobs.c.id)
_VERSION = _ALL_VERSIONS.where(jobs.c.id == bindparam("of"), jobs.c.project == bindparam("project"))
_VERSIONS = _ALL_VERSIONS.where(jobs.c.id.in_(bindparam("of", expanding=True)))


@dataclass(frozen=True)
class Version:
    """The version of a job's data. While it stays the same, the answers to queries about the job stay the same."""

    state: str
    #: The numbers of the job's newest event and of its newest removal of files, and the amounts of its account.
    numbers: tuple[int, ...]


def version(db: Connection, job: str, project: str) -> Version:
    """Return the current version of the job's data. This is a single short query, because many callers poll it.

    Raises:
        NotFound: The project has no such job.
    """
    row = db.execute(_VERSION, {"of": job, "project": project}).first()
    if row is None:
        raise NotFound(f"the job {job!r} does not exist")
    return _row_version(row)


def versions(db: Connection, ids: Sequence[str]) -> dict[str, Version]:
    """Return, by job, the current version of its data. Jobs that do not exist are left out. Their projects are not checked."""
    return {row.id: _row_version(row) for row in db.execute(_VERSIONS, {"of": ids}).all()}


def _row_version(row: Row[Any]) -> Version:
    return Version(row.state, tuple(map(int, row[2:])))
