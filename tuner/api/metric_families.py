"""All metric families of `/metrics`, with their types, labels, help texts and the sources of their values.

`table` generates the table in docs/metrics.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeVar, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from tuner.domain.cost import KINDS
from tuner.domain.job import JOB_STATES
from tuner.domain.listing import MARKETS
from tuner.domain.money import Cost
from tuner.domain.time import NS, Instant
from tuner.domain.trial import TrialState
from tuner.service.metrics_snapshot import BudgetUse, MetricsSnapshot, by_kind, spent
from tuner.service.periodic import Counted, ServiceHealth

Values = Mapping[tuple[str, ...], float]
"""The values of a metric by its labels."""
S = TypeVar("S")
DELIVERIES = ("pending", "delivered", "given_up")
NOTICES = {"notice": "yes", "no_notice": "no"}


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family. The `name` is the one that queries use; a counter's name ends with `_total`."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "summary"]
    help: str
    labels: tuple[str, ...] = ()

    def metric(self, values: Values) -> Metric:
        """Return the metric with the given values. `values` maps the values of the labels to the value of the metric.

        Call this only for counters and gauges. A histogram or summary has several values for each combination of label values.
        """
        family_type = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        metric: CounterMetricFamily | GaugeMetricFamily = family_type(
            self.name, self.help, labels=self.labels
        )
        for labels, value in values.items():
            metric.add_metric(labels, value)
        return metric


def _labelled(
    name: str, labels: tuple[str, ...], help_: str, values: Callable[[S], Values]
) -> tuple[Family, Callable[[S], Values]]:
    """Return a family and the function that returns its values. The family is a counter if its name ends with `_total`, otherwise a gauge."""
    return Family(name, "counter" if name.endswith("_total") else "gauge", help_, labels), values


def _single(
    name: str, help_: str, value: Callable[[S], float | Fraction | None]
) -> tuple[Family, Callable[[S], Values]]:
    """Return a family without labels, and a function that returns its value. If `value` returns None, `/metrics` omits the sample."""

    def values(source: S) -> Values:
        number = value(source)
        return {} if number is None else {(): float(number)}

    return _labelled(name, (), help_, values)


def _counted(name: str, help_: str, what: Counted) -> tuple[Family, Callable[[ServiceHealth], Values]]:
    return _single(name, help_, lambda health: health.counted(what))


def _age(now: Instant, since: Instant | None) -> float | None:
    return None if since is None else max(0, now - since) / NS


def _jobs(f: MetricsSnapshot) -> Values:
    return {(state,): f.totals.jobs.get(state, 0) for state in JOB_STATES}


def _trials(f: MetricsSnapshot) -> Values:
    return {(state,): f.counts["trials", state] for state in get_args(TrialState)}


def _outcomes(f: MetricsSnapshot) -> Values:
    ended: dict[tuple[str, ...], float] = {}
    for what, *labels in f.counts:
        if what == "ends":
            end, cause, market = labels
            key = (end, cause or "none")
            ended[key] = ended.get(key, 0) + f.counts[what, end, cause, market]
    return ended


def _preemptions(f: MetricsSnapshot) -> Values:
    ended: dict[tuple[str, ...], float] = {
        (notice, market): 0 for notice in ("yes", "no", "unknown") for market in MARKETS
    }
    for what, *labels in f.counts:
        if what == "ends" and labels[0] == "preempted":
            _, cause, market = labels
            ended[NOTICES.get(cause, "unknown"), market] += f.counts[what, "preempted", cause, market]
    return ended


def _spend(f: MetricsSnapshot) -> Values:
    posted = spent(f.posted)
    return {(market,): posted.get(market, Cost()).usd.usd for market in MARKETS}


def _gpu_seconds(f: MetricsSnapshot) -> Values:
    posted = spent(f.posted)
    return {(market,): posted.get(market, Cost()).gpu_ms / 1000 for market in MARKETS}


def _bill(f: MetricsSnapshot) -> Values:
    posted = by_kind(f.posted)
    return {
        (kind, market): posted.get((kind, market), Cost()).usd.usd for kind in KINDS for market in MARKETS
    }


def _in_usd(budget: BudgetUse) -> bool:
    return budget.budget.usd is not None


def _in_gpu_time(budget: BudgetUse) -> bool:
    return budget.budget.gpu_ms is not None


def _budgets(
    is_limited: Callable[[BudgetUse], bool], value: Callable[[BudgetUse], float]
) -> Callable[[MetricsSnapshot], Values]:
    """Return a function that takes a snapshot and returns `value(budget)` for each of its budgets, by the budget's name.

    Budgets for which `is_limited` returns False are left out.
    """
    return lambda f: {(budget.name,): value(budget) for budget in f.budgets if is_limited(budget)}


RECORDED: tuple[tuple[Family, Callable[[MetricsSnapshot], Values]], ...] = (
    _labelled("tuner_jobs", ("state",), "Jobs by state", _jobs),
    _single("tuner_jobs_waiting", "Jobs that are due and have no driver yet", lambda f: f.totals.waiting),
    _single(
        "tuner_queue_oldest_wait_seconds",
        "Time that the first job of the queue has waited; 0 if no job waits",
        lambda f: _age(f.now, f.totals.waiting_since) or 0,
    ),
    _single(
        "tuner_jobs_nearly_spent",
        "Running jobs that have spent at least 90 % of their budget in dollars or GPU time",
        lambda f: f.totals.nearly_spent,
    ),
    _single(
        "tuner_jobs_stalled",
        "Running jobs whose last report is older than 10 minutes and older than 5 steps of the job",
        lambda f: f.watched.stalled,
    ),
    _single(
        "tuner_oldest_report_age_seconds",
        "Age of the last report of the running job that has not reported for the longest time",
        lambda f: _age(f.now, f.watched.reported_since),
    ),
    _single(
        "tuner_driver_silence_seconds",
        "Longest time since the last heartbeat of a driver",
        lambda f: _age(f.now, f.totals.silent_since),
    ),
    _labelled("tuner_trials", ("state",), "Trials by state", _trials),
    _single(
        "tuner_steps_total",
        "Steps reported by trials; a repeated step counts once",
        lambda f: f.counts["steps",],
    ),
    _single(
        "tuner_promotions_total",
        "Promotions of trials beyond a rung since this process started",
        lambda f: f.counts["promotions",],
    ),
    _labelled(
        "tuner_attempts_ended_total",
        ("end", "cause"),
        "Ended attempts by outcome, with the cause if something went wrong",
        _outcomes,
    ),
    _labelled(
        "tuner_preemptions_total",
        ("notice", "market"),
        "Attempts that ended by preemption, by whether there was a notice",
        _preemptions,
    ),
    _labelled("tuner_spend_usd_total", ("market",), "Dollars posted", _spend),
    _labelled("tuner_gpu_seconds_total", ("market",), "GPU-seconds posted", _gpu_seconds),
    _labelled(
        "tuner_bill_usd",
        ("kind", "market"),
        "Dollars posted by kind of cost, including later corrections",
        _bill,
    ),
    _single("tuner_held_usd", "Dollars held for running work", lambda f: f.totals.open.held.usd.usd),
    _single(
        "tuner_held_gpu_seconds",
        "GPU-seconds held for running work",
        lambda f: f.totals.open.held.gpu_ms / 1000,
    ),
    _single(
        "tuner_open_jobs_limit_usd",
        "Sum of the dollar budgets of jobs that have not ended",
        lambda f: f.totals.open.limit.usd.usd,
    ),
    _single(
        "tuner_open_jobs_spent_usd",
        "Dollars posted by jobs that have not ended",
        lambda f: f.totals.open.posted.usd.usd,
    ),
    _single(
        "tuner_open_jobs_limit_gpu_seconds",
        "Sum of the GPU-time budgets of jobs that have not ended",
        lambda f: f.totals.open.limit.gpu_ms / 1000,
    ),
    _single(
        "tuner_open_jobs_spent_gpu_seconds",
        "GPU-seconds posted by jobs that have not ended",
        lambda f: f.totals.open.posted.gpu_ms / 1000,
    ),
    _single(
        "tuner_unimproved_spend_usd",
        "Largest amount that a running job has spent since its best metric improved",
        lambda f: f.watched.unimproved.usd,
    ),
    _single(
        "tuner_unimproved_spend_ratio",
        "Largest share of its budget that a running job has spent since its best metric improved",
        lambda f: f.watched.unimproved_share,
    ),
    _labelled(
        "tuner_budget_limit_usd",
        ("budget",),
        "Limit of a shared budget in dollars",
        _budgets(_in_usd, lambda budget: budget.account.limit.usd.usd),
    ),
    _labelled(
        "tuner_budget_spent_usd",
        ("budget",),
        "Dollars posted in a shared budget's current period",
        _budgets(_in_usd, lambda budget: budget.account.posted.usd.usd),
    ),
    _labelled(
        "tuner_budget_held_usd",
        ("budget",),
        "Dollars held in a shared budget",
        _budgets(_in_usd, lambda budget: budget.account.held.usd.usd),
    ),
    _labelled(
        "tuner_budget_limit_gpu_seconds",
        ("budget",),
        "Limit of a shared budget in GPU-seconds",
        _budgets(_in_gpu_time, lambda budget: budget.account.limit.gpu_ms / 1000),
    ),
    _labelled(
        "tuner_budget_spent_gpu_seconds",
        ("budget",),
        "GPU-seconds posted in a shared budget's current period",
        _budgets(_in_gpu_time, lambda budget: budget.account.posted.gpu_ms / 1000),
    ),
    _labelled(
        "tuner_budget_used_ratio",
        ("budget",),
        "Share of a shared budget's limit that is posted; the larger of its shares of dollars and GPU time",
        lambda f: {(budget.name,): float(budget.used) for budget in f.budgets},
    ),
    _single(
        "tuner_cpu_used_ratio",
        "Share of the CPUs of running attempts that is in use",
        lambda f: f.watched.cpu_share,
    ),
    _single(
        "tuner_gpu_used_ratio",
        "Mean utilisation of the GPUs of running attempts, from NVML",
        lambda f: f.watched.gpu_share,
    ),
    _labelled(
        "tuner_cluster_idle_usd_total",
        ("instance_type", "market"),
        "Cost in dollars of worker nodes while no trial ran on them; not part of any bill",
        lambda f: {kind: cost.usd for kind, cost in f.idle.items()},
    ),
    _labelled(
        "tuner_webhook_deliveries",
        ("state",),
        "Webhook messages of shared budgets by state",
        lambda f: {(state,): f.totals.deliveries.get(state, 0) for state in DELIVERIES},
    ),
    _single(
        "tuner_webhook_oldest_pending_seconds",
        "Age of the oldest undelivered webhook message; 0 if there is none",
        lambda f: _age(f.now, f.totals.undelivered_since) or 0,
    ),
)
QUEUE_WAIT = Family(
    "tuner_queue_wait_seconds",
    "summary",
    "Time from a job's submission to the start of its first driver",
)


def queue_wait(f: MetricsSnapshot) -> Metric:
    metric = SummaryMetricFamily(QUEUE_WAIT.name, QUEUE_WAIT.help, labels=())
    metric.add_metric((), f.totals.started, f.totals.queue_wait_ns / NS)
    return metric


def _at(at: Instant | None) -> float | None:
    return None if at is None else at / NS


OF_PROCESS: tuple[tuple[Family, Callable[[ServiceHealth], Values]], ...] = (
    _single(
        "tuner_controller_last_pass_timestamp_seconds",
        "Time of the controller's last pass as the leader",
        lambda v: _at(v.controller_at),
    ),
    _single(
        "tuner_controller_last_pass_age_seconds",
        "Seconds since the controller's last pass as the leader, independent of the wall clock",
        lambda v: v.controller_pass_age_s(),
    ),
    _single(
        "tuner_controller_leader",
        "1 if this service is the leader, which launches and resumes jobs and sends webhooks; otherwise 0",
        lambda v: None if v.leads is None else float(v.leads()),
    ),
    _counted(
        "tuner_controller_failures_total", "Passes of the controller that failed", "controller_failures"
    ),
    _single(
        "tuner_reconciler_last_pass_timestamp_seconds",
        "Time of the shared-budget reconciler's last pass as the leader",
        lambda v: _at(v.reconciler_at),
    ),
    _counted(
        "tuner_reconciler_failures_total",
        "Passes of the shared-budget reconciler that failed",
        "reconciler_failures",
    ),
    _counted("tuner_driver_launches_total", "Drivers launched", "launches"),
    _counted(
        "tuner_driver_launch_failures_total", "Launches that the cluster did not accept", "launch_failures"
    ),
    _counted(
        "tuner_driver_restarts_total", "Drivers that died and were replaced by another one", "driver_restarts"
    ),
    _counted(
        "tuner_jobs_given_up_total", "Jobs that failed because their drivers died repeatedly", "jobs_given_up"
    ),
    _labelled(
        "tuner_webhook_tries_total",
        ("outcome",),
        "Attempts to deliver a webhook, by outcome",
        lambda v: {(what,): v.counted(_TRIES[what]) for what in _TRIES},
    ),
    _single(
        "tuner_ledger_violations",
        "Accounts that differed from their entries or exceeded their budgets when they were last checked",
        lambda v: len(v.violations),
    ),
    _counted("tuner_ledger_checks_total", "Accounts recomputed from their entries", "ledger_checks"),
    _single(
        "tuner_ledger_checked_timestamp_seconds",
        "Time at which the last check of all accounts was completed",
        lambda v: _at(v.checked_at),
    ),
    _single(
        "tuner_storage_up",
        "1 if a small file could be written to the checkpoint storage and read back at the last check; otherwise 0",
        lambda v: None if v.storage is None else float(v.storage),
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
            f"| `{f.name}` | {f.kind} | {', '.join(f'`{label}`' for label in f.labels)} | {f.help} |"
            for f in families
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())  # noqa: T201
