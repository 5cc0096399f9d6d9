"""The Grafana dashboard that is shipped: written by its program, of panels that say what they show, in queries that Prometheus takes."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.prometheus import ROOT, promtool, unknown_in

FOLDER = ROOT / "deploy/grafana"
SHIPPED: dict[str, Any] = json.loads((FOLDER / "dashboards/tuner.json").read_text())
PANELS = [panel for panel in SHIPPED["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
EXPRESSIONS += [one["expr"] for one in SHIPPED["annotations"]["list"]]
# Of Grafana's list of units (packages/grafana-data/src/valueFormats/categories.ts).
UNITS = {"none", "currencyUSD", "percentunit", "s", "bytes", "ops", "reqps", "cpm", "bool_on_off"}


def test_it_is_what_its_program_writes() -> None:
    assert (
        runpy.run_path(str(FOLDER / "dashboard.py"))["text"]()
        == (FOLDER / "dashboards/tuner.json").read_text()
    )


def test_it_shows_money_trials_preemptions_utilisation_and_the_api() -> None:
    rows = [panel["title"] for panel in SHIPPED["panels"] if panel["type"] == "row"]
    assert rows == ["Money", "Jobs and trials", "Preemptions", "Utilisation", "API"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_each_panel_says_what_it_shows_and_in_what_unit(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith((".", "0."))
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["type"] in ("timeseries", "stat")
    assert all(target["legendFormat"] and target["expr"] for target in panel["targets"])
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_no_two_panels_lie_on_each_other() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in SHIPPED["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
    assert len({panel["id"] for panel in SHIPPED["panels"]}) == len(SHIPPED["panels"])


@pytest.mark.needs("prometheus")
def test_prometheus_takes_every_query(tmp_path: Path) -> None:
    """As rules, since that is what promtool reads; Grafana's variables are labels' values, and stay as they are."""
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(EXPRESSIONS)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", tmp_path / "rules.yml")


def test_every_metric_that_is_shown_is_told() -> None:
    variables = [one["definition"] for one in SHIPPED["templating"]["list"] if one["type"] == "query"]
    assert {name for expr in EXPRESSIONS + variables for name in unknown_in(expr)} == set()


def test_variables_that_queries_name_are_there() -> None:
    names = {one["name"] for one in SHIPPED["templating"]["list"]}
    assert names == {"datasource", "market", "budget"}
    assert all(any(f"${name}" in expr for expr in EXPRESSIONS) for name in names - {"datasource"})


def test_it_is_provisioned_with_a_source_of_its_kind() -> None:
    sources = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yml").read_text())
    providers = yaml.safe_load((FOLDER / "provisioning/dashboards/tuner.yml").read_text())
    assert [one["type"] for one in sources["datasources"]] == ["prometheus"]
    assert providers["providers"][0]["options"]["path"] == "/var/lib/grafana/dashboards"
