"""Pilots over REST and on the command line: run once, reused, and refused if they cannot run."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tests import fakes
from tests.fakes import FakeService, body
from tuner.cli.main import app
from tuner.client import Client

service, client = fakes.fixtures("function")
PILOT = {"planning": {"pilot": {"usd": 0.002, "trials": 6}}, "budget": {"usd": 0.004}}
FEW = {"usd": 0.004, "trials": 3}  # quick to plan


def pilot_of(client: TestClient, **changes: Any) -> Any:
    return client.post("/v1/pilots", json=body(**{**PILOT, **changes}))


def test_pilot_is_a_small_job_with_its_own_budget(service: FakeService, client: TestClient) -> None:
    answer = pilot_of(client, tags={"owner": "alice"})
    assert answer.status_code == 201, answer.text
    pilot = answer.json()
    assert answer.headers["Location"] == f"/v1/jobs/{pilot['id']}"
    assert pilot["budget"]["usd"] == 0.002
    assert pilot["tags"]["owner"] == "alice"
    assert list(pilot["tags"]) == ["owner", "pilot"]
    fakes.simulate(service, pilot["id"])
    ended = client.get(f"/v1/jobs/{pilot['id']}").json()
    assert (ended["state"], ended["stop_reason"]) == ("succeeded", "trials")
    trials = client.get(f"/v1/jobs/{pilot['id']}/trials").json()["items"]
    assert sorted(trial["steps"] for trial in trials) == [2, 2, 2, 2, 2, 8], "one goes on further"
    assert len({json.dumps(trial["config"]) for trial in trials}) == 6


def test_existing_pilot_is_reused_for_the_same_code_and_space(
    service: FakeService, client: TestClient
) -> None:
    first = pilot_of(client).json()["id"]
    under_way = pilot_of(client)
    assert (under_way.status_code, under_way.json()["id"]) == (200, first)
    fakes.simulate(service, first)
    again = pilot_of(client, budget={"usd": 3, "trials": 9}, name="other")
    assert (again.status_code, again.json()["id"]) == (200, first)
    wider = {"search_space": {**body()["search_space"], "width": {"type": "int", "low": 8, "high": 128}}}
    other = pilot_of(client, **wider)
    assert other.status_code == 201
    assert other.json()["id"] != first


def test_cancelled_pilot_without_results_is_run_again(client: TestClient) -> None:
    first = pilot_of(client).json()["id"]
    assert client.post(f"/v1/jobs/{first}/cancel").status_code == 202
    second = pilot_of(client)
    assert second.status_code == 201
    assert second.json()["id"] != first


def test_two_requests_at_once_start_one_pilot(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second request arrives after the first has looked for an existing pilot."""
    second: list[Any] = []

    def meanwhile() -> None:
        monkeypatch.undo()
        second.append(pilot_of(client))

    monkeypatch.setattr(service.cluster, "check_fit", meanwhile)
    first = pilot_of(client)
    assert (first.status_code, second[0].status_code) == (200, 201)
    assert first.json()["id"] == second[0].json()["id"]
    assert len(client.get("/v1/jobs").json()["items"]) == 1


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(body(budget=FEW)))
    return str(path)


def test_pilot_command_prints_the_rest_answer(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setattr(
        "tuner.client.Client", lambda: Client("http://tuner", fakes.KEY, transport=client._transport)
    )
    made = CliRunner().invoke(app, ["pilot", file, "--usd", "0.002", "--json"])
    assert made.exit_code == 0, made.output
    shown = json.loads(made.stdout)
    assert client.get(f"/v1/jobs/{shown['id']}").json() == shown
    fakes.simulate(service, shown["id"])
    waited = CliRunner().invoke(app, ["pilot", file, "--usd", "0.002", "--wait"])
    assert waited.exit_code == 0, waited.output
    assert shown["id"] in waited.stdout
    too_expensive = CliRunner().invoke(app, ["pilot", file, "--usd", "9"])
    assert too_expensive.exit_code == 1
    assert "/planning/pilot/usd" in too_expensive.stderr


def test_plan_uses_the_pilot_of_the_same_code_and_space(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    assert client.post("/v1/plans", json=body(budget=FEW)).json()["inputs"]["evidence"]["source"] == "none"
    pilot = pilot_of(client).json()["id"]
    fakes.simulate(service, pilot)
    made = Client("http://tuner", fakes.KEY, transport=client._transport)
    monkeypatch.setattr("tuner.client.Client", lambda: made)
    plan_result = CliRunner().invoke(app, ["plan", file, "--pilot-usd", "0.002", "--json"])
    assert plan_result.exit_code == 0, plan_result.output
    evidence = json.loads(plan_result.stdout)["inputs"]["evidence"]
    assert (evidence["source"], evidence["jobs"], evidence["trials"]) == ("pilot", [pilot], 6)
    assert 0.5 < evidence["step_seconds"] < 1.5
    result = CliRunner().invoke(app, ["plan", file, "--pilot-usd", "0.002"])
    assert f"The pilot {pilot} cost $" in result.stdout
    assert client.post("/v1/plans", json=body(**{**PILOT, "budget": FEW})).json()["inputs"]["evidence"][
        "jobs"
    ] == [pilot]
