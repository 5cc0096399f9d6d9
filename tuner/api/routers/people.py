"""Routes for the caller, projects, users, members, keys and the audit log."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from tuner.api.deps import Limit, Svc, duration_ns_of, page_of, read_cursor, time_and_id
from tuner.domain.access import Actor
from tuner.domain.time import rfc3339
from tuner.schemas import access as wire
from tuner.schemas.access import AuditPage
from tuner.service import access, audit_log
from tuner.service.access import MemberRow
from tuner.service.audit_log import EntryFilter
from tuner.service.spend import period_of

router = APIRouter(tags=["access"])


@router.get("/whoami")
def get_whoami(service: Svc) -> wire.WhoAmI:
    """Return the user, the project and the role of the key that was sent."""
    actor, key = service.actor, access.own(service)
    return wire.WhoAmI(
        user=actor.user,
        project=actor.project,
        role=actor.role,
        key=actor.key or None,
        key_expires_at=None if key is None else rfc3339(key.expires_at),
    )


@router.get("/projects")
def list_projects(service: Svc, limit: Limit = 50, cursor: str | None = None) -> wire.ProjectPage:
    """List projects by name. The operator sees all projects, other users the projects of which they are members."""
    rows = access.projects(service, after=_after(cursor), limit=limit + 1)
    return wire.ProjectPage.model_validate(page_of(rows, limit, lambda row: (row.name,)))


@router.post("/projects", status_code=201)
def create_project(body: wire.ProjectRequest, response: Response, service: Svc) -> wire.Project:
    """Create a project. Its jobs, budgets, members and keys are visible only within it.

    The operator works in the project by sending the header `Tuner-Project`.
    """
    row = access.add_project(service, body.name)
    response.headers["Location"] = f"/v1/projects/{row.name}"
    return wire.Project.model_validate(row)


@router.get("/projects/{project}")
def get_project(project: str, service: Svc) -> wire.Project:
    """Return a project."""
    return wire.Project.model_validate(access.project(service, project))


@router.get("/users")
def list_users(service: Svc, limit: Limit = 50, cursor: str | None = None) -> wire.UserPage:
    """List the users of all projects by name."""
    rows = access.users(service, after=_after(cursor), limit=limit + 1)
    return wire.UserPage.model_validate(page_of(rows, limit, lambda row: (row.name,)))


@router.patch("/users/{user}")
def patch_user(user: str, body: wire.UserPatch, service: Svc) -> wire.User:
    """Disable a user, or enable the user again. All keys of a disabled user are refused at once, in every project."""
    return wire.User.model_validate(access.disable_user(service, user, disabled=body.disabled))


@router.get("/members")
def list_members(service: Svc, limit: Limit = 50, cursor: str | None = None) -> wire.MemberPage:
    """List the members of the project by name."""
    rows = access.members(service, after=_after(cursor), limit=limit + 1)
    members = [_member(row, service.actor) for row in rows]
    return wire.MemberPage.model_validate(page_of(members, limit, lambda member: (member.user,)))


@router.put("/members/{user}", status_code=200, responses={201: {"model": wire.Member}})
def put_member(user: str, body: wire.MemberRequest, response: Response, service: Svc) -> wire.Member:
    """Add a user to the project (201), or change the role of a member (200). A new role applies from the next request."""
    row, is_new = access.put_member(service, user, body.role)
    response.status_code = 201 if is_new else 200
    return _member(row, service.actor)


@router.delete("/members/{user}", status_code=204)
def delete_member(user: str, service: Svc) -> None:
    """Remove a member and revoke all their keys in the project. Even the last admin can be removed, because the operator can add
    another.
    """
    access.remove_member(service, user)


def _after(cursor: str | None) -> str:
    place = read_cursor(cursor, str)
    return "" if place is None else str(place[0])


def _member(row: MemberRow, actor: Actor) -> wire.Member:
    """Convert a member. `disabled` is None unless the caller is the operator, because only the operator manages users."""
    disabled = row.disabled if actor.is_operator else None
    return wire.Member(user=row.user, role=row.role, since=rfc3339(row.since), disabled=disabled)


@router.get("/keys")
def list_keys(service: Svc, limit: Limit = 50, cursor: str | None = None) -> wire.KeyPage:
    """List keys, newest first. Admins see all keys of the project, other users their own. No answer contains a whole key."""
    views = access.keys(service, before=time_and_id(cursor), limit=limit + 1)
    return wire.KeyPage.model_validate(page_of(views, limit, lambda view: (view.row.created_at, view.row.id)))


@router.post("/keys", status_code=201)
def create_key(body: wire.KeyRequest, response: Response, service: Svc) -> wire.Key:
    """Create a key for a member of the project. The key has the member's role. Only this answer contains the whole key; it cannot be shown
    again.
    """
    view = access.make(service, body.user, body.name, duration_ns_of("/expires_in", body.expires_in))
    return _once(view, response)


@router.post("/keys/{key}/rotate", status_code=201)
def rotate_key(
    key: str, response: Response, service: Svc, body: wire.RotateRequest | None = None
) -> wire.Key:
    """Replace a key with a new one. Only this answer contains the whole new key. The old key stays valid for `overlap`. All users may
    rotate their own keys.
    """
    overlap_ns = duration_ns_of("/overlap", (body or wire.RotateRequest()).overlap)
    return _once(access.rotate(service, key, overlap_ns), response)


@router.delete("/keys/{key}", status_code=204)
def delete_key(key: str, service: Svc) -> None:
    """Revoke a key. The next request with it is refused. All users may revoke their own keys."""
    access.revoke(service, key)


def _once(view: access.KeyView, response: Response) -> wire.Key:
    response.headers["Cache-Control"] = "no-store"
    return wire.Key.model_validate(view)


Word = Annotated[str | None, Query(max_length=300)]


def _filter(
    user: Word = None,
    action: Word = None,
    target: Word = None,
    since: str | None = None,
    until: str | None = None,
) -> EntryFilter:
    period = period_of(since, until)
    return EntryFilter(user, action, target, period.since, period.until)


@router.get("/audit")
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
