"""Bills, entry by entry, and the details of each trial."""

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.conftest import Finished
from tests.api.points import Point, points, put_report
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tuner.domain.money import Cost, Money
from tuner.domain.records import ReportRow
from tuner.domain.time import NS
from tuner.service.bill import bill
from tuner.store.journal import SqlJournal

KINDS = {"setup", "restore", "train", "checkpoint", "lost", "idle", "export"}


def ledger(finished: Finished, job: str, **query: Any) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = finished.client.get(f"/v1/jobs/{job}/ledger", params=query).json()[
        "items"
    ]
    return entries


def micro(usd: float) -> int:
    return round(usd * 1_000_000)


def spent(entries: list[dict[str, Any]], **where: Any) -> int:
    """Return the sum of posts and corrections in micro-dollars."""
    return sum(
        micro(entry["usd"])
        for entry in entries
        if entry["kind"] is not None and all(entry[name] == value for name, value in where.items())
    )


def test_bill_equals_the_sum_of_the_ledger(finished: Finished) -> None:
    for job in finished.all:
        entries, bill = ledger(finished, job), finished.client.get(f"/v1/jobs/{job}/bill").json()
        assert set(bill["by_kind"]) == KINDS
        assert {kind: micro(usd) for kind, usd in bill["by_kind"].items()} == {
            kind: spent(entries, kind=kind) for kind in KINDS
        }
        assert micro(bill["total_usd"]) == spent(entries) == sum(map(micro, bill["by_kind"].values()))
        for trial in bill["trials"]:
            assert micro(trial["total_usd"]) == spent(entries, trial=trial["trial"])
            assert micro(trial["total_usd"]) == sum(map(micro, trial["by_kind"].values()))
        assert sum(micro(trial["total_usd"]) for trial in bill["trials"]) == micro(bill["total_usd"])
        shown = finished.client.get(f"/v1/jobs/{job}").json()
        assert (shown["spend"]["usd"], shown["spend"]["held_usd"]) == (bill["total_usd"], bill["held_usd"])


def test_holds_are_posted_released_or_still_held(finished: Finished) -> None:
    for job in finished.all:
        sums = dict.fromkeys(("hold", "post", "release", "correct"), 0)
        for entry in ledger(finished, job):
            sums[entry["entry"]] += micro(entry["usd"])
        held = finished.client.get(f"/v1/jobs/{job}").json()["spend"]["held_usd"]
        assert sums["correct"] == 0
        assert sums["hold"] - sums["post"] - sums["release"] == micro(held)
        assert (held > 0) == (job == finished.under_way)


def test_job_with_crashes_and_preemptions_pays_for_lost_work(finished: Finished) -> None:
    bill = finished.client.get(f"/v1/jobs/{finished.troubled}/bill").json()
    assert bill["by_kind"]["lost"] > 0
    assert bill["by_kind"]["restore"] > 0
    trials = finished.client.get(f"/v1/jobs/{finished.troubled}/trials", params={"limit": 500}).json()[
        "items"
    ]
    assert bill["preemptions"] == sum(trial["preemptions"] for trial in trials) > 3


def test_lost_work_is_corrected_in_the_ledger(finished: Finished) -> None:
    assert any(entry["entry"] == "correct" for entry in ledger(finished, finished.troubled))


def test_savings_compare_with_running_all_trials_to_the_last_step(finished: Finished) -> None:
    bill = finished.client.get(f"/v1/jobs/{finished.plain}/bill").json()
    last: dict[str, Point] = {}
    for point in sorted(points(finished.service, finished.plain, "max"), key=lambda point: point.step):
        last[point.trial] = point
    entries = ledger(finished, finished.plain, limit=10_000)
    full = 0
    for point in last.values():
        setup = spent(entries, trial=point.trial, attempt=1, kind="setup")
        full += point.usd + round((point.usd - setup) * (9 - point.step) / point.step)
    assert micro(bill["savings"]["full_fidelity_usd"]) == full
    assert micro(bill["savings"]["against_full_fidelity_usd"]) == full - micro(bill["total_usd"])
    per = bill["total_usd"] / bill["completed_trials"]
    assert bill["cost_per_completed_trial_usd"] == pytest.approx(per, abs=1e-6)


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_ledger_pages_make_up_the_whole_ledger_oldest_first(finished: Finished, limit: int) -> None:
    whole = ledger(finished, finished.troubled)
    assert [entry["seq"] for entry in whole] == sorted(entry["seq"] for entry in whole)
    entries: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": limit}
    while True:
        page = finished.client.get(f"/v1/jobs/{finished.troubled}/ledger", params=query).json()
        entries += page["items"]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert entries == whole


