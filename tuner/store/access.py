"""Projects, users, members with their roles, and API keys. Only hashes of keys are stored."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Insert, Row, Select, delete, exists, func, insert, select, tuple_, update
from sqlalchemy.exc import IntegrityError

from tuner.database.tables import api_keys, members, projects, users
from tuner.domain.access import MemberRole
from tuner.domain.errors import Conflict, NotFound
from tuner.domain.time import Instant


@dataclass(frozen=True, slots=True)
class ProjectRow:
    name: str
    created_at: Instant


@dataclass(frozen=True, slots=True)
class UserRow:
    name: str
    created_at: Instant
    disabled_at: Instant | None

    @property
    def disabled(self) -> bool:
        return self.disabled_at is not None


@dataclass(frozen=True, slots=True)
class MemberRow:
    project: str
    user: str
    role: MemberRole
    since: Instant
    disabled: bool


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A stored API key. It contains the SHA-256 of the key's text, not the text itself."""

    id: str
    project: str
    user: str
    name: str
    sha256: str
    created_at: Instant
    expires_at: Instant
    revoked_at: Instant | None = None
    #: Id of the key that replaced this one in a rotation. This key stays valid until `expires_at`.
    replaced_by: str | None = None


@dataclass(frozen=True, slots=True)
class Bearer:
    """An API key with its user's current role in the key's project."""

    key: KeyRow
    role: MemberRole | None  #: None if the user is not a member.
    disabled: bool  #: Whether the user is disabled.


# Projects


def add_project(db: Connection, name: str, at: Instant) -> ProjectRow:
    """Create a project.

    Raises:
        Conflict: A project of this name already exists.
    """
    try:
        with db.begin_nested():
            db.execute(insert(projects).values(name=name, created_at=at))
    except IntegrityError as error:
        raise Conflict(f"the project {name!r} already exists") from error
    return ProjectRow(name, at)


def project(db: Connection, name: str) -> ProjectRow:
    """Return the project, or raise NotFound."""
    row = db.execute(select(projects).where(projects.c.name == name)).first()
    if row is None:
        raise NotFound(f"the project {name!r} does not exist")
    return ProjectRow(**row._mapping)


def page_of_projects(db: Connection, *, after: str, limit: int) -> list[ProjectRow]:
    """Return up to `limit` projects whose name comes after `after`, sorted by name."""
    query = select(projects).where(projects.c.name > after).order_by(projects.c.name).limit(limit)
    return [ProjectRow(**row._mapping) for row in db.execute(query)]


def has_several_projects(db: Connection) -> bool:
    return len(db.execute(select(projects.c.name).limit(2)).all()) > 1


# Users and members


def page_of_users(db: Connection, *, after: str, limit: int) -> list[UserRow]:
    """Return up to `limit` users whose name comes after `after`, sorted by name."""
    query = select(users).where(users.c.name > after).order_by(users.c.name).limit(limit)
    return [UserRow(**row._mapping) for row in db.execute(query)]


def user(db: Connection, name: str) -> UserRow:
    """Return the user, or raise NotFound."""
    row = db.execute(select(users).where(users.c.name == name)).first()
    if row is None:
        raise NotFound(f"the user {name!r} does not exist")
    return UserRow(**row._mapping)


def set_disabled(db: Connection, name: str, at: Instant | None) -> None:
    """Disable the user from `at` on, or enable the user if `at` is None. A user who is already disabled keeps the earlier time."""
    since = at if at is None else func.coalesce(users.c.disabled_at, at)
    db.execute(update(users).where(users.c.name == name).values(disabled_at=since))


def page_of_members(db: Connection, project: str, *, after: str, limit: int) -> list[MemberRow]:
    """Return up to `limit` members of a project whose name comes after `after`, sorted by name."""
    m = members.c
    query = _members().where(m.project == project, m.user > after).order_by(m.user).limit(limit)
    return [_member(row) for row in db.execute(query)]


def member(db: Connection, project: str, name: str, *, alone: bool = False) -> MemberRow:
    """Return the user's membership in the project, or raise NotFound.

    Args:
        alone: Lock the membership until the transaction ends, so that no other transaction changes it meanwhile. SQLite
            needs no lock.
    """
    query = _members().where(members.c.project == project, members.c.user == name)
    row = db.execute(query.with_for_update(of=members) if alone else query).first()
    if row is None:
        raise NotFound(f"{name!r} is not a member of {project}")
    return _member(row)


def role_of(db: Connection, project: str, name: str) -> MemberRole | None:
    """Return the user's role in the project, or None if the user is not a member."""
    mine = (members.c.project == project) & (members.c.user == name)
    role: MemberRole | None = db.execute(select(members.c.role).where(mine)).scalar()
    return role


