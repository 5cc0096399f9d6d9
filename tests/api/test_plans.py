"""Plans over REST: worked examples, their evidence, and refused requests."""

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from starlette.testclient import TestClient

from tests import fakes
from tests.fakes import FakeProber, FakeService, body
from tuner.cli.plan import shown as plan_shown
from tuner.cluster.nodes import Node
from tuner.domain.time import NS
from tuner.schemas.plan import Plan
from tuner.service.trainables import Described

service, client = fakes.fixtures("module")
HOUR = 3600.0
# $4.00 an hour for one hour, or $1.40 an hour for 2.2 hours, for one training of ten steps.
EXPENSIVE = {"instance_type": "expensive", "usd_per_hour": 4.00, "step_seconds": 360, "cpus": 1}
CHEAP = {"instance_type": "cheap", "usd_per_hour": 1.40, "step_seconds": 792, "cpus": 1}
EXACT = {"setup_seconds": 0, "checkpoint_seconds": 0, "step_spread": 0}


def plan(client: TestClient, planning: dict[str, Any], **changes: Any) -> dict[str, Any]:
    answer = client.post("/v1/plans", json=body(planning=planning, **changes))
    assert answer.status_code == 200, answer.text
    plan_view: dict[str, Any] = answer.json()
    return plan_view


def refused(client: TestClient, planning: dict[str, Any], **changes: Any) -> dict[str, str]:
    answer = client.post("/v1/plans", json=body(planning=planning, **changes))
    assert answer.status_code == 422, answer.text
    return {error["pointer"]: error["detail"] for error in answer.json()["errors"]}


def one_training(**planning: Any) -> dict[str, Any]:
    return {
        "planning": {"candidates": [EXPENSIVE, CHEAP], **EXACT, **planning},
        "fidelity": {"unit": "epoch", "max": 10},
        "budget": {"usd": 6, "trials": 1},
        "algorithm": {"scheduler": "none", "sampler": "random"},
    }


def chosen(plan: dict[str, Any]) -> dict[str, Any]:
    (choice,) = [alternative for alternative in plan["alternatives"] if alternative["chosen"]]
    return dict(choice)


def test_cheap_machine_is_chosen_without_a_deadline(client: TestClient) -> None:
    cheap_plan = plan(client, **one_training())
    (width,) = (choice for choice in cheap_plan["choices"] if choice["what"] == "concurrency")
    assert width["why"].endswith("the job ends after 2:12 h")
    assert chosen(cheap_plan)["instance_type"] == "cheap"
    usd = {alternative["instance_type"]: alternative["usd"] for alternative in cheap_plan["alternatives"]}
    assert usd["cheap"] == pytest.approx(3.08, rel=0.01)
    assert usd["expensive"] == pytest.approx(4.00, rel=0.01)
    assert cheap_plan["finish_seconds"]["expected"] == pytest.approx(2.2 * HOUR, rel=0.01)


def test_expensive_machine_is_chosen_with_a_two_hour_deadline(client: TestClient) -> None:
    job_plan = plan(client, **one_training(deadline="2h"))
    assert chosen(job_plan)["instance_type"] == "expensive"
    assert job_plan["in_time"]["chance"] == 1
    (late,) = [alternative for alternative in job_plan["alternatives"] if not alternative["chosen"]]
    assert late["in_time"]["chance"] <= 0.2
    assert job_plan["usd"]["expected"] == pytest.approx(4.00, rel=0.01)


def test_plan_respects_usd_gpu_hour_and_trial_limits(client: TestClient) -> None:
    """Three warm-up epochs, the bottom half pruned, fifteen epochs for promoted trials, at most forty trials."""
    limited_plan = plan(
        client,
        {
            "candidates": [{"instance_type": "gpu", "usd_per_hour": 4, "gpus": 1, "cpus": 4}],
            "step_seconds": 300,
        },
        objective={"metric": "val_auc", "mode": "max"},
        fidelity={"unit": "epoch", "min": 3, "max": 15, "reduction_factor": 2},
        budget={"usd": 100, "gpu_hours": 20, "trials": 40},
        resources={"cpus": 4, "gpus": 1, "max_concurrent_trials": 2},
        algorithm={"scheduler": "asha", "sampler": "random"},
    )
    first, *_, last = limited_plan["rungs"]
    assert [rung["step"] for rung in limited_plan["rungs"]] == [3, 6, 12, 15]
    assert limited_plan["trials"]["high"] <= 40
    assert limited_plan["gpu_hours"]["high"] <= 20
    assert limited_plan["usd"]["high"] <= 80.000001
    assert set(limited_plan["ends"]) <= {"budget_gpu_hours", "trials"}
    assert limited_plan["rungs"][1]["trials"] == pytest.approx(first["trials"] / 2, rel=0.2)
    assert 1 <= last["trials"] < first["trials"] / 4
    full = {comparison["name"]: comparison for comparison in limited_plan["comparisons"]}["random_search"]
    assert full["usd"] > 1.5 * limited_plan["usd"]["expected"]
    assert full["trials"] == pytest.approx(limited_plan["trials"]["expected"], abs=1)


