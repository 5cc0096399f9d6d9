"""Create, list and change projects, users and members. Functions that create or change something return the new record."""

from collections.abc import Sequence
from typing import cast

from tuner.domain.access import MemberRole, project_fault, role_fault, user_fault
from tuner.domain.errors import Invalid, NotFound
from tuner.service import audit_log
from tuner.service.bootstrap import Service
from tuner.store import access
from tuner.store.access import MemberRow as MemberRow
from tuner.store.access import ProjectRow as ProjectRow
from tuner.store.access import UserRow as UserRow


def projects(service: Service, *, after: str, limit: int) -> Sequence[ProjectRow]:
    """Return a page of projects. The operator gets all projects; other users get those that they are members of."""
    with service.database.read() as db:
        if service.actor.is_operator:
            return access.page_of_projects(db, after=after, limit=limit)
        return [one for one in [access.project(db, service.project)] if one.name > after]


def project(service: Service, name: str) -> ProjectRow:
    """Return a project. Raise NotFound if there is none, or if the user is not a member of it."""
    if not service.actor.is_operator and name != service.project:
        raise NotFound(f"there is no project {name!r}")
    with service.database.read() as db:
        return access.project(db, name)


def add_project(service: Service, name: str) -> ProjectRow:
    """Create a project. Raise Invalid for a wrong name, or Conflict if the project exists."""
    if (fault := project_fault(name)) is not None:
        raise Invalid(fault)
    with service.database.write("project.add") as db:
        made = access.add_project(db, name, service.now())
        audit_log.note(db, service, "project.add", name, after={"name": name})
        return made


def users(service: Service, *, after: str, limit: int) -> Sequence[UserRow]:
    """Return a page of the users of all projects."""
    with service.database.read() as db:
        return access.page_of_users(db, after=after, limit=limit)


def disable_user(service: Service, name: str, *, disabled: bool) -> UserRow:
    """Disable a user, so that all of the user's keys are refused, or enable the user again.

    Raises:
        NotFound: There is no such user.
    """
    with service.database.write("user.change") as db:
        before = access.user(db, name)
        access.set_disabled(db, name, service.now() if disabled else None)
        after = access.user(db, name)
        was, is_now = ({"disabled": one.disabled_at is not None} for one in (before, after))
        if was != is_now:
            audit_log.note(db, service, "user.change", name, before=was, after=is_now)
        return after


def members(service: Service, *, after: str, limit: int) -> Sequence[MemberRow]:
    """Return a page of the project's members."""
    with service.database.read() as db:
        return access.page_of_members(db, service.project, after=after, limit=limit)


def put_member(service: Service, name: str, role: str) -> tuple[MemberRow, bool]:
    """Give a user a role in the project. Return the member and whether it is new. A change takes effect at once.

    Raises:
        Invalid: The name or the role is wrong.
    """
    faults = [fault for fault in (user_fault(name), role_fault(role)) if fault is not None]
    if faults:
        raise Invalid(*faults)
    with service.database.write("member.put") as db:
        before = access.role_of(db, service.project, name)
        new = access.put_member(db, service.project, name, cast(MemberRole, role), service.now())
        was = None if before is None else {"role": before}
        if before != role:
            audit_log.note(db, service, "member.put", name, before=was, after={"role": role})
        return access.member(db, service.project, name), new


def remove_member(service: Service, name: str) -> None:
    """Remove a member and revoke all of the member's keys in the project.

    Raises:
        NotFound: There is no such member.
    """
    with service.database.write("member.remove") as db:
        before = access.member(db, service.project, name, alone=True)
        access.remove_member(db, service.project, name, service.now())
        audit_log.note(db, service, "member.remove", name, before={"role": before.role})
