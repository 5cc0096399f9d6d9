"""Routes for the caller, projects, users and members."""

from fastapi import APIRouter, Response

from tuner.api import serialize
from tuner.api.deps import Limit, Svc, cursor_of, read_cursor
from tuner.schemas import access as wire
from tuner.service import access

router = APIRouter(tags=["access"])


@router.get("/whoami")
def get_whoami(service: Svc) -> wire.WhoAmI:
    """Return the user, the project and the role of the key that was sent."""
    return serialize.whoami_of(service.actor, access.own(service))


@router.get("/projects")
def list_projects(service: Svc, limit: Limit = 50, cursor: str | None = None) -> wire.ProjectPage:
    """List projects by name. The operator sees all projects, other users the projects of which they are members."""
    found = access.projects(service, after=_after(cursor), limit=limit + 1)
    more = _more([row.name for row in found], limit)
    return wire.ProjectPage(items=[serialize.project_of(row) for row in found[:limit]], next_cursor=more)


@router.post("/projects", status_code=201)
def create_project(body: wire.ProjectRequest, response: Response, service: Svc) -> wire.Project:
    """Create a project. Its jobs, budgets, members and keys are visible only within it.

    The operator works in the project by sending the header `Tuner-Project`.
    """
    row = access.add_project(service, body.name)
    response.headers["Location"] = f"/v1/projects/{row.name}"
    return serialize.project_of(row)


@router.get("/projects/{project}")
def get_project(project: str, service: Svc) -> wire.Project:
    """Return a project."""
    return serialize.project_of(access.project(service, project))


@router.get("/users")
def list_users(service: Svc, limit: Limit = 50, cursor: str | None = None) -> wire.UserPage:
    """List the users of all projects by name."""
    found = access.users(service, after=_after(cursor), limit=limit + 1)
    more = _more([row.name for row in found], limit)
    return wire.UserPage(items=[serialize.user_of(row) for row in found[:limit]], next_cursor=more)


@router.patch("/users/{user}")
def patch_user(user: str, body: wire.UserPatch, service: Svc) -> wire.User:
    """Disable a user, or enable the user again. All keys of a disabled user are refused at once, in every project."""
    return serialize.user_of(access.disable_user(service, user, disabled=body.disabled))


@router.get("/members")
def list_members(service: Svc, limit: Limit = 50, cursor: str | None = None) -> wire.MemberPage:
    """List the members of the project by name."""
    found = access.members(service, after=_after(cursor), limit=limit + 1)
    more = _more([row.user for row in found], limit)
    return wire.MemberPage(
        items=[serialize.member_of(row, service.actor) for row in found[:limit]], next_cursor=more
    )


@router.put("/members/{user}", status_code=200, responses={201: {"model": wire.Member}})
def put_member(user: str, body: wire.MemberRequest, response: Response, service: Svc) -> wire.Member:
    """Add a user to the project (201), or change the role of a member (200). A new role applies from the next request."""
    row, is_new = access.put_member(service, user, body.role)
    response.status_code = 201 if is_new else 200
    return serialize.member_of(row, service.actor)


@router.delete("/members/{user}", status_code=204)
def delete_member(user: str, service: Svc) -> None:
    """Remove a member and revoke all their keys in the project. Even the last admin can be removed, because the operator can add
    another.
    """
    access.remove_member(service, user)


def _after(cursor: str | None) -> str:
    place = read_cursor(cursor, str)
    return "" if place is None else str(place[0])


def _more(names: list[str], limit: int) -> str | None:
    return cursor_of(names[limit - 1]) if len(names) > limit else None
