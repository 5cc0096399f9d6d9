"""The call that lists the audit log."""

from typing import TYPE_CHECKING

from tuner.client.methods import series
from tuner.client.paging import pages
from tuner.client.steps import Series

if TYPE_CHECKING:  # imported by the call that needs it, so that importing the client stays fast
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
        """Yield the changes that users requested in the project, newest first.

        Args:
            user: Only changes by this user.
            action: Only this kind of change, such as `job.pause`.
            target: Only changes of this job, by its id, or of this object, by its name.
            since: A UTC date or a time at which the period begins.
            until: A UTC date or a time at which the period ends.
            limit: Yield at most this many entries.
        """
        from tuner.schemas.audit import AuditPage

        query = {"user": user, "action": action, "target": target, "since": since, "until": until}
        return pages(self.url, AuditPage, "/v1/audit", query, page=100, limit=limit)
