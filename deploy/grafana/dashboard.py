"""The dashboard as code. `python deploy/grafana/dashboard.py` writes dashboards/tuner.json."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent / "dashboards/tuner.json"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
PER_HOUR = "* 3600"


@dataclass(frozen=True)
class Panel:
    """A panel of the dashboard."""

    title: str
    description: str
    unit: str  #: The name of a unit in Grafana.
    queries: tuple[tuple[str, str], ...]  #: Pairs of an expression and its legend.
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False


ROWS: dict[str, tuple[Panel, ...]] = {
    "Money": (
        Panel(
            "Spent",
            "Dollars posted since the first job.",
            "currencyUSD",
            (('sum(max by (market) (tuner_spend_usd_total{market=~"$market"}))', "spent"),),
            "stat",
            4,
        ),
        Panel(
            "Held",
            "Dollars held for work under way.",
            "currencyUSD",
            (("max(tuner_held_usd)", "held"),),
            "stat",
            4,
        ),
        Panel(
            "Left to open jobs",
            "Dollars left in the budgets of jobs that have not ended, before holds.",
            "currencyUSD",
            (("max(tuner_open_jobs_limit_usd) - max(tuner_open_jobs_spent_usd)", "left"),),
            "stat",
            4,
        ),
        Panel(
            "Share of the bill that is training",
            "The rest is setup, restores, checkpoints, lost steps and idle time.",
            "percentunit",
            (("tuner:training_share:ratio", "training"),),
            "stat",
            4,
        ),
        Panel(
            "Ledger violations",
            "Accounts that differ from their entries or exceed their budgets. This is always 0.",
            "none",
            (("max(tuner_ledger_violations)", "accounts"),),
            "stat",
            4,
        ),
        Panel(
            "Spent without improvement",
            "The largest amount that a running job has spent since its best metric improved.",
            "currencyUSD",
            (("max(tuner_unimproved_spend_usd)", "dollars"),),
            "stat",
            4,
        ),
        Panel(
            "Dollars per hour",
            "Dollars posted per hour, by market.",
            "currencyUSD",
            ((f'tuner:spend_usd:rate1h{{market=~"$market"}} {PER_HOUR}', "{{market}}"),),
            width=12,
            stacked=True,
        ),
        Panel(
            "Jobs and idle machines, dollars per hour",
            "Dollars posted by jobs, plus the cost of worker nodes while no trial ran on them, which bills do not include.",
            "currencyUSD",
            (
                (f'sum(tuner:spend_usd:rate1h{{market=~"$market"}}) {PER_HOUR}', "jobs"),
                (
                    f'tuner:cluster_idle_usd:rate1h{{market=~"$market"}} {PER_HOUR}',
                    "idle: {{instance_type}}, {{market}}",
                ),
            ),
            width=12,
            stacked=True,
        ),
        Panel(
            "Bill by kind",
            "The cost of all jobs so far, after corrections.",
            "currencyUSD",
            (('sum by (kind) (tuner:bill_usd:max{market=~"$market"})', "{{kind}}"),),
            width=12,
            stacked=True,
        ),
        Panel(
            "Shared budgets",
            "The share of each shared budget that is spent in its present period.",
            "percentunit",
            (('tuner:budget_used:ratio{budget=~"$budget"}', "{{budget}}"),),
            width=12,
        ),
    ),
    "Jobs and trials": (
        Panel(
            "Jobs by state",
            "All jobs.",
            "none",
            (("max by (state) (tuner_jobs)", "{{state}}"),),
            stacked=True,
        ),
        Panel(
            "Trials by state",
            "Trials of all jobs.",
            "none",
            (("max by (state) (tuner_trials)", "{{state}}"),),
            stacked=True,
        ),
        Panel(
            "Steps and promotions",
            "Reported steps, and trials that were promoted from a rung.",
            "ops",
            (("tuner:steps:rate15m", "steps"), ("tuner:promotions:rate15m", "promotions")),
        ),
        Panel(
            "Queue",
            "Jobs that should run and have no driver, and running jobs without reports.",
            "none",
            (("max(tuner_jobs_waiting)", "waiting"), ("max(tuner_jobs_stalled)", "running without reports")),
        ),
        Panel(
            "Waiting and silence",
            "The longest time of each kind.",
            "s",
            (
                ("max(tuner_queue_oldest_wait_seconds)", "first in the queue"),
                ("max(tuner_oldest_report_age_seconds)", "since a job's last report"),
                ("max(tuner_driver_silence_seconds)", "since a driver's last heartbeat"),
            ),
        ),
        Panel(
            "Mean wait for the first driver",
            "Jobs that began within the last six hours.",
            "s",
            (
                (
                    "max(increase(tuner_queue_wait_seconds_sum[6h])) / (max(increase(tuner_queue_wait_seconds_count[6h])) > 0)",
                    "wait",
                ),
            ),
        ),
    ),
    "Preemptions": (
        Panel(
            "Preemptions within half an hour",
            "With and without notice.",
            "none",
            (('sum by (notice) (tuner:preemptions:increase30m{market=~"$market"})', "notice: {{notice}}"),),
            stacked=True,
        ),
        Panel(
            "Failed, lost and preempted attempts",
            "Attempts per minute, by cause.",
            "cpm",
            (
                (
                    'sum by (end, cause) (tuner:attempts_ended:rate15m{end=~"failed|lost|preempted"}) * 60',
                    "{{end}}: {{cause}}",
                ),
            ),
        ),
        Panel(
            "Lost steps and restores",
            "Dollars for repeated steps and for restoring checkpoints.",
            "currencyUSD",
            (('sum by (kind) (tuner:bill_usd:max{kind=~"lost|restore", market=~"$market"})', "{{kind}}"),),
            stacked=True,
        ),
    ),
    "Utilisation": (
        Panel(
            "Processors and GPUs in use",
            "Utilization by running attempts, if it is measured.",
            "percentunit",
            (("max(tuner_cpu_used_ratio)", "processors"), ("max(tuner_gpu_used_ratio)", "GPUs")),
        ),
        Panel(
            "GPUs paid for",
            "GPU-seconds posted per second.",
            "none",
            (('tuner:gpu_seconds:rate15m{market=~"$market"}', "{{market}}"),),
            stacked=True,
        ),
        Panel(
            "Share of training by market",
            "The share of training in the posted dollars, by market.",
            "percentunit",
            (
                (
                    'sum by (market) (tuner:bill_usd:max{kind="train", market=~"$market"}) / (sum by (market) (tuner:bill_usd:max{market=~"$market"}) > 0)',
                    "{{market}}",
                ),
            ),
        ),
    ),
    "API": (
        Panel(
            "Requests",
            "Requests per second, by class of status.",
            "reqps",
            (("tuner:http_requests:rate5m", "{{code}}"),),
            stacked=True,
        ),
        Panel(
            "99th percentile of latency",
            "Time to the first byte of an answer.",
            "s",
            (("tuner:http_duration_seconds:p99_5m", "99 %"),),
        ),
        Panel(
            "Watchers and webhooks",
            "Open event streams, and webhooks that are not delivered yet.",
            "none",
            (
                ("sum(tuner_event_watchers)", "watchers"),
                ('max(tuner_webhook_deliveries{state="pending"})', "webhooks"),
            ),
        ),
        Panel(
            "Processor time",
            "Processor time of the service, in cores.",
            "none",
            (('rate(process_cpu_seconds_total{job="tuner"}[5m])', "{{instance}}"),),
        ),
        Panel(
            "Memory",
            "Memory of the service.",
            "bytes",
            (('process_resident_memory_bytes{job="tuner"}', "{{instance}}"),),
        ),
        Panel(
            "Up",
            "Whether the service, its database and the checkpoint storage are available.",
            "bool_on_off",
            (
                ('min(up{job="tuner"})', "service"),
                ("min(tuner_database_up)", "database"),
                ("min(tuner_storage_up)", "storage"),
            ),
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    return {
        "uid": "tuner",
        "title": "Tuner",
        "description": "Money, trials, preemptions, utilisation and the API of the tuning service.",
        "tags": ["tuner"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                _datasource(),
                _variable("market", "tuner_spend_usd_total"),
                _variable("budget", "tuner_budget_used_ratio"),
            ]
        },
        "annotations": {"list": [_firing()]},
        "links": [],
        "panels": _panels(),
    }


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
    }


def _variable(label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {label})"
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }


def _firing() -> dict[str, Any]:
    expr = 'ALERTS{alertname=~"Tuner.*", alertstate="firing", severity!="info"}'
    return {
        "name": "Alerts",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": expr,
        "titleFormat": "{{alertname}}",
        "step": "60s",
    }


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": place,
                "panels": [],
            }
        )
        y, x, height = y + 1, 0, 0
        for panel in row:
            if x + panel.width > COLUMNS:
                y, x, height = y + height, 0, 0
            height = max(height, 4 if panel.kind == "stat" else 8)
            place = {"h": height, "w": panel.width, "x": x, "y": y}
            panels.append(_panel(panel, len(panels) + 1, place))
            x += panel.width
        y += height
    return panels


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    custom: dict[str, Any] = {}
    if panel.kind == "timeseries":
        custom = {"lineWidth": 1, "fillOpacity": 20 if panel.stacked else 0, "showPoints": "never"}
        custom["stacking"] = {"mode": "normal" if panel.stacked else "none", "group": "A"}
    options: dict[str, Any] = {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi"},
    }
    if panel.kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "graphMode": "area"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": DATASOURCE, "expr": expr, "legendFormat": legend}
            for index, (expr, legend) in enumerate(panel.queries)
        ],
    }


def text() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
