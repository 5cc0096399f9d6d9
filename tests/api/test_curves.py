"""The route for all learning curves equals the events so far, and the event stream continues from there."""

import gzip
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, update
from starlette.testclient import TestClient

from tests import fakes
from tests.api.conftest import Finished
from tests.api.test_bad_bodies import check_problem
from tests.api.test_events import numbered, stream
from tests.fakes import FakeService
from tuner.api.routers import curves
from tuner.api.routers.curves import RoundedNumbers
from tuner.cli.answers import sparkline
from tuner.database.tables import reports


def get(client: TestClient, job: str) -> dict[str, Any]:
    answer = client.get(f"/v1/jobs/{job}/curves")
    assert answer.status_code == 200
    job_curves: dict[str, Any] = answer.json()
    return job_curves


def test_curves_match_the_event_stream(finished: Finished) -> None:
    for job in finished.ended:
        messages = numbered(stream(finished.client, job))
        points = {(m.data["trial"], m.data["step"]): m.data for m in messages if m.kind == "report"}
        rows = {m.data["id"]: m.data for m in messages if m.kind == "trial"}
        job_curves = get(finished.client, job)
        assert (job_curves["job"], job_curves["metric"], job_curves["rounded"]) == (job, "acc", False)
        assert {curve["id"] for curve in job_curves["trials"]} == set(rows)
        seen = 0
        for trial in job_curves["trials"]:
            row = rows[trial["id"]]
            assert [trial[name] for name in ("state", "reason", "config", "attempts", "preemptions")] == [
                row[name] for name in ("state", "reason", "config", "attempts", "preemptions")
            ]
            assert trial["total_usd"] == row["cost_usd"]
            for step, metric, cost in zip(trial["steps"], trial["metric"], trial["cost_usd"], strict=True):
                point = points[trial["id"], step]
                assert (metric, cost) == (point["metric"], point["cost_usd"])
                seen += 1
            assert trial["steps"] == sorted(trial["steps"])
        assert seen == len(points)


def test_spend_in_curves_is_consistent_with_the_best_curve_of_the_report(finished: Finished) -> None:
    for job in finished.ended:
        report = finished.client.get(f"/v1/jobs/{job}/report").json()
        by_place = {
            (trial["id"], step): (metric, spent)
            for trial in get(finished.client, job)["trials"]
            for step, metric, spent in zip(trial["steps"], trial["metric"], trial["spent_usd"], strict=True)
        }
        for point in report["best_curve"]:
            metric, spent = by_place[point["trial"], point["step"]]
            assert metric == point["value"]
            assert spent <= point["spent_usd"]


def test_promotions_and_preemptions_have_the_right_steps(finished: Finished) -> None:
    job = finished.troubled
    rungs = finished.client.get(f"/v1/jobs/{job}").json()["rungs"]
    trials = get(finished.client, job)["trials"]
    assert any(curve["promotions_at"] for curve in trials)
    assert any(curve["preemptions_at"] for curve in trials)
    for trial in trials:
        attempts = finished.client.get(f"/v1/jobs/{job}/trials/{trial['id']}").json()["attempt_list"]
        assert trial["preemptions_at"] == [a["to_step"] for a in attempts if a["end"] == "preempted"]
        assert len(trial["preemptions_at"]) == trial["preemptions"]
        last = max(trial["steps"], default=0)
        assert trial["promotions_at"] == [rung for rung in rungs if rung in trial["steps"] and rung < last]


def test_event_stream_continues_from_the_curves_without_a_gap(
    client: TestClient, service: FakeService
) -> None:
    job = fakes.submit(client)
    run = fakes.simulate(service, job, messages=60)
    first = get(client, job)
    known = {(trial["id"], step) for trial in first["trials"] for step in trial["steps"]}
    run.run(turns_max=100_000)
    later = [m.data for m in stream(client, job, first["seq"]) if m.kind == "report"]
    later_points = [(report["trial"], report["step"]) for report in later]
    assert not known & set(later_points)
    assert known | set(later_points) == {
        (trial["id"], s) for trial in get(client, job)["trials"] for s in trial["steps"]
    }
    assert known
    assert later_points


def test_unchanged_curves_are_not_sent_again(client: TestClient, service: FakeService) -> None:
    job = fakes.submit(client)
    run = fakes.simulate(service, job, messages=60)
    path, tag = f"/v1/jobs/{job}/curves", client.get(f"/v1/jobs/{job}/curves").headers["ETag"]
    again = client.get(path, headers={"If-None-Match": f'"other", {tag}'})
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)
    run.run(turns_max=100_000)
    assert client.get(path, headers={"If-None-Match": tag}).status_code == 200


