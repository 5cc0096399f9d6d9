"""All metric families of `/metrics`, with their types, labels, help texts and the sources of their values.

`table` generates the table in docs/metrics.md.
"""

from collections.abc import Callable
from typing import Literal

from tuner.api.family import Family, Values
from tuner.api.family import one as _one
from tuner.api.recorded import QUEUE_WAIT, RECORDED
from tuner.domain.time import NS, Instant
from tuner.service.service_health import ServiceHealth


def _at(at: Instant | None) -> Values:
    return _one(None if at is None else at / NS)


OfProcess = tuple[Family, Callable[[ServiceHealth], Values]]
OF_PROCESS: tuple[OfProcess, ...] = (
    (
        Family(
            "tuner_controller_last_pass_timestamp_seconds",
            "gauge",
            "Time of the controller's last pass as the leader",
        ),
        lambda v: _at(v.controller_at),
    ),
    (
        Family(
            "tuner_controller_leader",
            "gauge",
            "1 if this service is the leader, which launches and resumes jobs and sends webhooks; otherwise 0",
        ),
        lambda v: _one(None if v.leads is None else float(v.leads())),
    ),
    (
        Family("tuner_controller_failures_total", "counter", "Passes of the controller that failed"),
        lambda v: _one(v.counted("controller_failures")),
    ),
    (
        Family(
            "tuner_reconciler_last_pass_timestamp_seconds",
            "gauge",
            "Time of the shared-budget reconciler's last pass as the leader",
        ),
        lambda v: _at(v.reconciler_at),
    ),
    (
        Family(
            "tuner_reconciler_failures_total", "counter", "Passes of the shared-budget reconciler that failed"
        ),
        lambda v: _one(v.counted("reconciler_failures")),
    ),
    (
        Family("tuner_driver_launches_total", "counter", "Drivers launched"),
        lambda v: _one(v.counted("launches")),
    ),
    (
        Family("tuner_driver_launch_failures_total", "counter", "Launches that the cluster did not accept"),
        lambda v: _one(v.counted("launch_failures")),
    ),
    (
        Family(
            "tuner_driver_restarts_total", "counter", "Drivers that died and were replaced by another one"
        ),
        lambda v: _one(v.counted("driver_restarts")),
    ),
    (
        Family(
            "tuner_jobs_given_up_total",
            "counter",
            "Jobs that failed because their drivers died repeatedly",
        ),
        lambda v: _one(v.counted("jobs_given_up")),
    ),
    (
        Family(
            "tuner_webhook_tries_total", "counter", "Attempts to deliver a webhook, by outcome", ("outcome",)
        ),
        lambda v: {(what,): v.counted(_TRIES[what]) for what in _TRIES},
    ),
    (
        Family(
            "tuner_ledger_violations",
            "gauge",
            "Accounts that differed from their entries or exceeded their budgets when they were last checked",
        ),
        lambda v: _one(len(v.violations)),
    ),
    (
        Family("tuner_ledger_checks_total", "counter", "Accounts recomputed from their entries"),
        lambda v: _one(v.counted("ledger_checks")),
    ),
    (
        Family(
            "tuner_ledger_checked_timestamp_seconds",
            "gauge",
            "Time at which the last check of all accounts was completed",
        ),
        lambda v: _at(v.checked_at),
    ),
    (
        Family(
            "tuner_storage_up",
            "gauge",
            "1 if a small file could be written to the checkpoint storage and read back at the last check; otherwise 0",
        ),
        lambda v: _one(None if v.storage is None else float(v.storage)),
    ),
)
_TRIES: dict[str, Literal["webhooks_taken", "webhooks_refused"]] = {
    "taken": "webhooks_taken",
    "refused": "webhooks_refused",
}
BUILD = Family("tuner_build_info", "gauge", "Always 1; the label is the running version", ("version",))
DATABASE = Family(
    "tuner_database_up",
    "gauge",
    "1 if the database answered this scrape; otherwise 0, and all metrics of the record are missing",
)
DURATION = Family(
    "tuner_http_request_duration_seconds", "histogram", "Time to the first byte of a response", ("method",)
)
REQUESTS = Family(
    "tuner_http_requests_total",
    "counter",
    "Requests by method, route template and class of status code",
    ("method", "route", "code"),
)
WATCHERS = Family("tuner_event_watchers", "gauge", "Open event streams")
OWN = (BUILD, DATABASE, DURATION, REQUESTS, WATCHERS)


def table() -> str:
    """Return the Markdown table of all metrics for docs/metrics.md."""
    lines = ["| metric | type | labels | what it is |", "| --- | --- | --- | --- |"]
    parts = {
        "**of the record**": [*(family for family, _ in RECORDED), QUEUE_WAIT],
        "**of the process**": [*(family for family, _ in OF_PROCESS), *OWN],
    }
    for title, families in parts.items():
        lines.append(f"| {title} | | | |")
        lines += [
            f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.help} |"
            for one in families
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())  # noqa: T201
