"""The route for the audit log."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from tuner.api.deps import Limit, Svc, page_of, read_cursor
from tuner.schemas.access import AuditPage
from tuner.service import audit_log
from tuner.service.audit_log import EntryFilter
from tuner.service.spend import between

router = APIRouter(prefix="/audit", tags=["access"])
Word = Annotated[str | None, Query(max_length=300)]


def _filter(
    user: Word = None,
    action: Word = None,
    target: Word = None,
    since: str | None = None,
    until: str | None = None,
) -> EntryFilter:
    return EntryFilter(user, action, target, *between(since, until, "UTC"))


@router.get("")
def list_audit(
    service: Svc,
    only: Annotated[EntryFilter, Depends(_filter)],
    limit: Limit = 50,
    cursor: str | None = None,
) -> AuditPage:
    """List all changes that users made in the project, newest first.

    Each entry names the user, the key, the time, the action, and the object before and after the change. `target` is a job's id or a
    name. `since` and `until` are dates in UTC, or times. Entries cannot be changed.
    """
    place = read_cursor(cursor, int)
    entries = audit_log.page(service, only, before=None if place is None else place[0], limit=limit + 1)
    return AuditPage.model_validate(page_of(entries, limit, lambda entry: (entry.seq,)))
