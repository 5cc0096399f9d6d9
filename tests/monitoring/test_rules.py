"""promtool accepts the shipped rules, and each alert has a test in which it fires and one in which it does not.

`make lint` checks the texts of alerts and the runbook (tools/checks/monitoring.py).
"""

import pytest
import yaml

from tests.monitoring.prometheus import PROMETHEUS, RULES, promtool
from tools.checks.monitoring import rules_of

TESTS = PROMETHEUS / "tests/alerts.yml"
WANTED = {
    "TunerBudgetNearlySpent",
    "TunerSpendWithoutSteps",
    "TunerSpendWithoutImprovement",
    "TunerManyPreemptions",
    "TunerJobStuck",
    "TunerLedgerInvariantBroken",
}


@pytest.mark.needs("prometheus")
def test_prometheus_accepts_the_configuration_and_the_rules() -> None:
    for name in ("prometheus.yml", "compose.yml"):
        assert "SUCCESS" in promtool("check", "config", "--syntax-only", name)
    assert "FAILED" not in promtool("check", "rules", *RULES)


@pytest.mark.needs("prometheus")
def test_alert_unit_tests_pass() -> None:
    assert "SUCCESS" in promtool("test", "rules", TESTS)


def test_each_alert_has_a_test_that_fires_and_one_that_does_not() -> None:
    alerts = {rule["alert"] for file in RULES for rule in rules_of(file) if "alert" in rule}
    names = [rule_test["name"] for rule_test in yaml.safe_load(TESTS.read_text())["tests"]]
    assert sorted(names) == sorted(f"{alert} {how}" for alert in alerts for how in ("fires", "is quiet"))
    assert alerts >= WANTED
