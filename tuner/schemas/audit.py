"""Models of the audit log."""

from typing import Any

from tuner.schemas.base import Answer


class AuditEntry(Answer):
    """One change that a user made.

    `user` is `operator` if the service's own key was used. `key` is the id of the user's key. `request` is the `X-Request-Id` of the
    answer. `before` is null for a created object, `after` for a removed one.
    """

    seq: int
    at: str
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
