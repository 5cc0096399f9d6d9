"""Create, rotate and revoke API keys of users. The complete key is returned only when it is created."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from string import ascii_lowercase, digits

from tuner.domain.access import (
    KeyText,
    key_name_fault,
    key_text,
    life_fault,
    overlap_fault,
)
from tuner.domain.errors import Conflict, Fault, Invalid, NotFound
from tuner.domain.time import Instant, rfc3339
from tuner.service import audit_log
from tuner.service.bootstrap import Service
from tuner.store import access
from tuner.store.access import KeyRow as KeyRow
from tuner.store.database import Connection

NEAR = 500  # most members that are compared with a mistyped name, to suggest one


@dataclass(frozen=True)
class KeyView:
    """A key as it is shown to users."""

    row: KeyRow
    state: str
    secret: str | None = None  #: The complete key. Set only in the answer that creates it.


def keys(service: Service, *, before: tuple[int, str] | None, limit: int) -> Sequence[KeyView]:
    """Return a page of keys, newest first. Admins get all keys of the project; other users get their own."""
    with service.database.read() as db:
        found = access.page_of_keys(db, service.project, user=_whose(service), before=before, limit=limit)
    return [KeyView(row, state_of(row, service.now())) for row in found]


def own(service: Service) -> KeyRow | None:
    """Return the user's key that authenticated this request, or None if it was the service's own key."""
    if not service.actor.key:
        return None
    with service.database.read() as db:
        return access.key(db, service.project, service.actor.key, user=service.actor.user)


def make(service: Service, user: str, name: str, life_ns: int) -> KeyView:
    """Create a key for a member of the project.

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
            raise Conflict(f"{user} is disabled: the operator can change that, with PATCH /v1/users/{user}")
        made = _add(db, service, user, name, life_ns)
        audit_log.note(db, service, "key.make", made.row.id, after=_facts(made.row))
        return made


def rotate(service: Service, key: str, overlap_ns: int) -> KeyView:
    """Replace a key with a new one of the same lifetime. The old key stays valid for the overlap.

    Raises:
        NotFound: There is no such key that the user may change.
        Invalid: The overlap is wrong.
        Conflict: The key has ended or was rotated already.
    """
    if (fault := overlap_fault(overlap_ns)) is not None:
        raise Invalid(fault)
    with service.database.write("key.rotate") as db:
        row = access.key(db, service.project, key, user=_whose(service), alone=True)
        now = service.now()
        if row.revoked_at is not None or row.expires_at <= now:
            raise Conflict(f"{key} has ended: an admin of the project can make another, with POST /v1/keys")
        if row.replaced_by is not None:
            raise Conflict(
                f"{key} was replaced by {row.replaced_by}, and ends at {rfc3339(row.expires_at)}: rotate that"
            )
        found = _add(db, service, row.user, row.name, row.expires_at - row.created_at)
        access.replace_key(db, key, found.row.id, Instant(min(row.expires_at, now + overlap_ns)))
        after = {**_facts(found.row), "key": found.row.id}
        audit_log.note(db, service, "key.rotate", key, before=_facts(row), after=after)
        return found


def revoke(service: Service, key: str) -> None:
    """Revoke a key at once.

    Revoking it again changes nothing. Raise NotFound if there is no such key that the user may change.
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
    """Return the user whose keys may be seen and changed, or None for all users."""
    return None if service.actor.may("admin") else service.actor.user


def _add(db: Connection, service: Service, user: str, name: str, life_ns: int) -> KeyView:
    text, now = _new(db), service.now()
    row = KeyRow(text.id, service.project, user, name, text.sha256, now, Instant(now + life_ns))
    access.add_key(db, row)
    return KeyView(row, "active", text.text)


def _new(db: Connection) -> KeyText:
    while True:
        id_ = "tnr_" + "".join(secrets.choice(ascii_lowercase + digits) for _ in range(8))
        if not access.has_key(db, id_):
            return key_text(id_, secrets.token_urlsafe(32))


def _no_member(db: Connection, project: str, user: str) -> Fault:
    there = [one.user for one in access.page_of_members(db, project, after="", limit=NEAR)]
    near = get_close_matches(user, there, 3)
    said = f"the nearest: {', '.join(near)}" if near else f"make them one first, with PUT /v1/members/{user}"
    return Fault("/user", f"{user!r} is no member of {project}; {said}")
