"""All metric families of `/metrics`, with their types, labels, help texts and the sources of their values.

`table` generates the table in docs/metrics.md.
"""

from collections.abc import Callable
from typing import Literal, get_args

from prometheus_client.core import Metric, SummaryMetricFamily

from tuner.api.family import Family, Values
from tuner.api.family import one as _one
from tuner.domain.cost import KINDS
from tuner.domain.job import JOB_STATES
from tuner.domain.money import Cost
from tuner.domain.time import NS, Instant
from tuner.domain.trial import TrialState
from tuner.service.metrics_snapshot import Budget, MetricsSnapshot, by_kind, spent
from tuner.service.service_health import ServiceHealth

MARKETS = ("on_demand", "spot")
DELIVERIES = ("pending", "delivered", "given_up")
NOTICES = {"notice": "yes", "no_notice": "no"}


def _age(now: Instant, since: Instant | None) -> float | None:
    return None if since is None else max(0, now - since) / NS


def _jobs(f: MetricsSnapshot) -> Values:
    return {(state,): f.totals.jobs.get(state, 0) for state in JOB_STATES}


def _trials(f: MetricsSnapshot) -> Values:
    return {(state,): f.counts["trials", state] for state in get_args(TrialState)}


def _ends(f: MetricsSnapshot) -> Values:
    found: dict[tuple[str, ...], float] = {}
    for what, *labels in f.counts:
        if what == "ends":
            end, cause, market = labels
            key = (end, cause or "none")
            found[key] = found.get(key, 0) + f.counts[what, end, cause, market]
    return found


def _preemptions(f: MetricsSnapshot) -> Values:
    found: dict[tuple[str, ...], float] = {
        (notice, market): 0 for notice in ("yes", "no", "unknown") for market in MARKETS
    }
    for what, *labels in f.counts:
        if what == "ends" and labels[0] == "preempted":
            _, cause, market = labels
            found[NOTICES.get(cause, "unknown"), market] += f.counts[what, "preempted", cause, market]
    return found


def _spend(f: MetricsSnapshot) -> Values:
    found = spent(f.posted)
    return {(market,): found.get(market, Cost()).usd.usd for market in MARKETS}


def _gpu_seconds(f: MetricsSnapshot) -> Values:
    found = spent(f.posted)
    return {(market,): found.get(market, Cost()).gpu_ms / 1000 for market in MARKETS}


def _bill(f: MetricsSnapshot) -> Values:
    found = by_kind(f.posted)
    return {(kind, market): found.get((kind, market), Cost()).usd.usd for kind in KINDS for market in MARKETS}


def _budgets(value: Callable[[Budget], float | None]) -> Callable[[MetricsSnapshot], Values]:
    def found(f: MetricsSnapshot) -> Values:
        return {(one.name,): share for one in f.budgets if (share := value(one)) is not None}

    return found


def _has_usd(one: Budget) -> bool:
    return one.budget.usd is not None


def _has_gpu(one: Budget) -> bool:
    return one.budget.gpu_ms is not None