def test_grid_search_has_as_many_trials_as_the_grid_has_points(client: TestClient) -> None:
    """Combinations that differ only in an inactive parameter are the same point: 5 * 5 * (5 + 1), not 5 * 5 * 2 * 5."""
    number = {"type": "float", "low": 0.0, "high": 1.0}
    compared = plan(
        client,
        {"step_seconds": 1},
        search_space={
            "lr": number,
            "momentum": number,
            "layers": {"type": "int", "low": 1, "high": 2},
            "dropout": {**number, "when": {"layers": [2]}},
        },
        budget={"usd": 1.0, "trials": 300},
    )["comparisons"]
    notes = {comparison["name"]: (comparison["trials"], comparison["note"]) for comparison in compared}
    trials, note = notes["grid_search"]
    assert trials == 150
    assert note.startswith("150 trials, each")
    assert "all 150 points" in note


def test_spot_and_on_demand_are_compared(client: TestClient) -> None:
    machine = {"instance_type": "gpu", "usd_per_hour": 4, "spot_usd_per_hour": 1.2, "gpus": 1, "cpus": 4}
    spot_plan = plan(
        client,
        {
            "candidates": [machine],
            "step_seconds": 600,
            "markets": ["on_demand", "spot", "spot_with_fallback"],
        },
        fidelity={"unit": "epoch", "min": 3, "max": 15, "reduction_factor": 2},
        budget={"usd": 120, "trials": 20},
        resources={"cpus": 4, "gpus": 1, "max_concurrent_trials": 2},
        algorithm={"scheduler": "asha", "sampler": "random"},
    )
    by_market = {alternative["market"]: alternative for alternative in spot_plan["alternatives"]}
    assert by_market["spot"]["usd"] < 0.5 * by_market["on_demand"]["usd"]
    assert by_market["spot"]["finish_seconds"] >= by_market["on_demand"]["finish_seconds"]
    assert chosen(spot_plan)["market"] == "spot"
    assert {comparison["name"] for comparison in spot_plan["comparisons"]} >= {
        "on_demand",
        "spot_with_fallback",
    }


def test_plan_without_evidence_warns_and_runs_nothing(client: TestClient, service: FakeService) -> None:
    def at_work() -> tuple[list[str], Any]:
        return list(service.cluster.submitted), client.get("/v1/jobs").json()["items"]

    before = at_work()
    job_plan = plan(client, {}, trainable="trainables.char_lm:train")
    assert job_plan["inputs"]["evidence"]["source"] == "none"
    assert any("the step time of" in warning for warning in job_plan["warnings"])
    assert job_plan["best"] is None
    assert at_work() == before
    again = plan(client, {}, trainable="trainables.char_lm:train")
    assert again == job_plan


def test_costs_of_rungs_add_up_and_follow_from_the_stated_prices(client: TestClient) -> None:
    job_plan = plan(client, {"step_seconds": 3}, budget={"usd": 2})
    micro = [round(rung["usd"] * 1e6) for rung in job_plan["rungs"]]
    assert sum(micro) == round(job_plan["usd"]["expected"] * 1e6)
    price = job_plan["inputs"]["prices"][0]["trial_usd_per_hour"]
    for rung in job_plan["rungs"]:
        assert rung["usd_per_hour"] == pytest.approx(price, rel=0.01)
        again = rung["steps"] * rung["step_seconds"] * rung["usd_per_hour"] / 3600
        assert rung["train_usd"] == pytest.approx(again, rel=0.01, abs=2e-6)
        assert round(rung["usd"] * 1e6) == round((rung["train_usd"] + rung["overhead_usd"]) * 1e6)


