"""Routes for the caller, projects, users and members."""

from fastapi import APIRouter, Response

from tuner.api.deps import Limit, Svc, page_of, read_cursor
from tuner.domain.access import Actor
from tuner.domain.time import rfc3339
from tuner.schemas import access as wire
from tuner.service import access
from tuner.service.access import MemberRow

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
    """Return the member. `disabled` is None unless the caller is the operator, because only the operator manages users."""
    disabled = row.disabled if actor.is_operator else None
    return wire.Member(user=row.user, role=row.role, since=rfc3339(row.since), disabled=disabled)
