"""Answers about projects, users, members and keys."""

from tuner.domain.access import Actor
from tuner.domain.time import Instant, rfc3339
from tuner.schemas import access as show
from tuner.service.keys import KeyRow, KeyView
from tuner.service.people import MemberRow, ProjectRow, UserRow


def whoami_of(actor: Actor, row: KeyRow | None) -> show.WhoAmI:
    return show.WhoAmI(
        user=actor.user,
        project=actor.project,
        role=actor.role,
        key=actor.key or None,
        key_expires_at=None if row is None else rfc3339(row.expires_at),
    )


def project_of(row: ProjectRow) -> show.Project:
    return show.Project(name=row.name, created_at=rfc3339(row.created_at))


def user_of(row: UserRow) -> show.User:
    return show.User(
        name=row.name,
        created_at=rfc3339(row.created_at),
        disabled=row.disabled_at is not None,
        disabled_at=_time(row.disabled_at),
    )


def member_of(row: MemberRow, actor: Actor) -> show.Member:
    """Return the member. `disabled` is None unless the caller is the operator, because only the operator manages users."""
    disabled = row.disabled if actor.is_operator else None
    return show.Member(user=row.user, role=row.role, since=rfc3339(row.since), disabled=disabled)


def key_of(view: KeyView) -> show.Key:
    row = view.row
    return show.Key(
        id=row.id,
        user=row.user,
        name=row.name,
        state=view.state,
        created_at=rfc3339(row.created_at),
        expires_at=rfc3339(row.expires_at),
        revoked_at=_time(row.revoked_at),
        replaced_by=row.replaced_by,
        secret=view.secret,
    )


def _time(at: Instant | None) -> str | None:
    return None if at is None else rfc3339(at)
