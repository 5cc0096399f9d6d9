"""Manage keys, users, members and projects, and find out who sends a request.

Every request looks up its key in the database, so that revoking a key takes effect at once.
"""

import hmac
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from string import ascii_lowercase, digits
from typing import cast

from tuner.database.database import Connection
from tuner.domain.access import (
    DEFAULT_PROJECT,
    OPERATOR,
    Actor,
    MemberRole,
    is_like_a_key,
    key_name_fault,
    key_text,
    life_fault,
    overlap_fault,
    project_fault,
    read_key,
    role_fault,
    user_fault,
)
from tuner.domain.errors import Conflict, Fault, Forbidden, Invalid, NotFound, Unauthorized
from tuner.domain.text import nearest
from tuner.domain.time import Instant, rfc3339
from tuner.service import audit_log
from tuner.service.bootstrap import Service
from tuner.store import access
from tuner.store.access import Bearer, KeyRow, ProjectRow, UserRow
from tuner.store.access import MemberRow as MemberRow

NEAR = 500  # At most this many members are compared with a mistyped user name, to suggest similar names.


@dataclass(frozen=True)
class KeyView:
    """A user's key with its current state."""

    row: KeyRow
    state: str  #: `active`, `replaced`, `expired` or `revoked`.
    secret: str | None = None  #: The complete key. Set only in the answer to the request that creates it.


def keys(service: Service, *, before: tuple[int, str] | None, limit: int) -> Sequence[KeyView]:
    """Return a page of keys, newest first. Admins get all keys of the project; other users get their own.

    Args:
        before: Creation time and id of the last key of the previous page. None for the first page.
    """
    with service.database.read() as db:
        rows = access.page_of_keys(db, service.project, user=_whose(service), before=before, limit=limit)
    return [KeyView(row, state_of(row, service.now())) for row in rows]


def own(service: Service) -> KeyRow | None:
    """Return the user's key that authenticated this request.

    Return None for a request with the service's own key, because that key belongs to no user.
    """
    if not service.actor.key:
        return None
    with service.database.read() as db:
        return access.key(db, service.project, service.actor.key, user=service.actor.user)


def make(service: Service, user: str, name: str, life_ns: int) -> KeyView:
    """Create a key for a member of the project.

    Args:
        name: A label for the key.
        life_ns: How long the key is valid, in nanoseconds.

    Raises:
        Invalid: A value is wrong, or the user is not a member of the project.
        Conflict: The user is disabled.
    """
    faults = [fault for fault in (key_name_fault(name), life_fault(life_ns)) if fault is not None]
    if faults:
        raise Invalid(*faults)
    with service.database.write("key.make") as db:
        try:
            member = access.member(db, service.project, user, alone=True)
        except NotFound as error:
            raise Invalid(_no_member(db, service.project, user)) from error
        if member.disabled:
            raise Conflict(
                f"{user} is disabled; the operator can re-enable the user with PATCH /v1/users/{user}"
            )
        made = _add(db, service, user, name, life_ns)
        audit_log.note(db, service, "key.make", made.row.id, after=_facts(made.row))
        return made


def rotate(service: Service, key: str, overlap_ns: int) -> KeyView:
    """Replace a key with a new one of the same lifetime.

    Args:
        overlap_ns: How long the old key stays valid, in nanoseconds. The old key still expires at its own expiry time if that is earlier.

    Raises:
        NotFound: The key does not exist, or the user may not change it.
        Invalid: The overlap is out of range.
        Conflict: The key has expired, was revoked or has already been rotated.
    """
    if (fault := overlap_fault(overlap_ns)) is not None:
        raise Invalid(fault)
    with service.database.write("key.rotate") as db:
        owner = access.key(db, service.project, key, user=_whose(service)).user
        # A removal of the member locks the membership before it revokes the keys. It would otherwise miss the new key.
        with suppress(NotFound):  # The member was removed, so the key is revoked.
            access.member(db, service.project, owner, alone=True)
        row = access.key(db, service.project, key, user=_whose(service), alone=True)
        now = service.now()
        if row.revoked_at is not None or row.expires_at <= now:
            raise Conflict(
                f"{key} has expired or was revoked; an admin of the project can create a new key with POST /v1/keys"
            )
        if row.replaced_by is not None:
            raise Conflict(
                f"{key} was already replaced by {row.replaced_by} and remains valid until {rfc3339(row.expires_at)}; rotate the new key"
            )
        new_key = _add(db, service, row.user, row.name, row.expires_at - row.created_at)
        access.replace_key(db, key, new_key.row.id, Instant(min(row.expires_at, now + overlap_ns)))
        after = {**_facts(new_key.row), "key": new_key.row.id}
        audit_log.note(db, service, "key.rotate", key, before=_facts(row), after=after)
        return new_key


