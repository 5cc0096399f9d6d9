"""The dashboard as code: `python deploy/grafana/dashboard.py` writes dashboards/tuner.json."""

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
    """`queries`: an expression and its legend each. `unit` by Grafana's names."""

    title: str
    what: str
    unit: str
    queries: tuple[tuple[str, str], ...]
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
            "Budgets in dollars of jobs that have not ended, less what is posted of them.",
            "currencyUSD",
            (("max(tuner_open_jobs_limit_usd) - max(tuner_open_jobs_spent_usd)", "left"),),
            "stat",
            4,
        ),
        Panel(
            "Share of the bill that is training",
            "What is not: setup, restores, checkpoints, lost steps, idle time.",
            "percentunit",
            (("tuner:training_share:ratio", "training"),),
            "stat",
            4,
        ),
        Panel(
            "Books",
            "Accounts that differ from their entries, or exceed their budgets: always 0.",
            "none",
            (("max(tuner_ledger_violations)", "wrong"),),
            "stat",
            4,
        ),
        Panel(
            "Spent since a best improved",
            "The most that a running job has spent since its best improved.",
            "currencyUSD",
            (("max(tuner_unimproved_spend_usd)", "dollars"),),
            "stat",
            4,
        ),
        Panel(
            "Dollars an hour",
            "Posted, by market.",
            "currencyUSD",
            ((f'tuner:spend_usd:rate1h{{market=~"$market"}} {PER_HOUR}', "{{market}}"),),
            width=12,
            stacked=True,
        ),
        Panel(
            "Jobs and idle machines, dollars an hour",
            "Posted by jobs, and above it what worker nodes cost while no trial ran on them, which is in no bill.",
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
            "What all jobs cost so far, corrected as bills are.",
            "currencyUSD",
            (('sum by (kind) (tuner:bill_usd:max{market=~"$market"})', "{{kind}}"),),
            width=12,
            stacked=True,
        ),
        Panel(
            "Budgets above jobs",
            "Share of each that is spent in its present period.",
            "percentunit",
            (('tuner:budget_used:ratio{budget=~"$budget"}', "{{budget}}"),),
            width=12,
        ),
    ),
    "Jobs and trials": (
        Panel(
            "Jobs by state",
            "All jobs there are.",
            "none",
            (("max by (state) (tuner_jobs)", "{{state}}"),),
            stacked=True,
        ),
        Panel(
            "Trials by state",
            "Of all jobs.",
            "none",
            (("max by (state) (tuner_trials)", "{{state}}"),),
            stacked=True,
        ),
        Panel(
            "Steps and promotions",
            "Steps that trials reported, and trials that went on beyond a rung.",
            "ops",
            (("tuner:steps:rate15m", "steps"), ("tuner:promotions:rate15m", "promotions")),
        ),
        Panel(
            "Queue",
            "Jobs that are due and have no driver.",
            "none",
            (("max(tuner_jobs_waiting)", "waiting"), ("max(tuner_jobs_stalled)", "running without reports")),
        ),
        Panel(
            "Waiting and silence",
            "The longest of each.",
            "s",
            (
                ("max(tuner_queue_oldest_wait_seconds)", "first in line"),
                ("max(tuner_oldest_report_age_seconds)", "since a job's last report"),
                ("max(tuner_driver_silence_seconds)", "since a driver was heard of"),
            ),
        ),
        Panel(
            "Mean wait for the first driver",
            "Of jobs that began within six hours.",
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
            "Machines taken away within half an hour",
            "By whether they had a notice.",
            "none",
            (('sum by (notice) (tuner:preemptions:increase30m{market=~"$market"})', "notice: {{notice}}"),),
            stacked=True,
        ),
        Panel(
            "Attempts that ended badly",
            "A minute, by what went wrong.",
            "cpm",
            (
                (
                    'sum by (end, cause) (tuner:attempts_ended:rate15m{end=~"failed|lost|preempted"}) * 60',
                    "{{end}}: {{cause}}",
                ),
            ),
        ),
        Panel(
            "Lost and restored",
            "Dollars of steps done twice and of checkpoints read.",
            "currencyUSD",
            (('sum by (kind) (tuner:bill_usd:max{kind=~"lost|restore", market=~"$market"})', "{{kind}}"),),
            stacked=True,
        ),
    ),
    "Utilisation": (
        Panel(
            "Processors and GPUs in use",
            "Of attempts under way, as far as it is measured.",
            "percentunit",
            (("max(tuner_cpu_used_ratio)", "processors"), ("max(tuner_gpu_used_ratio)", "GPUs")),
        ),
        Panel(
            "GPUs paid for",
            "GPU-seconds posted a second.",
            "none",
            (('tuner:gpu_seconds:rate15m{market=~"$market"}', "{{market}}"),),
            stacked=True,
        ),
        Panel(
            "Share of training by market",
            "Of what was posted.",
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
            "A second, by class of status.",
            "reqps",
            (("tuner:http_requests:rate5m", "{{code}}"),),
            stacked=True,
        ),
        Panel(
            "Slowest in a hundred",
            "Time to the first byte of an answer.",
            "s",
            (("tuner:http_duration_seconds:p99_5m", "99 %"),),
        ),
        Panel(
            "Watchers and webhooks",
            "Open streams of events; webhooks not yet taken.",
            "none",
            (
                ("sum(tuner_event_watchers)", "watchers"),
                ('max(tuner_webhook_deliveries{state="pending"})', "webhooks"),
            ),
        ),
        Panel(
            "Processor time",
            "Of the service, in cores.",
            "none",
            (('rate(process_cpu_seconds_total{job="tuner"}[5m])', "{{instance}}"),),
        ),
        Panel(
            "Memory",
            "Of the service.",
            "bytes",
            (('process_resident_memory_bytes{job="tuner"}', "{{instance}}"),),
        ),
        Panel(
            "Up",
            "The service, its database, the storage of checkpoints.",
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
    found: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        found.append(
            {
                "id": len(found) + 1,
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
            found.append(_panel(panel, len(found) + 1, place))
            x += panel.width
        y += height
    return found


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
        "description": panel.what,
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