def table(finished: Finished, job: str, **query: Any) -> list[dict[str, str]]:
    headers = {"Accept": "text/csv"}
    answer = finished.client.get(f"/v1/jobs/{job}/ledger", params=query, headers=headers)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(io.StringIO(answer.text, newline=""), strict=True))


def test_csv_ledger_has_the_same_entries_as_json(finished: Finished) -> None:
    for job in finished.all:
        entries, rows = ledger(finished, job), table(finished, job)
        amounts = [(row.pop("usd"), row.pop("gpu_hours")) for row in rows]
        assert [tuple(map(float, pair)) for pair in amounts] == [
            (entry.pop("usd"), entry.pop("gpu_hours")) for entry in entries
        ]
        assert not any("e" in amount for pair in amounts for amount in pair), "no amount has an exponent"
        assert rows == [
            {name: "" if value is None else str(value) for name, value in entry.items()} for entry in entries
        ]


def test_limit_applies_to_the_csv_ledger(finished: Finished) -> None:
    assert len(table(finished, finished.plain, limit=3)) == 3


# Trials


def test_trial_shows_its_curve_bill_and_attempts(finished: Finished) -> None:
    job = finished.troubled
    entries = ledger(finished, job)
    for listed in finished.client.get(f"/v1/jobs/{job}/trials", params={"limit": 500}).json()["items"]:
        shown = finished.client.get(f"/v1/jobs/{job}/trials/{listed['id']}").json()
        same = listed.keys() - {"reason"}  # a listing omits why a trial was left unfinished
        assert {name: shown[name] for name in same} == {name: listed[name] for name in same}
        steps = [point["step"] for point in shown["curve"]]
        assert steps == list(range(1, listed["steps"] + 1))
        costs = [point["cost_usd"] for point in shown["curve"]]
        assert costs == sorted(costs)
        assert [a["attempt"] for a in shown["attempt_list"]] == list(range(1, listed["attempts"] + 1))
        assert sum(map(micro, shown["bill"].values())) == micro(listed["cost_usd"])
        assert micro(listed["cost_usd"]) == spent(entries, trial=listed["id"])


def test_bills_of_attempts_add_up_to_the_bill_of_their_trial(finished: Finished) -> None:
    job = finished.troubled
    for listed in finished.client.get(f"/v1/jobs/{job}/trials", params={"limit": 500}).json()["items"]:
        shown = finished.client.get(f"/v1/jobs/{job}/trials/{listed['id']}").json()
        for kind, usd in shown["bill"].items():
            assert micro(usd) == sum(micro(a["bill"][kind]) for a in shown["attempt_list"])
        taken = [a for a in shown["attempt_list"] if a["end"] == "preempted"]
        assert len(taken) == listed["preemptions"]


@pytest.mark.parametrize("trial", ["trial_99999", "trial_0", "x", "trial_00000'--", "%00"])
def test_unknown_trial_is_404(finished: Finished, trial: str) -> None:
    check_problem(finished.client.get(f"/v1/jobs/{finished.plain}/trials/{trial}"), 404)


