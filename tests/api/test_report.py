"""The report: best metric by spend equals the records, and estimates are marked as estimates."""

from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from tests import fakes
from tests.api.conftest import Finished
from tests.api.points import points
from tests.api.test_answers import reported
from tests.fakes import FakeService
from tuner.database.codec import decode
from tuner.database.tables import events
from tuner.domain.events import Reported
from tuner.domain.money import Money

METHODS = ["random_search", "stopping_asha"]


def report(client: TestClient, job: str) -> dict[str, Any]:
    answer = client.get(f"/v1/jobs/{job}/report")
    assert answer.status_code == 200, answer.text
    job_report: dict[str, Any] = answer.json()
    return job_report


def risen(service: FakeService, job: str, mode: str) -> list[tuple[float, float, str, int]]:
    """Return spend, value, trial and step of each report that was better than all before it, computed by separate code."""
    improvements: list[tuple[float, float, str, int]] = []
    best, spent = float("-inf"), Money(0)
    sign = 1 if mode == "max" else -1
    for point in sorted(points(service, job, mode), key=lambda point: point.seq):
        if point.score > best:
            best = point.score
            with service.database.read() as db:
                mine = (events.c.job == job) & (events.c.seq == point.seq)
                event = decode(db.execute(select(events.c.body).where(mine)).scalar_one())
            if isinstance(event, Reported):  # inherited reports have the number of another event
                spent = max(spent, event.spent)
            improvements.append((spent.usd, sign * best, point.trial, point.step))
    return improvements


def shown(report: dict[str, Any]) -> list[tuple[float, float, str, int]]:
    return [
        (point["spent_usd"], point["value"], point["trial"], point["step"]) for point in report["best_curve"]
    ]


def test_best_curve_has_each_report_better_than_all_before(finished: Finished) -> None:
    for job in (*finished.ended, finished.under_way):
        mode = "min" if job == finished.lowest else "max"
        job_report = report(finished.client, job)
        assert shown(job_report) == risen(finished.service, job, mode) != []
        spends = [spent for spent, *_ in shown(job_report)]
        assert spends == sorted(spends)
        assert job == finished.under_way or spends[-1] <= job_report["spent_usd"]


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_best_curve_is_correct_for_random_reports(finished: Finished, count: int, mode: str) -> None:
    many = reported(finished, mode, count)
    job_report = report(finished.client, many.job)
    assert shown(job_report) == risen(finished.service, many.job, mode)
    assert job_report["trials"] == len({point.trial for point in many.points})


def test_best_and_spend_of_the_report_match_the_job(finished: Finished) -> None:
    for job in finished.ended:
        check_best_and_spend(finished.client, job)


def check_best_and_spend(client: TestClient, job: str) -> dict[str, Any]:
    """Check the report of a job against the job, and return it."""
    job_report, job_view = report(client, job), client.get(f"/v1/jobs/{job}").json()
    assert (job_report["job"], job_report["best"]) == (job, job_view["best"])
    assert job_report["spent_usd"] == job_view["spend"]["usd"]
    last = job_report["best_curve"][-1]
    assert {name: last[name] for name in ("trial", "step")} == {
        name: job_view["best"][name] for name in ("trial", "step")
    }
    assert last["value"] == job_report["best"]["metric"]
    assert last["spent_usd"] == job_report["best_spent_usd"]
    assert (job_report["metric"], job_report["mode"]) == ("acc", job_view["objective"]["mode"])
    return job_report


def test_report_of_a_job_with_proxies_compares_only_the_highest_rung(
    client: TestClient, service: FakeService
) -> None:
    fidelity = {"unit": "epoch", "min": 1, "max": 9, "proxies": {"resolution": [16, 32]}}
    # The metric rises with the steps, so that the lowest ones are those of the first rung.
    objective = {"metric": "acc", "mode": "min"}
    job = fakes.submit(client, fidelity=fidelity, objective=objective, budget={"usd": 0.003})
    fakes.simulate(service, job)
    job_report = check_best_and_spend(client, job)
    assert all(point["step"] > 1 for point in job_report["best_curve"])
    lower = [point for point in points(service, job, "min") if point.step == 1]
    assert max(point.score for point in lower) > -job_report["best"]["metric"]


def test_estimates_are_marked_and_explained(finished: Finished) -> None:
    for job in finished.ended:
        job_report = report(finished.client, job)
        assert [listed_estimate["method"] for listed_estimate in job_report["estimates"]] == METHODS
        for estimate in job_report["estimates"]:
            assert estimate["estimate"] is True
            assert f"{job_report['trials']} trials" in estimate["note"]
            known = [estimate[name] for name in ("low_usd", "usd", "high_usd") if estimate[name] is not None]
            assert known == sorted(known)
            assert (
                (estimate["status"] == "estimated")
                == (estimate["usd"] is not None)
                == (estimate["saved_usd"] is not None)
            )
            if estimate["usd"] is not None:
                saved = estimate["usd"] - job_report["best_spent_usd"]
                assert estimate["saved_usd"] == pytest.approx(saved, abs=1e-9)


def test_random_search_estimate_stays_within_its_actual_spend(
    client: TestClient, service: FakeService
) -> None:
    job = fakes.submit(
        client, algorithm={"scheduler": "none", "sampler": "random", "seed": 1}, budget={"usd": 0.004}
    )
    fakes.simulate(service, job)
    job_report = report(client, job)
    random, _ = job_report["estimates"]
    assert random["status"] == "estimated"
    assert 0 < random["low_usd"] <= random["usd"] <= random["high_usd"] <= job_report["spent_usd"]


@pytest.mark.parametrize(("sampler", "learns"), [("random", False), ("tpe", True)])
def test_estimates_with_a_learning_sampler_are_marked_as_too_low(
    client: TestClient, service: FakeService, sampler: str, learns: bool
) -> None:
    job = fakes.submit(client, algorithm={"scheduler": "asha_stopping", "sampler": sampler})
    fakes.simulate(service, job)
    for estimate in report(client, job)["estimates"]:
        assert estimate["is_biased_low"] or not learns
        assert ("the true figure should be higher" in estimate["note"]) == learns


def test_job_without_reports_has_an_empty_curve_and_no_estimates(finished: Finished) -> None:
    job_report = report(finished.client, finished.waiting)
    assert (job_report["best"], job_report["best_curve"], job_report["best_spent_usd"]) == (None, [], None)
    assert (job_report["spent_usd"], job_report["trials"]) == (0, 0)
    for estimate in job_report["estimates"]:
        assert (estimate["status"], estimate["usd"], estimate["saved_usd"]) == ("not_enough_data", None, None)
        assert "no trial has reported" in estimate["note"]


def test_report_of_a_young_job_says_which_data_is_missing(client: TestClient, service: FakeService) -> None:
    job = fakes.submit(client)
    fakes.simulate(service, job, messages=12)
    job_report = report(client, job)
    assert job_report["best_curve"]
    assert {estimate["status"] for estimate in job_report["estimates"]} == {"not_enough_data"}
    assert all(estimate["note"] for estimate in job_report["estimates"])
