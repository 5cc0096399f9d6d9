"""The rules that are shipped: Debian's promtool takes them, each alert has been seen to fire and to be quiet, and says what to do."""

import re

import pytest
import yaml
from typer.main import get_command

from tests.monitoring.prometheus import PROMETHEUS, ROOT, RULES, promtool, rules, unknown_in
from tuner.cli.main import app

ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
TESTS = PROMETHEUS / "tests/alerts.yml"
SECTIONS = dict(
    re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", (ROOT / "docs/runbook.md").read_text(), re.M | re.S)
)
PARTS = ["Means", "Hurts", "Look", "Do", "Over"]
WANTED = {
    "TunerBudgetNearlySpent",
    "TunerSpendWithoutSteps",
    "TunerSpendWithoutImprovement",
    "TunerPreemptionStorm",
    "TunerJobStuck",
    "TunerLedgerInvariantBroken",
}


@pytest.mark.needs("prometheus")
def test_the_configuration_and_the_rules_are_what_prometheus_takes() -> None:
    for name in ("prometheus.yml", "compose.yml"):
        assert "SUCCESS" in promtool("check", "config", name)
    assert "FAILED" not in promtool("check", "rules", *RULES)


@pytest.mark.needs("prometheus")
def test_each_alert_fires_when_it_should_and_not_when_it_should_not() -> None:
    assert "SUCCESS" in promtool("test", "rules", TESTS)


def test_each_alert_is_tested_both_ways() -> None:
    names = [one["name"] for one in yaml.safe_load(TESTS.read_text())["tests"]]
    assert sorted(names) == sorted(f"{alert} {how}" for alert in ALERTS for how in ("fires", "is quiet"))
    assert ALERTS.keys() >= WANTED


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_says_what_it_means_and_what_to_do(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
    if "absent" not in rule["expr"]:
        assert (
            "$value" in rule["annotations"]["description"]
            or " or " in rule["expr"]
            or "database" in rule["expr"]
        )
    assert re.findall(r"^\*\*(\w+)\*\*: \S", SECTIONS[name], re.M) == PARTS
    look, over = (
        re.search(rf"\*\*{part}\*\*.*?(?=^\*\*|\Z)", SECTIONS[name], re.M | re.S) for part in ("Look", "Over")
    )
    assert look is not None
    assert over is not None
    assert "`" in look[0] or "log" in look[0], "a command, a figure or a line of the log"


def test_every_figure_and_command_of_the_runbook_is_there() -> None:
    text = "".join(SECTIONS.values())
    quoted = re.findall(r"`([^`\n]+)`", text)
    assert {name for one in quoted for name in unknown_in(one)} == set()
    commands = {one.split()[1] for one in quoted if re.match(r"tuner [a-z]", one)}
    assert commands <= set(get_command(app).commands)  # type: ignore[attr-defined]
    assert len(commands) >= 10


def test_the_runbook_has_no_other_alerts() -> None:
    assert SECTIONS.keys() == ALERTS.keys()


def test_every_metric_that_a_rule_names_is_told() -> None:
    assert {name for rule in rules() for name in unknown_in(rule["expr"])} == set()


def test_a_metric_that_nobody_tells_would_be_found() -> None:
    assert unknown_in('rate(tuner_spent_total{market="spot"}[5m])') == {"tuner_spent_total"}
