"""Who changed what."""

from typing import Any

from tuner.schemas.base import Answer


class AuditEntry(Answer):
    """`user` is `operator` where the service's own key was used, `key` the id of a user's. `request` is the `X-Request-Id` of the
    answer. `before` is null for what was made, `after` for what was removed."""

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