def strict_json(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


ODD_METRICS = {"loss": float("nan"), "worst": float("inf"), "name": "a"}


@pytest.fixture
def odd(client: TestClient, service: FakeService) -> str:
    """Return an ended job whose trial reported non-finite numbers next to its metric."""
    job = fakes.submit(client)
    fakes.begin(service, job)
    journal = SqlJournal(service.database, job, service.project, 1, service.now())
    row = ReportRow("trial_00000", 1, 1, service.now(), 0.5, ODD_METRICS, Cost(Money(5)), NS)
    with journal.transaction() as tx:
        tx.put_trial("trial_00000", "running", at=service.now(), config={"lr": 0.1})
        put_report(tx, row)
        put_report(tx, replace(row, step=2, value=float("nan")))
    fakes.move(service, job, "succeeded")
    return job


@pytest.mark.parametrize("path", ["", "/best", "/pareto", "/trials", "/trials/trial_00000"])
def test_non_finite_metrics_are_returned_as_valid_json(client: TestClient, odd: str, path: str) -> None:
    answer = client.get(f"/v1/jobs/{odd}{path}")
    assert answer.status_code == 200
    strict_json(answer.text)


def test_events_with_non_finite_metrics_are_valid_json(client: TestClient, odd: str) -> None:
    for line in client.get(f"/v1/jobs/{odd}/events").text.splitlines():
        if line.startswith("data:"):
            strict_json(line.removeprefix("data:"))


def test_trainables_are_listed_unprobed_and_probed_on_request(
    client: TestClient, service: FakeService
) -> None:
    items = client.get("/v1/trainables").json()["items"]
    assert fakes.ENTRY in [item["trainable"] for item in items]
    assert all(item["search_space"] and item["error"] is None for item in items)
    assert service.prober.described == []
    path = f"/v1/trainables/{fakes.ENTRY}"
    assert client.get(path).json()["error"] is None
    service.prober.errors[fakes.ENTRY] = "ImportError: torch"
    assert client.get(path).json()["error"] == "ImportError: torch"
    for name, words in (("os:system", "TUNER_ALLOWED_MODULES"), ("train", "module:function")):
        refused = client.get(f"/v1/trainables/{name}")
        assert refused.status_code == 422
        assert words in refused.json()["errors"][0]["detail"]
    assert service.prober.described == [fakes.ENTRY] * 2


def test_budget_of_trials_is_used_up_when_the_last_trial_has_begun(
    service: FakeService, client: TestClient
) -> None:
    algorithm = {"scheduler": "asha", "sampler": "random", "seed": 1}
    job = fakes.submit(client, algorithm=algorithm, budget={"usd": 1, "trials": 5})
    fakes.simulate(service, job)
    shown = client.get(f"/v1/jobs/{job}").json()
    assert shown["stop_reason"] == "trials"
    assert shown["progress"]["trials"]["paused"] > 0
    assert shown["progress"]["budget_used"] == 1


def test_unfinished_trials_of_an_ended_job_state_the_reason(finished: Finished) -> None:
    def reasons(job: str) -> list[str]:
        listed = finished.client.get(f"/v1/jobs/{job}/trials?limit=500").json()["items"]
        left = [trial["id"] for trial in listed if trial["state"] in ("pending", "paused")]
        return [finished.client.get(f"/v1/jobs/{job}/trials/{trial}").json()["reason"] for trial in left[:3]]

    all_reasons = [reason for job in finished.ended for reason in reasons(job)]
    assert all_reasons
    assert all(reason.startswith("the job ended (") for reason in all_reasons), all_reasons
    assert set(reasons(finished.under_way)) <= {""}


def test_spot_savings_use_the_on_demand_price_at_admission(service: FakeService, client: TestClient) -> None:
    labels = {"ray.io/market-type": "spot", "usd-per-hour": "0.05"}
    service.cluster.fake_nodes = [replace(fakes.SMALL, labels=labels)]
    job = fakes.submit(client, resources={"market": "spot"})
    fakes.simulate(service, job)
    with service.database.write() as db:
        db.exec_driver_sql(f"UPDATE attempts SET market = 'spot' WHERE job = '{job}'")
    before = bill(service, job).on_demand
    assert before is not None
    later = replace(service, settings=replace(service.settings, node_prices={"local": 99.0}))
    assert bill(later, job).on_demand == before


def on_the_cheaper_of_two_types(service: FakeService) -> tuple[FakeService, str]:
    """Run a job that may use two types of spot machines, with all attempts on the cheaper type. A trial takes half a machine.

    Returns:
        A service with on-demand prices of both types, and the job.
    """
    on_demand = {"m.cheap": 0.2, "m.expensive": 3.0}
    both = replace(service, settings=replace(service.settings, node_prices=on_demand))
    both.cluster.fake_nodes = [
        replace(
            fakes.SMALL,
            id=kind,
            labels={"ray.io/market-type": "spot", "instance-type": kind, "usd-per-hour": usd},
        )
        for kind, usd in (("m.cheap", "0.05"), ("m.expensive", "0.3"))
    ]
    job = fakes.submit(fakes.client_of(both), resources={"market": "spot"})
    fakes.simulate(both, job)
    changed = (
        "market = 'spot', price = 25000, instance_type = 'm.cheap', machine_price = 50000, price_source = ''"
    )
    with both.database.write() as db:
        db.exec_driver_sql(f"UPDATE attempts SET {changed} WHERE job = '{job}'")
    return both, job


def test_spot_savings_compare_with_the_type_of_machine_that_was_used(service: FakeService) -> None:
    used, job = on_the_cheaper_of_two_types(service)
    job_bill = bill(used, job)
    assert job_bill.job.offer.instance_type == "m.expensive"
    assert job_bill.on_demand is not None
    assert job_bill.search.micro_usd > 0
    assert job_bill.on_demand.micro_usd == 4 * job_bill.search.micro_usd
