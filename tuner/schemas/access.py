"""Who may do what: projects, users, members and keys."""

from tuner.schemas.base import Answer, Body


class WhoAmI(Answer):
    """`user` is `operator` for the service's own key. `role`: viewer, submitter, admin or operator. `key` is null for the operator,
    who has no other than the service's own."""

    user: str
    project: str
    role: str
    key: str | None
    key_expires_at: str | None


class ProjectRequest(Body):
    name: str


class Project(Answer):
    name: str
    created_at: str


class ProjectPage(Answer):
    items: list[Project]
    next_cursor: str | None = None


class UserPatch(Body):
    """All keys of a user who is disabled are refused."""

    disabled: bool


class User(Answer):
    name: str
    created_at: str
    disabled: bool
    disabled_at: str | None


class UserPage(Answer):
    items: list[User]
    next_cursor: str | None = None


class MemberRequest(Body):
    """`viewer` reads; `submitter` submits and changes jobs, too; `admin` has budgets above jobs, members and keys as well."""

    role: str


class Member(Answer):
    """A member of a project. `since` counts from the first role. `disabled` is null for everyone but the operator: a user is disabled
    in all projects, and an admin sees one project only."""

    user: str
    role: str
    since: str
    disabled: bool | None


class MemberPage(Answer):
    items: list[Member]
    next_cursor: str | None = None


class KeyRequest(Body):
    """For a member of the project. `name` says what it is for; `expires_in` such as 90d, at most 366d."""

    user: str
    name: str
    expires_in: str = "90d"


class RotateRequest(Body):
    """`overlap`: how long the key before goes on, from 0s to 24h."""

    overlap: str = "1h"


class Key(Answer):
    """`id` is what the key begins with. `state`: active, replaced, expired or revoked; one that is replaced goes on until `expires_at`.
    `secret`, the whole key, is in the answer that makes it, and never shown again."""

    id: str
    user: str
    name: str
    state: str
    created_at: str
    expires_at: str
    revoked_at: str | None
    replaced_by: str | None
    secret: str | None = None


class KeyPage(Answer):
    items: list[Key]
    next_cursor: str | None = None