def put_member(db: Connection, project: str, name: str, role: MemberRole, at: Instant) -> bool:
    """Add a member to the project, or change the member's role. Return True if the member is new. A missing user is created."""
    m = members.c
    if not db.execute(select(exists().where(users.c.name == name))).scalar_one():
        _insert_unless_there(db, insert(users).values(name=name, created_at=at))
    mine = (m.project == project) & (m.user == name)
    if db.execute(update(members).where(mine).values(role=role)).rowcount:
        return False
    new = insert(members).values(project=project, user=name, role=role, since=at)
    if not _insert_unless_there(db, new):
        db.execute(update(members).where(mine).values(role=role))
        return False
    return True


def remove_member(db: Connection, project: str, name: str, at: Instant) -> None:
    """Remove a member and revoke all keys of the member in the project. A member who is added again needs new keys."""
    k = api_keys.c
    db.execute(delete(members).where(members.c.project == project, members.c.user == name))
    theirs = (k.project == project) & (k.user == name) & k.revoked_at.is_(None)
    db.execute(update(api_keys).where(theirs).values(revoked_at=at))


# Keys


def add_key(db: Connection, new: KeyRow) -> None:
    values = {name: getattr(new, name) for name in KeyRow.__slots__}
    db.execute(insert(api_keys).values(**values))


def has_key(db: Connection, id_: str) -> bool:
    return bool(db.execute(select(exists().where(api_keys.c.id == id_))).scalar_one())


def bearer(db: Connection, id_: str) -> Bearer | None:
    """Return the key with the current role of its user, or None if no key has this id."""
    k, m, u = api_keys.c, members.c, users.c
    query = (
        select(api_keys, m.role, u.disabled_at)
        .join(users, u.name == k.user)
        .outerjoin(members, (m.project == k.project) & (m.user == k.user))
        .where(k.id == id_)
    )
    row = db.execute(query).first()
    return None if row is None else Bearer(KeyRow(*row[:-2]), row.role, row.disabled_at is not None)


def key(db: Connection, project: str, id_: str, *, user: str | None, alone: bool = False) -> KeyRow:
    """Return the key with this id.

    Args:
        user: The user to whom the key must belong. None allows any user.
        alone: Lock the key's row, so that other changes of it wait until the transaction ends.

    Raises:
        NotFound: No key has this id, or the key belongs to another project or another user.
    """
    query = select(api_keys).where(api_keys.c.id == id_)
    row = db.execute(query.with_for_update() if alone else query).first()
    if row is None or row.project != project or (user is not None and row.user != user):
        raise NotFound(f"the key {id_!r} does not exist")
    return KeyRow(**row._mapping)


def page_of_keys(
    db: Connection, project: str, *, user: str | None, before: tuple[int, str] | None, limit: int
) -> list[KeyRow]:
    """Return one page of a project's keys, newest first.

    Args:
        user: Return only this user's keys. None returns those of all users.
        before: `(created_at, id)` of the last key of the previous page.
    """
    k = api_keys.c
    query = select(api_keys).where(k.project == project)
    if user is not None:
        query = query.where(k.user == user)
    if before is not None:
        query = query.where(tuple_(k.created_at, k.id) < before)
    rows = db.execute(query.order_by(k.created_at.desc(), k.id.desc()).limit(limit))
    return [KeyRow(**row._mapping) for row in rows]


def revoke_key(db: Connection, id_: str, at: Instant) -> None:
    """Revoke the key. A key that is already revoked keeps the earlier time."""
    k = api_keys.c
    db.execute(update(api_keys).where(k.id == id_).values(revoked_at=func.coalesce(k.revoked_at, at)))


def replace_key(db: Connection, id_: str, by: str, ends_at: Instant) -> None:
    db.execute(update(api_keys).where(api_keys.c.id == id_).values(replaced_by=by, expires_at=ends_at))


def expiring_keys(db: Connection, since: Instant, until: Instant) -> list[KeyRow]:
    """Return the keys of all projects that expire after `since` and not after `until`, the earliest first.

    Keys are left out if they were revoked or rotated, or if their user is disabled or no longer a member.
    """
    k, m, u = api_keys.c, members.c, users.c
    query = (
        select(api_keys)
        .join(users, u.name == k.user)
        .join(members, (m.project == k.project) & (m.user == k.user))
        .where(k.expires_at > since, k.expires_at <= until, k.revoked_at.is_(None), k.replaced_by.is_(None))
        .where(u.disabled_at.is_(None))
        .order_by(k.expires_at, k.id)
    )
    return [KeyRow(**row._mapping) for row in db.execute(query)]


def _members() -> Select[Any]:
    m = members.c
    return select(m.project, m.user, m.role, m.since, users.c.disabled_at).join(users, users.c.name == m.user)


def _insert_unless_there(db: Connection, statement: Insert) -> bool:
    try:
        with db.begin_nested():
            db.execute(statement)
    except IntegrityError:
        return False
    return True


def _member(row: Row[tuple[object, ...]]) -> MemberRow:
    return MemberRow(row.project, row.user, row.role, row.since, row.disabled_at is not None)
