"""Check that alerts, the runbook and the Grafana dashboard agree with each other and name existing metrics.

What Prometheus itself can check is in tests/monitoring, which runs promtool.
"""

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tools.checks import Problem, line_of
from tuner.api.metric_families import OF_PROCESS, OWN, QUEUE_WAIT, RECORDED

# A metric of the service, of a recording rule, or of the Prometheus client.
METRIC = re.compile(r"\b(?:tuner[_:][a-z0-9_:]+|process_[a-z_]+|python_[a-z_]+)\b")
PROCESS = ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "start_time_seconds")
# The paragraphs of each section of the runbook.
PARTS = ["Means", "Hurts", "Look", "Do", "Over"]
# Some of Grafana's units: packages/grafana-data/src/valueFormats/categories.ts.
UNITS = {"none", "currencyUSD", "percentunit", "s", "bytes", "ops", "reqps", "cpm", "bool_on_off"}


def check(root: Path) -> Iterator[Problem]:
    files = sorted((root / "deploy/prometheus/rules").glob("*.yml"))
    rules = [(file, rule) for file in files for rule in rules_of(file)]
    known = known_metrics([rule for _, rule in rules])
    alerts = []
    for file, rule in rules:
        line = line_of(file.read_text(), f": {rule.get('alert') or rule['record']}")
        for name in sorted(metrics_in(rule["expr"]) - known):
            yield Problem(file, line, f"the metric {name} does not exist")
        if "alert" in rule:
            alerts.append(rule["alert"])
            for message in _alert(rule):
                yield Problem(file, line, f"{rule['alert']}: {message}")
    yield from _runbook(root / "docs/runbook.md", alerts)
    yield from _quoted(root / "docs/runbook.md", known)
    yield from _dashboard(root / "deploy/grafana", known)


def rules_of(file: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def known_metrics(rules: list[dict[str, Any]]) -> set[str]:
    """Return the name of each series that the service exports or a rule records."""
    families = [
        *(metric_family for metric_family, _ in RECORDED),
        *(metric_family for metric_family, _ in OF_PROCESS),
        *OWN,
        QUEUE_WAIT,
    ]
    names = {metric_family.name for metric_family in families} | {
        str(rule["record"]) for rule in rules if "record" in rule
    }
    for family in families:
        if family.kind in ("histogram", "summary"):
            names |= {f"{family.name}_{part}" for part in ("count", "sum", "bucket")}
    return names | {f"process_{part}" for part in PROCESS}


def metrics_in(expression: str) -> set[str]:
    return set(METRIC.findall(expression))


def _alert(rule: dict[str, Any]) -> Iterator[str]:
    texts = rule["annotations"]
    if rule["labels"]["severity"] not in ("critical", "warning", "info"):
        yield "the severity must be critical, warning or info"
    if not texts.get("summary"):
        yield "the alert has no summary"
    if texts.get("runbook_url") != f"docs/runbook.md#{rule['alert'].lower()}":
        yield "runbook_url must lead to the alert's section of docs/runbook.md"
    # An alert on missing data, or on one of several conditions, has no single value to show.
    no_value = any(word in rule["expr"] for word in ("absent", " or ", "database"))
    if not no_value and "$value" not in texts.get("description", ""):
        yield "the description must show $value"


def _runbook(page: Path, alerts: list[str]) -> Iterator[Problem]:
    text = page.read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    for name in sorted(set(alerts) - set(sections)):
        yield Problem(page, 1, f"the section on the alert {name} is missing")
    for name, section in sections.items():
        line = line_of(text, f"## {name}\n")
        if name not in alerts:
            yield Problem(page, line, f"the rules have no alert {name}")
        if re.findall(r"^\*\*(\w+)\*\*: \S", section, re.MULTILINE) != PARTS:
            yield Problem(page, line, f"the section must have the paragraphs {', '.join(PARTS)}")
        look = re.search(r"\*\*Look\*\*.*?(?=^\*\*|\Z)", section, re.MULTILINE | re.DOTALL)
        if look and "`" not in look[0] and "log" not in look[0]:
            yield Problem(page, line, "Look must name a command, a metric or a line of the log")


def _quoted(page: Path, known: set[str]) -> Iterator[Problem]:
    """Check the metrics that the runbook names. tools/checks/examples.py checks its commands."""
    for number, row in enumerate(page.read_text().splitlines(), 1):
        for quoted in re.findall(r"`([^`\n]+)`", row):
            for name in sorted(metrics_in(quoted) - known):
                yield Problem(page, number, f"the metric {name} does not exist")


def _dashboard(folder: Path, known: set[str]) -> Iterator[Problem]:
    page = folder / "dashboards/tuner.json"
    text = page.read_text()
    if text != runpy.run_path(str(folder / "dashboard.py"))["text"]():
        yield Problem(
            page,
            1,
            "the dashboard differs from what deploy/grafana/dashboard.py writes: run it and commit the result",
        )
    shipped = json.loads(text)
    for panel in (shipped_panel for shipped_panel in shipped["panels"] if shipped_panel["type"] != "row"):
        line = line_of(text, f'"title": {json.dumps(panel["title"], ensure_ascii=False)}')
        for message in _panel(panel, known):
            yield Problem(page, line, f"{panel['title']}: {message}")
    others = [annotation["expr"] for annotation in shipped["annotations"]["list"]]
    others += [
        variable["definition"] for variable in shipped["templating"]["list"] if variable["type"] == "query"
    ]
    for name in sorted({name for query in others for name in metrics_in(query)} - known):
        yield Problem(page, line_of(text, name), f"the metric {name} does not exist")


def _panel(panel: dict[str, Any], known: set[str]) -> Iterator[str]:
    if not panel["title"]:
        yield "the panel has no title"
    if not panel["description"].endswith("."):
        yield "the panel needs a description in sentences"
    if panel["fieldConfig"]["defaults"]["unit"] not in UNITS:
        yield "Grafana has no such unit"
    if panel["type"] not in ("timeseries", "stat"):
        yield "the panel must be a timeseries or a stat"
    if not all(target["legendFormat"] and target["expr"] for target in panel["targets"]):
        yield "each query needs a legend"
    if len({target["refId"] for target in panel["targets"]}) < len(panel["targets"]):
        yield "two queries have the same refId"
    for name in sorted({name for target in panel["targets"] for name in metrics_in(target["expr"])} - known):
        yield f"the metric {name} does not exist"