Recorded = tuple[Family, Callable[[MetricsSnapshot], Values]]
RECORDED: tuple[Recorded, ...] = (
    (Family("tuner_jobs", "gauge", "Jobs by state", ("state",)), _jobs),
    (
        Family("tuner_jobs_waiting", "gauge", "Jobs that are due and have no driver yet"),
        lambda f: _one(f.totals.waiting),
    ),
    (
        Family(
            "tuner_queue_oldest_wait_seconds",
            "gauge",
            "Time that the first job of the queue has waited; 0 if no job waits",
        ),
        lambda f: _one(_age(f.now, f.totals.waiting_since) or 0),
    ),
    (
        Family(
            "tuner_jobs_nearly_spent",
            "gauge",
            "Running jobs that have spent at least 90 % of their budget in dollars or GPU time",
        ),
        lambda f: _one(f.totals.nearly_spent),
    ),
    (
        Family(
            "tuner_jobs_stalled",
            "gauge",
            "Running jobs whose last report is older than 10 minutes and older than 5 steps of the job",
        ),
        lambda f: _one(f.watched.stalled),
    ),
    (
        Family(
            "tuner_oldest_report_age_seconds",
            "gauge",
            "Age of the last report of the running job that has not reported for the longest time",
        ),
        lambda f: _one(_age(f.now, f.watched.reported_since)),
    ),
    (
        Family(
            "tuner_driver_silence_seconds",
            "gauge",
            "Longest time since the last heartbeat of a driver",
        ),
        lambda f: _one(_age(f.now, f.totals.silent_since)),
    ),
    (Family("tuner_trials", "gauge", "Trials by state", ("state",)), _trials),
    (
        Family("tuner_steps_total", "counter", "Steps reported by trials; a repeated step counts once"),
        lambda f: _one(f.counts["steps",]),
    ),
    (
        Family(
            "tuner_promotions_total",
            "counter",
            "Promotions of trials beyond a rung since this process started",
        ),
        lambda f: _one(f.counts["promotions",]),
    ),
    (
        Family(
            "tuner_attempts_ended_total",
            "counter",
            "Ended attempts by outcome, with the cause if something went wrong",
            ("end", "cause"),
        ),
        _ends,
    ),
    (
        Family(
            "tuner_preemptions_total",
            "counter",
            "Attempts that ended by preemption, by whether there was a notice",
            ("notice", "market"),
        ),
        _preemptions,
    ),
    (Family("tuner_spend_usd_total", "counter", "Dollars posted", ("market",)), _spend),
    (Family("tuner_gpu_seconds_total", "counter", "GPU-seconds posted", ("market",)), _gpu_seconds),
    (
        Family(
            "tuner_bill_usd",
            "gauge",
            "Dollars posted by kind of cost, including later corrections",
            ("kind", "market"),
        ),
        _bill,
    ),
    (
        Family("tuner_held_usd", "gauge", "Dollars held for running work"),
        lambda f: _one(f.totals.open.held.usd.usd),
    ),
    (
        Family("tuner_held_gpu_seconds", "gauge", "GPU-seconds held for running work"),
        lambda f: _one(f.totals.open.held.gpu_ms / 1000),
    ),
    (
        Family("tuner_open_jobs_limit_usd", "gauge", "Sum of the dollar budgets of jobs that have not ended"),
        lambda f: _one(f.totals.open.limit.usd.usd),
    ),
    (
        Family("tuner_open_jobs_spent_usd", "gauge", "Dollars posted by jobs that have not ended"),
        lambda f: _one(f.totals.open.posted.usd.usd),
    ),
    (
        Family(
            "tuner_open_jobs_limit_gpu_seconds",
            "gauge",
            "Sum of the GPU-time budgets of jobs that have not ended",
        ),
        lambda f: _one(f.totals.open.limit.gpu_ms / 1000),
    ),
    (
        Family(
            "tuner_open_jobs_spent_gpu_seconds", "gauge", "GPU-seconds posted by jobs that have not ended"
        ),
        lambda f: _one(f.totals.open.posted.gpu_ms / 1000),
    ),
    (
        Family(
            "tuner_unimproved_spend_usd",
            "gauge",
            "Largest amount that a running job has spent since its best metric improved",
        ),
        lambda f: _one(f.watched.unimproved.usd),
    ),
    (
        Family(
            "tuner_unimproved_spend_ratio",
            "gauge",
            "Largest share of its budget that a running job has spent since its best metric improved",
        ),
        lambda f: _one(f.watched.unimproved_share),
    ),
    (
        Family("tuner_budget_limit_usd", "gauge", "Limit of a shared budget in dollars", ("budget",)),
        _budgets(lambda one: one.account.limit.usd.usd if _has_usd(one) else None),
    ),
    (
        Family(
            "tuner_budget_spent_usd",
            "gauge",
            "Dollars posted in a shared budget's current period",
            ("budget",),
        ),
        _budgets(lambda one: one.account.posted.usd.usd if _has_usd(one) else None),
    ),
    (
        Family("tuner_budget_held_usd", "gauge", "Dollars held in a shared budget", ("budget",)),
        _budgets(lambda one: one.account.held.usd.usd if _has_usd(one) else None),
    ),
    (
        Family(
            "tuner_budget_limit_gpu_seconds", "gauge", "Limit of a shared budget in GPU-seconds", ("budget",)
        ),
        _budgets(lambda one: one.account.limit.gpu_ms / 1000 if _has_gpu(one) else None),
    ),
    (
        Family(
            "tuner_budget_spent_gpu_seconds",
            "gauge",
            "GPU-seconds posted in a shared budget's current period",
            ("budget",),
        ),
        _budgets(lambda one: one.account.posted.gpu_ms / 1000 if _has_gpu(one) else None),
    ),
    (
        Family(
            "tuner_budget_used_ratio",
            "gauge",
            "Share of a shared budget's limit that is posted; the larger of its shares of dollars and GPU time",
            ("budget",),
        ),
        _budgets(lambda one: float(one.used)),
    ),
    (
        Family("tuner_cpu_used_ratio", "gauge", "Share of the CPUs of running attempts that is in use"),
        lambda f: _one(f.watched.cpu_share),
    ),
    (
        Family(
            "tuner_gpu_used_ratio", "gauge", "Mean utilisation of the GPUs of running attempts, from NVML"
        ),
        lambda f: _one(f.watched.gpu_share),
    ),
    (
        Family(
            "tuner_cluster_idle_usd_total",
            "counter",
            "Cost in dollars of worker nodes while no trial ran on them; not part of any bill",
            ("instance_type", "market"),
        ),
        lambda f: {kind: cost.usd for kind, cost in f.idle.items()},
    ),
    (
        Family(
            "tuner_webhook_deliveries", "gauge", "Webhook messages of shared budgets by state", ("state",)
        ),
        lambda f: {(state,): f.totals.deliveries.get(state, 0) for state in DELIVERIES},
    ),
    (
        Family(
            "tuner_webhook_oldest_pending_seconds",
            "gauge",
            "Age of the oldest undelivered webhook message; 0 if there is none",
        ),
        lambda f: _one(_age(f.now, f.totals.undelivered_since) or 0),
    ),
)
QUEUE_WAIT = Family(
    "tuner_queue_wait_seconds",
    "summary",
    "Time from a job's submission to the start of its first driver",
)


def queue_wait(f: MetricsSnapshot) -> Metric:
    found = SummaryMetricFamily(QUEUE_WAIT.name, QUEUE_WAIT.help, labels=())
    found.add_metric((), f.totals.started, f.totals.queue_wait_ns / NS)
    return found


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