BAD = [
    ({"deadline": 0}, "/planning/deadline", ""),
    ({"deadline": "2001-01-01T00:00:00Z"}, "/planning/deadline", "later"),
    ({"deadline": "soon"}, "/planning/deadline", "duration"),
    ({"deadline": "2026-13-01T00:00:00Z"}, "/planning/deadline", "give a time with its offset"),
    ({"step_seconds": -1}, "/planning/step_seconds", ""),
    ({"step_seconds": 0}, "/planning/step_seconds", "more than 0"),
    ({"steps_from": ["job_0"]}, "/planning/steps_from/0", "the job 'job_0' does not exist"),
    ({"candidates": [{"instance_type": "g5.xlage"}]}, "/planning/candidates/0/instance_type", "g5.xlarge"),
    ({"candidates": [{"instance_type": "a", "usd_per_hour": 0}]}, "/planning/candidates/0/usd_per_hour", "0"),
    ({"catalogue": {"region": "us-est-1"}}, "/planning/catalogue/region", "us-east-1"),
    ({"catalogue": {"accelerator": "H1000"}}, "/planning/catalogue/accelerator", "H100"),
    ({"speeds": {"locl": 2}}, "/planning/speeds/locl", "local"),
    ({"word": 1}, "/planning/word", ""),
]


@pytest.mark.parametrize(("planning", "pointer", "word"), BAD)
def test_invalid_planning_field_is_refused_with_a_pointer(
    client: TestClient, planning: dict[str, Any], pointer: str, word: str
) -> None:
    errors = refused(client, planning)
    assert pointer in errors, errors
    assert word in errors[pointer]


def test_plan_and_job_report_the_same_errors(client: TestClient) -> None:
    for change in ({"budget": {"usd": 1e-6}}, {"fidelity": {"min": 5, "max": 2}}, {"resources": {"gpus": 9}}):
        answer = client.post("/v1/jobs", json=body(**change))
        assert answer.status_code == 422
        assert {e["pointer"] for e in answer.json()["errors"]} == set(refused(client, {}, **change))
    too_large = {"candidates": [{"instance_type": "p4d.24xlarge"}]}
    errors = refused(client, too_large, resources={"gpus": 9}, budget={"usd": 1000})
    assert "needs 9" in errors["/planning/candidates"]
    small = {"candidates": [{"instance_type": "g6.xlarge"}]}
    detail = refused(client, small, resources={"gpus": 4}, budget={"usd": 1000})["/planning/candidates"]
    assert "has 1 GPU, but a trial needs 4" in detail
    assert "fits on g6.12xlarge, g6.24xlarge" in detail


def test_assumption_of_equal_speed_causes_a_warning(client: TestClient) -> None:
    both = {
        "candidates": [{"instance_type": "g4dn.xlarge"}, {"instance_type": "g6.xlarge"}],
        "step_seconds": 60,
    }
    changes: dict[str, Any] = {"resources": {"gpus": 1}, "budget": {"usd": 5, "trials": 4}}
    job_plan = plan(client, both, **changes)
    assert any(
        "g4dn.xlarge, g6.xlarge are assumed to be equally fast" in warning for warning in job_plan["warnings"]
    )
    job_plan = plan(client, {**both, "speeds": {"g6.xlarge": 1}}, **changes)
    assert not any("equally fast" in warning for warning in job_plan["warnings"])
    pace = {
        alternative["instance_type"]: alternative["finish_seconds"]
        for alternative in job_plan["alternatives"]
    }
    assert pace["g4dn.xlarge"] > 1.5 * pace["g6.xlarge"]  # T4 against L4


def test_h100_nvl_is_slower_than_the_h100_of_the_same_name(client: TestClient) -> None:
    """The catalogue calls both H100. The NVL has 94 GiB, and 84 % of the TFLOP/s."""
    kinds = ("p5.4xlarge", "Standard_NC40ads_H100_v5")
    planning = {
        "candidates": [{"instance_type": kind} for kind in kinds],
        "step_seconds": 600,
        "speeds": {kinds[0]: 1},
    }
    changes: dict[str, Any] = {"resources": {"gpus": 1}, "budget": {"usd": 500, "trials": 2}}
    alternatives = plan(client, planning, **changes)["alternatives"]
    pace = {alternative["instance_type"]: alternative["finish_seconds"] for alternative in alternatives}
    assert pace[kinds[1]] > 1.1 * pace[kinds[0]]


@pytest.mark.parametrize("market", ["on_demand", "spot"])
def test_prices_and_source_of_a_candidate_are_those_of_one_region(client: TestClient, market: str) -> None:
    rows = client.get("/v1/prices", params={"instance_type": "p4d.24xlarge", "market": market}).json()
    price = f"{market}_usd_per_hour"
    least = min((row for row in rows["items"] if row[price]), key=lambda row: row[price])
    changes: dict[str, Any] = {"resources": {"gpus": 8}, "budget": {"usd": 500, "trials": 2}}
    planning = {"candidates": [{"instance_type": "p4d.24xlarge"}], "markets": [market], "step_seconds": 60}
    alternative = chosen(plan(client, planning, **changes))
    assert alternative["usd_per_hour"] == pytest.approx(least[price])
    assert f"{least['cloud']} {least['region']}" in alternative["source"]
    given = {"instance_type": "p4d.24xlarge", "usd_per_hour": 9.0}
    alternative = chosen(
        plan(client, {**planning, "candidates": [given], "markets": ["on_demand"]}, **changes)
    )
    assert (alternative["usd_per_hour"], alternative["source"]) == (9.0, "as given")


