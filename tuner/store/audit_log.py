"""Who changed what: added to in the transaction of each change, and read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select

from tuner.domain.time import Instant
from tuner.store.audit_log_tables import audit_log

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """`key` is the id of a user's key, empty for the service's own. `before` and `after`: of what was changed; None: it was not there,
    or is not any more."""

    project: str
    at: Instant
    user: str
    key: str
    request: str
    action: str
    target: str
    before: Facts | None = None
    after: Facts | None = None
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """None: any."""

    user: str | None = None
    action: str | None = None
    target: str | None = None
    since: Instant | None = None
    until: Instant | None = None


def add(db: Connection, entry: Entry) -> None:
    values = {name: getattr(entry, name) for name in Entry.__slots__ if name != "seq"}
    facts = {name: _text(values[name]) for name in ("before", "after")}
    db.execute(insert(audit_log), {**values, **facts})


def page(db: Connection, project: str, wanted: Wanted, *, before: int | None, limit: int) -> list[Entry]:
    """The newest first, from the entry before the `before`th on."""
    a = audit_log.c
    query = select(audit_log).where(a.project == project)
    for column, value in ((a.user, wanted.user), (a.action, wanted.action), (a.target, wanted.target)):
        if value is not None:
            query = query.where(column == value)
    if wanted.since is not None:
        query = query.where(a.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(a.at < wanted.until)
    if before is not None:
        query = query.where(a.seq < before)
    rows = db.execute(query.order_by(a.seq.desc()).limit(limit))
    found = (dict(row._mapping) for row in rows)
    return [Entry(**{**one, "before": _facts(one["before"]), "after": _facts(one["after"])}) for one in found]


def _text(facts: Facts | None) -> str | None:
    return None if facts is None else json.dumps(facts, sort_keys=True)


def _facts(text: str | None) -> Facts | None:
    found: Facts | None = None if text is None else json.loads(text)
    return found
