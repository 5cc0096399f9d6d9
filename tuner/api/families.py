"""All metric families of `/metrics`: type, labels, meaning, and where the values come from. docs/metrics.md is generated from this
list.
"""

from collections.abc import Callable
from typing import Literal

from tuner.api.family import Family, Values
from tuner.api.family import one as _one
from tuner.api.recorded import QUEUE_WAIT, RECORDED
from tuner.domain.time import NS, Instant
from tuner.service.vitals import Vitals


def _at(at: Instant | None) -> Values:
    return _one(None if at is None else at / NS)


OfProcess = tuple[Family, Callable[[Vitals], Values]]
OF_PROCESS: tuple[OfProcess, ...] = (
    (
        Family(
            "tuner_controller_last_pass_timestamp_seconds",
            "gauge",
            "When the controller last came round as the leader",
        ),
        lambda v: _at(v.controller_at),
    ),
    (
        Family(
            "tuner_controller_leader",
            "gauge",
            "Whether this service is the one of several that launches jobs, lets them go on and sends webhooks",
        ),
        lambda v: _one(None if v.leads is None else float(v.leads())),
    ),
    (
        Family("tuner_controller_failures_total", "counter", "Passes of the controller that failed"),
        lambda v: _one(v.counted("controller_failures")),
    ),
    (
        Family(
            "tuner_keeper_last_pass_timestamp_seconds",
            "gauge",
            "When the keeper of budgets last came round as the leader",
        ),
        lambda v: _at(v.keeper_at),
    ),
    (
        Family("tuner_keeper_failures_total", "counter", "Passes of the keeper that failed"),
        lambda v: _one(v.counted("keeper_failures")),
    ),
    (
        Family("tuner_driver_launches_total", "counter", "Drivers launched"),
        lambda v: _one(v.counted("launches")),
    ),
    (
        Family("tuner_driver_launch_failures_total", "counter", "Launches that the cluster did not take"),
        lambda v: _one(v.counted("launch_failures")),
    ),
    (
        Family("tuner_driver_restarts_total", "counter", "Drivers that died and were followed by another"),
        lambda v: _one(v.counted("driver_restarts")),
    ),
    (
        Family(
            "tuner_jobs_given_up_total",
            "counter",
            "Jobs that failed since their drivers died again and again",
        ),
        lambda v: _one(v.counted("jobs_given_up")),
    ),
    (
        Family(
            "tuner_webhook_tries_total", "counter", "Webhooks sent, by whether they were taken", ("outcome",)
        ),
        lambda v: {(what,): v.counted(_TRIES[what]) for what in _TRIES},
    ),
    (
        Family(
            "tuner_ledger_violations",
            "gauge",
            "Accounts that differ from their entries, or exceed their budgets, by their last check",
        ),
        lambda v: _one(len(v.violations)),
    ),
    (
        Family("tuner_ledger_checks_total", "counter", "Accounts added up anew from their entries"),
        lambda v: _one(v.counted("ledger_checks")),
    ),
    (
        Family("tuner_ledger_checked_timestamp_seconds", "gauge", "When every account had last been checked"),
        lambda v: _at(v.checked_at),
    ),
    (
        Family(
            "tuner_storage_up",
            "gauge",
            "Whether the storage of checkpoints took and gave back a small file when last tried",
        ),
        lambda v: _one(None if v.storage is None else float(v.storage)),
    ),
)
_TRIES: dict[str, Literal["webhooks_taken", "webhooks_refused"]] = {
    "taken": "webhooks_taken",
    "refused": "webhooks_refused",
}
BUILD = Family("tuner_build_info", "gauge", "1, with the version that runs", ("version",))
DATABASE = Family(
    "tuner_database_up",
    "gauge",
    "Whether the database answered this scrape; where not, nothing of the record is told",
)
DURATION = Family(
    "tuner_http_request_duration_seconds", "histogram", "Time to the first byte of an answer", ("method",)
)
REQUESTS = Family(
    "tuner_http_requests_total",
    "counter",
    "Requests by template of their route and class of status",
    ("method", "route", "code"),
)
WATCHERS = Family("tuner_event_watchers", "gauge", "Streams of events that are open")
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