def test_wrong_deadline_is_refused_with_both_forms(client: TestClient) -> None:
    detail = refused(client, {"deadline": "yesterday"})["/planning/deadline"]
    assert "a duration such as" in detail
    assert detail.endswith("or a time such as 2026-12-01T08:00:00Z")


def test_only_time_in_the_window_counts_until_the_deadline(client: TestClient, service: FakeService) -> None:
    opens = datetime.fromtimestamp(service.now() / 1e9, UTC) + timedelta(hours=3)
    window = {"start": f"{opens:%H:%M}", "end": f"{opens + timedelta(hours=8):%H:%M}"}
    early = one_training(deadline="2h")
    detail = refused(client, early.pop("planning"), window=window, **early)["/planning/deadline"]
    assert "before the job's window opens" in detail
    within_an_hour = plan(client, **one_training(deadline="4h"), window=window)
    assert within_an_hour["in_time"]["chance"] < 1
    within_a_day = plan(client, **one_training(deadline="1d"), window=window)
    assert within_a_day["in_time"]["chance"] == 1


def test_concurrency_above_that_of_the_job_is_tried_for_a_deadline(
    client: TestClient, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.cluster, "fake_nodes", [Node("n1", cpus=8, gpus=0, memory_bytes=1)])
    job_plan = plan(
        client,
        {"step_seconds": 60, "deadline": "30m", **EXACT},
        fidelity={"unit": "epoch", "max": 10},
        budget={"usd": 100, "trials": 8},
        algorithm={"scheduler": "none", "sampler": "random"},
        resources={"max_concurrent_trials": 2},
    )
    (choice,) = (choice for choice in job_plan["choices"] if choice["what"] == "concurrency")
    assert int(choice["chosen"]) > 2


def test_unsuitable_catalogue_machines_have_a_reason_and_no_cost(client: TestClient) -> None:
    job_plan = plan(
        client,
        {"catalogue": {"cloud": "aws"}, "step_seconds": 60, "needs": {"gpu_memory_gib": 40}},
        resources={"gpus": 1, "cpus": 4},
        budget={"usd": 5, "trials": 4},
    )
    assert len(job_plan["alternatives"]) > 1
    left_out = [alternative for alternative in job_plan["alternatives"] if alternative["why_not"]]
    assert all(machine["usd"] is None for machine in left_out)
    assert chosen(job_plan)["why_not"] is None


def test_catalogue_machines_are_selected_for_each_market_of_the_plan(client: TestClient) -> None:
    """The job itself is for on-demand machines. Each price is the least of the catalogue on the alternative's market."""
    markets = ("on_demand", "spot")
    job_plan = plan(
        client,
        {"catalogue": {"accelerator": "A100"}, "step_seconds": 60, "markets": list(markets)},
        resources={"gpus": 8, "cpus": 8},
        budget={"usd": 500, "trials": 1},
    )
    priced = [alternative for alternative in job_plan["alternatives"] if alternative["usd_per_hour"]]
    least: dict[str, float] = {}
    for market in markets:
        for alternative in (priced_one for priced_one in priced if priced_one["market"] == market):
            params = {"instance_type": alternative["instance_type"], "market": market}
            rows = client.get("/v1/prices", params=params).json()["items"]
            # A trial with 8 GPUs pays half of a machine with 16.
            prices = [(row[f"{market}_usd_per_hour"], row["accelerators"]) for row in rows]
            cheapest = min(price * 8 / gpus for price, gpus in prices if price)
            assert alternative["usd_per_hour"] == pytest.approx(cheapest), alternative
            least[market] = min(cheapest, least.get(market, cheapest))
    assert least["spot"] < least["on_demand"]


