"""The monthly report of a project equals its ledger, and names what its savings are compared with."""

import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tests import fakes
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tuner.cli.main import app
from tuner.client import Client
from tuner.domain.time import NS
from tuner.service.finops import Maturity
from tuner.simulator.world import Faults


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeService]:
    made = fakes.service_in(tmp_path_factory.mktemp("finops"))
    yield made
    made.database.dispose()


@pytest.fixture(scope="module")
def client(service: FakeService) -> TestClient:
    """A client of a service with two jobs that have ended, one of them with tags, and one that is running."""
    client = fakes.client_of(service)
    for number, tags in enumerate([{"owner": "ann"}, {}, {}]):
        algorithm = {"scheduler": "asha", "sampler": "random", "seed": number}
        job = fakes.submit(client, tags=tags, algorithm=algorithm)
        last = {"messages": 40} if number == 2 else {}
        fakes.simulate(service, job, seed=number, faults=Faults(crash=0.05), at=service.now(), **last)
    return client


def month(service: FakeService) -> str:
    return f"{datetime.fromtimestamp(service.now() // NS, UTC):%Y-%m}"


def get(client: TestClient, **query: Any) -> Any:
    answer = client.get("/v1/report", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_report_equals_spend_and_bills(service: FakeService, client: TestClient) -> None:
    report, spend = get(client), client.get("/v1/spend").json()
    assert report["month"] == month(service)
    assert not report["is_complete"]
    assert {**report["total"]} == spend["total"]
    kinds = {spend_row["kind"]: spend_row["usd"] for spend_row in report["by_kind"]}
    assert sum(kinds.values()) == pytest.approx(spend["total"]["usd"])
    assert report["goodput"] == pytest.approx(kinds["train"] / sum(kinds.values()), abs=1e-6)
    assert report["ended_jobs"] == {"cancelled": 0, "failed": 0, "succeeded": 2}
    assert (report["examined_jobs"], report["spot_share"]) == (2, 0)
    ended = [
        job_view["id"] for job_view in client.get("/v1/jobs", params={"state": "succeeded"}).json()["items"]
    ]
    bills = [client.get(f"/v1/jobs/{job}/bill").json() for job in ended]
    spot, stopping = report["savings"]
    assert spot["saved_usd"] == 0
    assert stopping["jobs"] == 2
    assert stopping["saved_usd"] == pytest.approx(
        sum(bill["savings"]["against_full_fidelity_usd"] for bill in bills)
    )
    advised = [f["kind"] for job in ended for f in client.get(f"/v1/jobs/{job}/advice").json()["findings"]]
    assert {right_sizing["kind"]: right_sizing["jobs"] for right_sizing in report["right_sizing"]} == {
        kind: advised.count(kind) for kind in advised
    }
    allocation = report["maturity"][0]
    owned = next(
        row for row in client.get("/v1/spend?group_by=owner").json()["items"] if row["keys"]["owner"]
    )
    assert allocation["value"] == pytest.approx(owned["usd"] / spend["total"]["usd"], abs=1e-6)
    assert allocation["level"] == "crawl"


def test_month_without_spend_has_no_shares(client: TestClient) -> None:
    report = get(client, month="1999-02", timezone="Asia/Kathmandu")
    assert report["since"] == "1999-01-31T18:15:00.000000Z"
    assert report["is_complete"]
    assert report["total"]["usd"] == 0
    assert (report["goodput"], report["spot_share"], report["right_sizing"]) == (None, None, [])
    assert [capability["level"] for capability in report["maturity"]] == [None] * 5


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"month": "2026"}, "month"),
        ({"month": "2026-13"}, "month"),
        ({"month": "9999-12"}, "month"),
        ({"timezone": "Mars/Base"}, "timezone"),
    ],
)
def test_wrong_month_or_time_zone_is_refused(client: TestClient, query: dict[str, str], pointer: str) -> None:
    problem = check_problem(client.get("/v1/report", params=query), 422)
    assert problem["errors"][0]["pointer"] == pointer


@pytest.mark.parametrize(
    ("value", "walk", "run", "level"),
    [
        (None, 0.8, 0.9, None),
        (0.79, 0.8, 0.9, "crawl"),
        (0.8, 0.8, 0.9, "walk"),
        (0.9, 0.8, 0.9, "run"),
        (0.31, 0.3, 0.1, "crawl"),
        (0.3, 0.3, 0.1, "walk"),
        (0.1, 0.3, 0.1, "run"),
    ],
)
def test_level_begins_at_its_threshold(
    value: float | None, walk: float, run: float, level: str | None
) -> None:
    assert Maturity("", "", value, walk, run, "").level == level


def test_report_command_writes_markdown_and_csv(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Client("http://tuner", fakes.KEY, transport=client._transport)
    monkeypatch.setattr("tuner.client.Client", lambda: made)
    runner, report = CliRunner(), get(client)
    shown = runner.invoke(app, ["report"])
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith(f"# default in {month(service)}, which is not over yet")
    assert f"| goodput | {report['goodput']:.1%} |" in shown.output
    assert "every trial trained to the last step at its own pace |" in shown.output
    for name in ("markdown", "md"):
        assert runner.invoke(app, ["report", "--format", name]).output == shown.output
    table = runner.invoke(app, ["report", "--month", month(service), "--format", "csv"]).output
    rows = {
        (row["section"], row["name"], row["figure"]): row["value"]
        for row in csv.DictReader(io.StringIO(table))
    }
    assert float(rows["total", report["month"], "usd"]) == report["total"]["usd"]
    assert rows["maturity", "Allocation", "level"] == "crawl"
    both = runner.invoke(app, ["report", "job_1", "--month", "2026-11"])
    assert both.exit_code == 2
