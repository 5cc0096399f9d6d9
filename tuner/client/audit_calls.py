"""The call about who changed what."""

from typing import TYPE_CHECKING

from tuner.client.methods import series
from tuner.client.paging import pages
from tuner.client.steps import Series

if TYPE_CHECKING:  # loaded when it is asked for
    from tuner.schemas.audit import AuditEntry


class AuditCalls:
    url: str

    @series
    def audit(
        self,
        *,
        user: str | None = None,
        action: str | None = None,
        target: str | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int | None = None,
    ) -> Series["AuditEntry"]:
        """Every change that somebody asked for in the project, the newest first; at most `limit` where it is given. `action` is such as
        `job.pause`, `target` a job's id or a name; `since` and `until` are dates of UTC, or times."""
        from tuner.schemas.audit import AuditPage

        query = {"user": user, "action": action, "target": target, "since": since, "until": until}
        return pages(self.url, AuditPage, "/v1/audit", query, page=100, limit=limit)
