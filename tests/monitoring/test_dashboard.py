"""The shipped Grafana dashboard: its rows and layout, and queries that Prometheus accepts.

`make lint` checks that it is up to date, the texts of its panels and the names of metrics (tools/checks/monitoring.py).
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.prometheus import ROOT, promtool

FOLDER = ROOT / "deploy/grafana"
SHIPPED: dict[str, Any] = json.loads((FOLDER / "dashboards/tuner.json").read_text())
PANELS = [panel for panel in SHIPPED["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
EXPRESSIONS += [annotation["expr"] for annotation in SHIPPED["annotations"]["list"]]


def test_rows_are_money_trials_preemptions_utilisation_and_api() -> None:
    rows = [panel["title"] for panel in SHIPPED["panels"] if panel["type"] == "row"]
    assert rows == ["Money", "Jobs and trials", "Preemptions", "Utilisation", "API"]


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in SHIPPED["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
    assert len({panel["id"] for panel in SHIPPED["panels"]}) == len(SHIPPED["panels"])


@pytest.mark.needs("prometheus")
def test_prometheus_accepts_every_query(tmp_path: Path) -> None:
    """promtool reads only rules, so each query becomes one. It accepts Grafana's variables because they are label values."""
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(EXPRESSIONS)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", tmp_path / "rules.yml")


def test_every_variable_is_defined_and_used() -> None:
    names = {variable["name"] for variable in SHIPPED["templating"]["list"]}
    assert names == {"datasource", "market", "budget"}
    assert all(any(f"${name}" in expr for expr in EXPRESSIONS) for name in names - {"datasource"})


def test_dashboard_is_provisioned_with_a_prometheus_source() -> None:
    sources = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yml").read_text())
    providers = yaml.safe_load((FOLDER / "provisioning/dashboards/tuner.yml").read_text())
    assert [source["type"] for source in sources["datasources"]] == ["prometheus"]
    assert providers["providers"][0]["options"]["path"] == "/var/lib/grafana/dashboards"