def revoke(service: Service, key: str) -> None:
    """Revoke a key at once. Revoking a revoked key changes nothing.

    Raises:
        NotFound: The key does not exist, or the user may not change it.
    """
    with service.database.write("key.revoke") as db:
        row = access.key(db, service.project, key, user=_whose(service), alone=True)
        access.revoke_key(db, key, service.now())
        if row.revoked_at is None:
            audit_log.note(db, service, "key.revoke", key, before=_facts(row))


def _facts(row: KeyRow) -> dict[str, str]:
    return {"user": row.user, "name": row.name, "expires_at": rfc3339(row.expires_at)}


def state_of(row: KeyRow, now: Instant) -> str:
    if row.revoked_at is not None:
        return "revoked"
    if row.expires_at <= now:
        return "expired" if row.replaced_by is None else "replaced"
    return "active" if row.replaced_by is None else "replaced"


def _whose(service: Service) -> str | None:
    """Return the user whose keys this request may see and change, or None if the request may change the keys of all users."""
    return None if service.actor.may("admin") else service.actor.user


def _add(db: Connection, service: Service, user: str, name: str, life_ns: int) -> KeyView:
    while access.has_key(
        db, id_ := "tnr_" + "".join(secrets.choice(ascii_lowercase + digits) for _ in range(8))
    ):
        pass
    text, now = key_text(id_, secrets.token_urlsafe(32)), service.now()
    row = KeyRow(text.id, service.project, user, name, text.sha256, now, Instant(now + life_ns))
    access.add_key(db, row)
    return KeyView(row, "active", text.text)


def _no_member(db: Connection, project: str, user: str) -> Fault:
    there = [member.user for member in access.page_of_members(db, project, after="", limit=NEAR)]
    near = nearest(user, there)
    suggestion = (
        f"the nearest: {', '.join(near)}" if near else f"add the user first with PUT /v1/members/{user}"
    )
    return Fault("/user", f"{user!r} is not a member of {project}; {suggestion}")


def projects(service: Service, *, after: str, limit: int) -> Sequence[ProjectRow]:
    """Return a page of projects, by name. The operator gets all projects; other users get the project of their key.

    Args:
        after: Name of the last project of the previous page. Empty for the first page.
    """
    with service.database.read() as db:
        if service.actor.is_operator:
            return access.page_of_projects(db, after=after, limit=limit)
        return [row for row in [access.project(db, service.project)] if row.name > after]


def project(service: Service, name: str) -> ProjectRow:
    """Return a project.

    Raises:
        NotFound: The project does not exist. For users other than the operator, also if it is not the project of their key.
    """
    if not service.actor.is_operator and name != service.project:
        raise NotFound(f"the project {name!r} does not exist")
    with service.database.read() as db:
        return access.project(db, name)


def add_project(service: Service, name: str) -> ProjectRow:
    """Create a project. Raise Invalid if the name is wrong, or Conflict if the project already exists."""
    if (fault := project_fault(name)) is not None:
        raise Invalid(fault)
    with service.database.write("project.add") as db:
        made = access.add_project(db, name, service.now())
        audit_log.note(db, service, "project.add", name, after={"name": name})
        return made


def users(service: Service, *, after: str, limit: int) -> Sequence[UserRow]:
    """Return a page of the users of all projects, by name, starting after the name `after`."""
    with service.database.read() as db:
        return access.page_of_users(db, after=after, limit=limit)


def disable_user(service: Service, name: str, *, disabled: bool) -> UserRow:
    """Disable a user, or enable a disabled user again. All keys of a disabled user are refused.

    Raises:
        NotFound: The user does not exist.
    """
    with service.database.write("user.change") as db:
        before = access.user(db, name)
        access.set_disabled(db, name, service.now() if disabled else None)
        after = access.user(db, name)
        was, is_now = ({"disabled": user_row.disabled_at is not None} for user_row in (before, after))
        if was != is_now:
            audit_log.note(db, service, "user.change", name, before=was, after=is_now)
        return after


def members(service: Service, *, after: str, limit: int) -> Sequence[MemberRow]:
    """Return a page of the project's members, by name, starting after the name `after`."""
    with service.database.read() as db:
        return access.page_of_members(db, service.project, after=after, limit=limit)


def put_member(service: Service, name: str, role: str) -> tuple[MemberRow, bool]:
    """Give a user a role in the project: add the user as a member, or change the member's role.

    A change takes effect at once.

    Returns:
        The member, and whether the user was not a member before.

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
        NotFound: The user is not a member of the project.
    """
    with service.database.write("member.remove") as db:
        before = access.member(db, service.project, name, alone=True)
        access.remove_member(db, service.project, name, service.now())
        audit_log.note(db, service, "member.remove", name, before={"role": before.role})


