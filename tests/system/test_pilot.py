"""Test a pilot on a real Ray cluster, and the plan that results from it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.system import books
from tests.system.serving import Served, job
from tuner.cli.main import app

pytestmark = [pytest.mark.system, pytest.mark.extended, pytest.mark.timeout(900)]


def pilots(served: Served) -> set[str]:
    """Return the ids of all pilots. Other tests of this service have pilots, too."""
    return {listed_job.id for listed_job in served.client.jobs() if listed_job.tags.get("pilot")}


def test_plan_with_a_pilot_predicts_the_cost_of_the_job(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan must be within a factor of two of the bill, because other work may slow the machine down.

    No other test uses steps of 0.35 s, so the pilot finds no earlier measurements. Most of the time is spent
    sleeping, which a busy machine does not slow down.
    """
    before = pilots(served)
    monkeypatch.setattr("tuner.client.Client", lambda: served.client)
    asked = job(
        "steady:train",
        budget={"usd": 0.01, "trials": 6},
        constants={"step_s": 0.35},
        algorithm={"scheduler": "none", "sampler": "random"},
    )
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(asked))
    result = CliRunner().invoke(app, ["plan", str(file), "--pilot-usd", "0.002"])
    assert result.exit_code == 0, result.output
    (pilot,) = (served.client.job(new) for new in pilots(served) - before)
    assert f"The pilot {pilot.id} cost" in result.stdout
    assert 0 < pilot.spend.usd <= 0.002
    books.check(served.client, pilot.id)

    again = CliRunner().invoke(app, ["plan", str(file), "--pilot-usd", "0.002", "--json"])
    assert again.exit_code == 0, again.output
    plan: dict[str, Any] = json.loads(again.stdout)
    assert plan["inputs"]["evidence"]["source"] == "pilot"
    assert plan["inputs"]["evidence"]["jobs"] == [pilot.id]
    assert pilots(served) - before == {pilot.id}, "one is enough"
    ended = served.finished(served.client.submit(asked).id)
    assert ended.stop_reason == "trials"
    assert plan["usd"]["expected"] / 2 < ended.spend.usd < plan["usd"]["expected"] * 2