def test_earlier_jobs_provide_step_times_and_expected_best(client: TestClient, service: FakeService) -> None:
    before = fakes.submit(client, budget={"usd": 0.02, "trials": 12})
    fakes.simulate(service, before)
    job_plan = plan(client, {"steps_from": [before]}, budget={"usd": 1, "trials": 12})
    evidence = job_plan["inputs"]["evidence"]
    assert evidence["source"] == "history"
    assert evidence["jobs"] == [before]
    assert evidence["trials"] == 12
    assert 0.5 < evidence["step_seconds"] < 1.5
    assert evidence["setup_seconds"] == pytest.approx(0.2, abs=0.04)  # a micro-dollar is 36 ms
    spent = client.get(f"/v1/jobs/{before}").json()["spend"]["usd"]
    assert job_plan["usd"]["low"] <= spent <= job_plan["usd"]["high"]
    assert job_plan["best"] is not None
    text = render(plan_shown(Plan.model_validate(job_plan)))
    assert "12 trials of 1 earlier job:" in text
    assert "random search" in text


def test_steps_with_other_proxies_are_used_only_if_there_are_no_others(tmp_path: Path) -> None:
    service = fakes.service_in(tmp_path)
    client, trials = fakes.client_of(service), {"budget": {"usd": 0.02, "trials": 4}}
    cheaper_steps = {"fidelity": {**body()["fidelity"], "proxies": {"resolution": [8, 16]}}}

    def evidence(**changes: Any) -> tuple[list[str], str]:
        job_plan = plan(client, {}, **trials, **changes)
        return job_plan["inputs"]["evidence"]["jobs"], " ".join(job_plan["warnings"])

    plain = fakes.submit(client, **trials)
    fakes.simulate(service, plain)
    used, warnings = evidence(**cheaper_steps)
    assert used == [plain]
    assert f"{plain} used other fidelity.proxies" in warnings
    cheaper = fakes.submit(client, **trials, **cheaper_steps)
    fakes.simulate(service, cheaper)
    for changes, job in (({}, plain), (cheaper_steps, cheaper)):
        used, warnings = evidence(**changes)
        assert used == [job]
        assert "proxies" not in warnings


def render(shown: Any) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(shown)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_plan_without_pilot_results_warns(client: TestClient) -> None:
    asked = {"pilot": {"usd": 0.01}}
    assert any(
        "no pilot of this job has results yet" in warning for warning in plan(client, asked)["warnings"]
    )
    assert not any("no pilot" in warning for warning in plan(client, {"step_seconds": 1})["warnings"])


def test_plan_without_earlier_trials_names_the_times_that_it_assumes(tmp_path: Path) -> None:
    service = fakes.service_in(tmp_path)
    client = fakes.client_of(service)

    def notes(**planning: float | None) -> tuple[str, dict[str, Any]]:
        made = plan(client, {"step_seconds": 0.1, **planning})
        return "\n".join(made["warnings"]), made["inputs"]["evidence"]

    warnings, evidence = notes()
    assert "setup_seconds 0.05, restore_seconds 0.05, checkpoint_seconds 0.02;" in warnings
    assert "the time that a worker needs to start is not known: 2 s is assumed" in warnings
    assert (evidence["setup_seconds"], evidence["restore_seconds"], evidence["checkpoint_seconds"]) == (
        0.05,
        0.05,
        0.02,
    )
    assert evidence["warming_seconds"] == 2
    assert notes(step_seconds=None, setup_seconds=3)[1]["setup_seconds"] == 3
    assert "small model: restore_seconds 3;" in notes(setup_seconds=3, checkpoint_seconds=1)[0]
    assert "small model" not in notes(setup_seconds=3, checkpoint_seconds=1, restore_seconds=2)[0]
    service.database.dispose()


def test_plan_counts_the_import_of_the_trainable_once_per_worker(tmp_path: Path) -> None:
    class Slow(FakeProber):
        def describe(self, entry: str, package: Path | None = None, *, kind: str = "") -> Described:
            return replace(super().describe(entry, package, kind=kind), import_ns=7 * NS)

    service = replace(fakes.service_in(tmp_path), prober=Slow())
    made = plan(fakes.client_of(service), {"step_seconds": 0.1})
    assert made["inputs"]["evidence"]["warming_seconds"] == 7
    assert "a worker needs to start" not in "\n".join(made["warnings"])
    service.database.dispose()


def test_training_with_too_many_steps_is_refused(client: TestClient) -> None:
    size = {"fidelity": {"min": 1, "max": 1_000_000}, "budget": {"usd": 1e6, "trials": 1_000_000}}
    faults = refused(
        client, {"step_seconds": 1}, algorithm={"scheduler": "asha", "sampler": "random"}, **size
    )
    assert "too large to plan; set fidelity.min to 500 or more" in faults["/fidelity/max"]
    size["budget"] = {"usd": 10, "trials": 10}
    plan(client, {"step_seconds": 1}, algorithm={"scheduler": "auto", "sampler": "random"}, **size)