MISSING = "the request has no key: send the header Authorization: Bearer KEY with your key, or with the service's own key from $TUNER_HOME/api_key"
WRONG = (
    "the key is unknown: use a key that begins with tnr_, or the service's own key from $TUNER_HOME/api_key"
)
MISTYPED = "part of the key is missing or mistyped: copy it again"
ASK = "ask an admin of the project for a new key"


def is_operators(given: str, own: str) -> bool:
    """Return whether the given key is the service's own key.

    The comparison takes constant time, so that the time of an answer does not help to guess the key.
    """
    return hmac.compare_digest(given.encode(), own.encode())


def operator(service: Service, project: str | None) -> Actor:
    """Return the actor of a request that was sent with the service's own key.

    Args:
        project: The project that the request names. None means the default project.

    Raises:
        NotFound: The project does not exist.
    """
    if project is not None and project != DEFAULT_PROJECT:
        with service.database.read() as db:
            access.project(db, project)
    return Actor(OPERATOR, project or DEFAULT_PROJECT, "operator")


def user_of(service: Service, given: str, project: str | None = None) -> Actor:
    """Authenticate a request by a user's key and return its actor, who acts in the key's project.

    Args:
        given: The complete key.
        project: The project that the request names. None means the key's project.

    Raises:
        Unauthorized: The key is not valid.
        NotFound: The request names a project other than the key's. The error does not reveal whether that project exists.
    """
    parsed_key = read_key(given)
    if parsed_key is None:
        raise Unauthorized(MISTYPED if is_like_a_key(given) else WRONG)
    with service.database.read() as db:
        bearer = access.bearer(db, parsed_key.id)
    if bearer is None or not hmac.compare_digest(bearer.key.sha256, parsed_key.sha256):
        raise Unauthorized(WRONG)
    actor = _actor(service, bearer)
    if project is not None and project != actor.project:
        raise NotFound(f"the project {project!r} does not exist")
    return actor


def still(service: Service, actor: Actor) -> bool:
    """Return whether the actor's key is still valid in the actor's project.

    Return True for an actor without a user's key, such as the operator. Long requests, such as event streams, call this
    function repeatedly.
    """
    if not actor.key:
        return True
    try:
        return known(service, actor.key).project == actor.project
    except Unauthorized:
        return False


def known(service: Service, key: str) -> Actor:
    """Return the actor of a key whose secret was checked when a browser session or a long request began.

    Args:
        key: The id of the key.

    Raises:
        Unauthorized: The key is not valid any more.
    """
    with service.database.read() as db:
        bearer = access.bearer(db, key)
    if bearer is None:
        raise Unauthorized(WRONG)
    return _actor(service, bearer)


def refuse_others_than_operator(service: Service, actor: Actor, what: str) -> None:
    """Raise Forbidden if the actor may not open a page that shows the jobs of all projects.

    The operator always may. Other users may only if there is just one project.

    Args:
        what: Beginning of the error text, such as "this dashboard shows". The text continues with "the jobs of every project".
    """
    if actor.is_operator:
        return
    with service.database.read() as db:
        if shows_all(db, actor):
            return
    raise Forbidden(
        f"{what} the jobs of every project, which your key may not see; use the service's own key"
    )


def shows_all(db: Connection, actor: Actor) -> bool:
    """Return whether the actor may open pages that show the jobs of all projects.

    The operator always may. Other users may only if there is just one project.
    """
    return actor.is_operator or not access.has_several_projects(db)


def has_several_projects(service: Service) -> bool:
    with service.database.read() as db:
        return access.has_several_projects(db)


def _actor(service: Service, bearer: Bearer) -> Actor:
    """Return the actor of a key. Raise Unauthorized, with the reason, if the key is not valid any more."""
    key, now = bearer.key, service.now()
    if key.revoked_at is not None:
        raise Unauthorized(f"{key.id} was revoked at {rfc3339(key.revoked_at)}; {ASK}")
    if key.expires_at <= now:
        why = "expired" if key.replaced_by is None else f"was replaced by {key.replaced_by} and expired"
        raise Unauthorized(
            f"{key.id} {why} at {rfc3339(key.expires_at)}; {ASK if key.replaced_by is None else 'use the new key'}"
        )
    if bearer.disabled:
        raise Unauthorized(f"{key.user} is disabled; ask the operator of the service to re-enable the user")
    if bearer.role is None:
        raise Unauthorized(f"{key.user} is not a member of {key.project} any more; {ASK}")
    return Actor(key.user, key.project, bearer.role, key.id)
