"""The audit log: who changed what. Each entry is added in the transaction of the change that it records."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, insert, select

from tuner.database.tables import audit_log
from tuner.domain.time import Instant

Facts = Mapping[str, Any]
REMOVAL = "artifacts.delete"  # the action of an entry that records the removal of a job's files


@dataclass(frozen=True, slots=True)
class AuditLogEntry:
    project: str
    at: Instant
    user: str
    key: str  #: Id of the user's API key. Empty for the service's own key.
    request: str
    action: str
    target: str
    before: Facts | None = None  #: The target before the change. None if it did not exist.
    after: Facts | None = None  #: The target after the change. None if it no longer exists.
    seq: int = 0


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Conditions that the entries of a listing must meet. A field that is None matches every entry."""

    user: str | None = None
    action: str | None = None
    target: str | None = None
    since: Instant | None = None
    until: Instant | None = None


def add(db: Connection, entry: AuditLogEntry) -> None:
    values = {name: getattr(entry, name) for name in AuditLogEntry.__slots__ if name != "seq"}
    facts = {name: _text(values[name]) for name in ("before", "after")}
    db.execute(insert(audit_log), {**values, **facts})


def page(
    db: Connection, project: str, only: EntryFilter, *, before: int | None, limit: int
) -> list[AuditLogEntry]:
    """Return up to `limit` entries of a project that match `only` and have a sequence number below `before`, newest first."""
    a = audit_log.c
    query = select(audit_log).where(a.project == project)
    for column, value in ((a.user, only.user), (a.action, only.action), (a.target, only.target)):
        if value is not None:
            query = query.where(column == value)
    if only.since is not None:
        query = query.where(a.at >= only.since)
    if only.until is not None:
        query = query.where(a.at < only.until)
    if before is not None:
        query = query.where(a.seq < before)
    rows = db.execute(query.order_by(a.seq.desc()).limit(limit))
    row_mappings = (dict(row._mapping) for row in rows)
    return [
        AuditLogEntry(**{**mapping, "before": _facts(mapping["before"]), "after": _facts(mapping["after"])})
        for mapping in row_mappings
    ]


def newest_removal(project: ColumnElement[str], job: ColumnElement[str]) -> ColumnElement[int]:
    """Return a subquery for the number of the job's newest entry about removed files, or 0 if there is none.

    Entries are never deleted, so the number still shows that files were removed when the storage has removed them.

    Args:
        project: The column of the outer query with the job's project.
        job: The column of the outer query with the job's id.
    """
    a = audit_log.c
    newest = select(func.max(a.seq)).where(a.project == project, a.target == job, a.action == REMOVAL)
    return func.coalesce(newest.scalar_subquery(), 0)


def _text(facts: Facts | None) -> str | None:
    return None if facts is None else json.dumps(facts, sort_keys=True)


def _facts(text: str | None) -> Facts | None:
    facts: Facts | None = None if text is None else json.loads(text)
    return facts