@pytest.mark.parametrize("taken", ["gzip, deflate", "identity"])
def test_curves_are_compressed_if_the_client_accepts_gzip(finished: Finished, taken: str) -> None:
    with finished.client.stream(
        "GET", f"/v1/jobs/{finished.plain}/curves", headers={"Accept-Encoding": taken}
    ) as answer:
        data = b"".join(answer.iter_raw())
    assert answer.headers["Vary"] == "Accept-Encoding"
    assert answer.headers.get("Content-Encoding") == ("gzip" if "gzip" in taken else None)
    text = gzip.decompress(data) if "gzip" in taken else data
    assert json.loads(text) == get(finished.client, finished.plain)


def test_many_points_are_rounded_within_the_chart_resolution(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = get(finished.client, finished.plain)
    monkeypatch.setattr(curves, "EXACT_POINTS", 5)
    rounded = get(fakes.client_of(finished.service, own=True), finished.plain)
    assert rounded["rounded"]
    for name, parts in (("metric", 1000), ("cost_usd", 500), ("spent_usd", 500)):
        whole = [value for trial in exact["trials"] for value in trial[name]]
        near = [value for trial in rounded["trials"] for value in trial[name]]
        allowed = (max(whole) - min(0, *whole)) / parts / 2 + 1e-9
        assert max(abs(a - b) for a, b in zip(whole, near, strict=True)) <= allowed
    for a, b in zip(exact["trials"], rounded["trials"], strict=True):
        assert (a["best_metric"], a["total_usd"], a["steps"]) == (
            b["best_metric"],
            b["total_usd"],
            b["steps"],
        )


@given(
    values=st.lists(st.none() | st.floats(-1e12, 1e12), max_size=20),
    spread=st.floats(1e-200, 1e12),
    parts=st.integers(1, 5000),
)
def test_rounding_error_stays_within_the_stated_resolution(
    values: Sequence[float | None], spread: float, parts: int
) -> None:
    for value, text in zip(values, RoundedNumbers(spread, parts).all(values), strict=True):
        rounded = json.loads(text)
        assert (rounded is None) == (value is None)
        if value is not None:
            assert abs(rounded - value) <= spread / parts * 0.51 + abs(value) * 1e-12


def test_sparkline_is_at_most_30_characters_wide() -> None:
    assert sparkline([0.0, 1.0] * 100, 0, 1).strip("▁█") == ""
    assert len(sparkline([0.0] * 500, 0, 0)) == 30


def test_any_reported_metric_can_be_charted(client: TestClient, service: FakeService) -> None:
    job = fakes.submit(client)
    fakes.simulate(service, job)
    with service.database.write() as db:
        for row in db.execute(select(reports).where(reports.c.job == job, reports.c.step != 1)).all():
            extra = {**json.loads(row.metrics), "val loss": row.step / 8, "note": "text", "is_new": True}
            extra["beyond all floats"] = 10**400
            place = (reports.c.job == job) & (reports.c.trial == row.trial) & (reports.c.step == row.step)
            db.execute(update(reports).where(place).values(metrics=json.dumps(extra)))
    path = f"/v1/jobs/{job}/curves"
    plain, charted = get(client, job), client.get(path, params={"metric": "val loss"}).json()
    assert (plain["metric"], plain["objective"], plain["metrics"]) == ("acc", "acc", ["acc", "val loss"])
    assert (charted["metric"], charted["objective"], charted["metrics"]) == (
        "val loss",
        "acc",
        plain["metrics"],
    )
    assert client.get(path, params={"metric": "acc"}).json() == plain
    for trial, same in zip(charted["trials"], plain["trials"], strict=True):
        assert trial["metric"] == [None if step == 1 else step / 8 for step in trial["steps"]]
        assert {**trial, "metric": []} == {**same, "metric": []}
    assert max(len(curve["steps"]) for curve in charted["trials"]) > 1
    for name in ("vall_loss", "note"):
        refused = check_problem(client.get(path, params={"metric": name}), 422)
        assert "choose one of acc, val loss" in refused["errors"][0]["detail"]
    waiting = fakes.submit(client)
    assert client.get(f"/v1/jobs/{waiting}/curves", params={"metric": "val loss"}).json()["trials"] == []
