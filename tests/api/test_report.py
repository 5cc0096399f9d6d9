"""The report: best metric by spend equals the records, and estimates are marked as estimates."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select
from starlette.testclient import TestClient

from tests import fakes
from tests.api.conftest import Finished
from tests.api.points import points
from tests.api.test_answers import ROWS, reported
from tests.fakes import FakeService
from tests.strategies import examples
from tuner.database.codec import decode
from tuner.database.tables import events
from tuner.domain.money import Money

METHODS = ["random_search", "stopping_asha"]


def report(client: TestClient, job: str) -> dict[str, Any]:
    answer = client.get(f"/v1/jobs/{job}/report")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def risen(service: FakeService, job: str, mode: str) -> list[tuple[float, float, str, int]]:
    """Return spend, value, trial and step of each report that was better than all before it, computed by separate code."""
    found: list[tuple[float, float, str, int]] = []
    best, spent = float("-inf"), Money(0)
    sign = 1 if mode == "max" else -1
    for point in sorted(points(service, job, mode), key=lambda point: point.seq):
        if point.score > best:
            best = point.score
            with service.database.read() as db:
                mine = (events.c.job == job) & (events.c.seq == point.seq)
                spent = max(spent, decode(db.execute(select(events.c.body).where(mine)).scalar_one()).spent)
            found.append((spent.usd, sign * best, point.trial, point.step))
    return found


def shown(found: dict[str, Any]) -> list[tuple[float, float, str, int]]:
    return [(one["spent_usd"], one["value"], one["trial"], one["step"]) for one in found["best_curve"]]


def test_best_curve_has_each_report_better_than_all_before(finished: Finished) -> None:
    for job in (*finished.ended, finished.under_way):
        mode = "min" if job == finished.lowest else "max"
        found = report(finished.client, job)
        assert shown(found) == risen(finished.service, job, mode) != []
        spends = [spent for spent, *_ in shown(found)]
        assert spends == sorted(spends)
        assert job == finished.under_way or spends[-1] <= found["spent_usd"]


@examples(30)
@given(rows=ROWS, mode=st.sampled_from(["max", "min"]))
def test_best_curve_is_correct_for_arbitrary_reports(finished: Finished, rows: list[Any], mode: str) -> None:
    many = reported(finished, rows, mode)
    found = report(finished.client, many.job)
    assert shown(found) == risen(finished.service, many.job, mode)
    assert found["trials"] == len({point.trial for point in many.points})


def test_best_and_spend_of_the_report_match_the_job(finished: Finished) -> None:
    for job in finished.ended:
        found, told = report(finished.client, job), finished.client.get(f"/v1/jobs/{job}").json()
        assert (found["job"], found["best"]) == (job, told["best"])
        assert found["spent_usd"] == told["spend"]["usd"]
        assert found["best_curve"][-1]["value"] == found["best"]["metric"]
        assert found["best_curve"][-1]["spent_usd"] == found["best_spent_usd"]
        assert (found["metric"], found["mode"]) == ("acc", told["objective"]["mode"])


def test_estimates_are_marked_and_explained(finished: Finished) -> None:
    for job in finished.ended:
        found = report(finished.client, job)
        assert [one["method"] for one in found["estimates"]] == METHODS
        for one in found["estimates"]:
            assert one["estimate"] is True
            assert f"{found['trials']} trials" in one["note"]
            known = [one[name] for name in ("low_usd", "usd", "high_usd") if one[name] is not None]
            assert known == sorted(known)
            assert (
                (one["status"] == "estimated") == (one["usd"] is not None) == (one["saved_usd"] is not None)
            )
            if one["usd"] is not None:
                saved = one["usd"] - found["best_spent_usd"]
                assert one["saved_usd"] == pytest.approx(saved, abs=1e-9)


def test_random_search_estimate_stays_within_its_actual_spend(
    client: TestClient, service: FakeService
) -> None:
    job = fakes.submit(
        client, algorithm={"scheduler": "none", "sampler": "random", "seed": 1}, budget={"usd": 0.004}
    )
    fakes.simulate(service, job)
    found = report(client, job)
    random, _ = found["estimates"]
    assert random["status"] == "estimated"
    assert 0 < random["low_usd"] <= random["usd"] <= random["high_usd"] <= found["spent_usd"]


@pytest.mark.parametrize(("sampler", "learns"), [("random", False), ("tpe", True)])
def test_estimates_with_a_learning_sampler_are_marked_as_too_low(
    client: TestClient, service: FakeService, sampler: str, learns: bool
) -> None:
    job = fakes.submit(client, algorithm={"scheduler": "asha_stopping", "sampler": sampler})
    fakes.simulate(service, job)
    for one in report(client, job)["estimates"]:
        assert one["is_biased_low"] or not learns
        assert ("the true figure should be higher" in one["note"]) == learns


def test_job_without_reports_has_an_empty_curve_and_no_estimates(finished: Finished) -> None:
    found = report(finished.client, finished.waiting)
    assert (found["best"], found["best_curve"], found["best_spent_usd"]) == (None, [], None)
    assert (found["spent_usd"], found["trials"]) == (0, 0)
    for one in found["estimates"]:
        assert (one["status"], one["usd"], one["saved_usd"]) == ("not_enough_data", None, None)
        assert "no trial has reported" in one["note"]


def test_report_of_a_young_job_says_which_data_is_missing(client: TestClient, service: FakeService) -> None:
    job = fakes.submit(client)
    fakes.simulate(service, job, messages=12)
    found = report(client, job)
    assert found["best_curve"]
    assert {one["status"] for one in found["estimates"]} == {"not_enough_data"}
    assert all(one["note"] for one in found["estimates"])
