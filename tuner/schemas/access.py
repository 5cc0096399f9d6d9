"""Models for projects, users, members, keys, sessions and the audit log."""

from typing import Any

from pydantic import AliasPath, BaseModel, Field

from tuner.schemas.base import Answer, Body, Time


class Session(BaseModel):
    expires_at: str


class AuditEntry(Answer):
    """One change that a user or the service made.

    `user` is `operator` if the service's own key was used, and `tuner` if the service made the change without a request. `key` is the id of
    the user's key; it is empty for `operator` and `tuner`. `request` is the `X-Request-Id` in the answer to the request that made the change.
    `before` and `after` describe the changed object. `before` is null if the object was created, and `after` is null if it was removed.
    """

    seq: int
    at: Time
    user: str
    key: str
    request: str
    action: str
    target: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class AuditPage(Answer):
    items: list[AuditEntry]
    next_cursor: str | None


class WhoAmI(Answer):
    """The user who sent the request, and the project and role that the user's key grants.

    `user` is `operator` for the service's own key. `role` is viewer, submitter, admin or operator. `key` is the id of the user's key; it is
    null for the operator, who uses the service's own key.
    """

    user: str
    project: str
    role: str
    key: str | None
    key_expires_at: str | None


class ProjectRequest(Body):
    name: str


class Project(Answer):
    name: str
    created_at: Time


class ProjectPage(Answer):
    items: list[Project]
    next_cursor: str | None = None


class UserPatch(Body):
    """Enable or disable a user. All keys of a disabled user are refused."""

    disabled: bool


class User(Answer):
    name: str
    created_at: Time
    disabled: bool
    disabled_at: Time | None


class UserPage(Answer):
    items: list[User]
    next_cursor: str | None = None


class MemberRequest(Body):
    """The new role of a member. A `viewer` can only read. A `submitter` can also submit and change jobs. An `admin` can also manage shared
    budgets, members and keys.
    """

    role: str


class Member(Answer):
    """A member of a project.

    `since` is when the user got their first role in the project. `disabled` says whether the user is disabled in all projects. Only the
    operator sees it; it is null for other callers, because they see only one project.
    """

    user: str
    role: str
    since: str
    disabled: bool | None


class MemberPage(Answer):
    items: list[Member]
    next_cursor: str | None = None


class KeyRequest(Body):
    """A new key for a member of the project.

    `name` describes the key's purpose. `expires_in` is a duration such as 90d, at most 366d.
    """

    user: str
    name: str
    expires_in: str = "90d"


class RotateRequest(Body):
    """How to replace a key. `overlap` is how long the old key stays valid, from 0s to 24h."""

    overlap: str = "1h"


class Key(Answer):
    """A user's key.

    `id` is the first part of the key. `state` is active, replaced, expired or revoked; a replaced key works until `expires_at`.
    `secret` is the whole key. Only the answer that creates the key contains it; it cannot be shown again.
    """

    id: str = Field(validation_alias=AliasPath("row", "id"))
    user: str = Field(validation_alias=AliasPath("row", "user"))
    name: str = Field(validation_alias=AliasPath("row", "name"))
    state: str
    created_at: Time = Field(validation_alias=AliasPath("row", "created_at"))
    expires_at: Time = Field(validation_alias=AliasPath("row", "expires_at"))
    revoked_at: Time | None = Field(validation_alias=AliasPath("row", "revoked_at"))
    replaced_by: str | None = Field(validation_alias=AliasPath("row", "replaced_by"))
    secret: str | None = None


class KeyPage(Answer):
    items: list[Key]
    next_cursor: str | None = None
