"""Write and read the audit log of the changes that users requested.

An entry is written in the same transaction as its change, so that neither exists without the other.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from tuner.database.database import Connection
from tuner.domain.budget import Budget, Quota
from tuner.domain.money import MS_PER_HOUR
from tuner.domain.shared_budget import PPM, SharedBudget
from tuner.domain.time import NS
from tuner.service.bootstrap import Service
from tuner.store import audit_log
from tuner.store.audit_log import REMOVAL as REMOVAL
from tuner.store.audit_log import AuditLogEntry, Facts
from tuner.store.audit_log import EntryFilter as EntryFilter
from tuner.store.jobs import JobRow


def note(
    db: Connection,
    service: Service,
    action: str,
    target: str,
    *,
    before: Facts | None = None,
    after: Facts | None = None,
) -> None:
    """Add an entry to the audit log, in the transaction `db` of the change.

    Args:
        action: The kind of change, such as `job.pause`.
        target: The id of the changed job, or the name of another changed object.
        before: Facts before the change; None for a new object.
        after: Facts after the change; None for a removed object.
    """
    actor = service.actor
    entry = AuditLogEntry(
        service.project, service.now(), actor.user, actor.key, actor.request, action, target, before, after
    )
    audit_log.add(db, entry)


def page(service: Service, only: EntryFilter, *, before: int | None, limit: int) -> Sequence[AuditLogEntry]:
    """Return a page of the project's entries, newest first.

    Args:
        only: The filter that the entries must match.
        before: Sequence number of the last entry of the previous page. None for the first page.
    """
    with service.database.read() as db:
        return audit_log.page(db, service.project, only, before=before, limit=limit)


# The facts of changed objects that entries record


def of_job(row: JobRow) -> dict[str, Any]:
    """Return the facts about a job that a request can change."""
    return {
        "state": row.state,
        "control_request": row.control_request,
        "budget": of_budget(row.budget),
        "tags": dict(row.tags),
        "priority": row.priority,
        "max_concurrent_trials": row.max_concurrent_trials,
    }


def of_budget(budget: Budget) -> dict[str, Any]:
    return {
        "usd": None if budget.usd is None else budget.usd.usd,
        "gpu_hours": _hours(budget.gpu_ms),
        "wall_clock_seconds": None if budget.wall_clock_ns is None else budget.wall_clock_ns / NS,
        "trials": budget.trials,
        "on_exhausted": budget.on_exhausted,
    }


def of_shared_budget(budget: SharedBudget) -> dict[str, Any]:
    """Return the facts about a shared budget.

    Only the host of each alert's webhook is included, because the rest of the webhook's URL may be secret.
    """
    return {
        "usd": None if budget.usd is None else budget.usd.usd,
        "gpu_hours": _hours(budget.gpu_ms),
        "match": dict(budget.match),
        "period": budget.period,
        "timezone": budget.timezone,
        "parent": budget.parent,
        "alerts": [
            {"at": alert.at_ppm / PPM, "host": urlsplit(alert.url).hostname} for alert in budget.alerts
        ],
    }


def of_quota(quota: Quota, money: SharedBudget | None) -> dict[str, Any]:
    return {
        "usd": None if money is None or money.usd is None else money.usd.usd,
        "gpu_hours": None if money is None else _hours(money.gpu_ms),
        "period": None if money is None else money.period,
        "concurrent_jobs": quota.concurrent_jobs,
        "concurrent_trials": quota.concurrent_trials,
    }


def _hours(gpu_ms: int | None) -> float | None:
    return None if gpu_ms is None else round(gpu_ms / MS_PER_HOUR, 9)
