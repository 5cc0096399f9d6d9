"""Best trial, Pareto front and best over all jobs, priced for another machine from the stated figures alone, and from measured speeds."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import event, select, update
from starlette.testclient import TestClient

from tests import fakes
from tests.api.conftest import Finished
from tests.api.points import points, put_report
from tests.api.test_bad_bodies import check_problem
from tests.copies import copy_job
from tests.fakes import FakeService
from tests.packages.making import plain
from tuner.cli import render
from tuner.cli import tables as cli_tables
from tuner.client import Client
from tuner.cluster import nodes
from tuner.database import tables
from tuner.database.codec import decode, encode
from tuner.database.tables import attempts
from tuner.domain.budget import Budget
from tuner.domain.events import BudgetChanged, Reported, Suggested
from tuner.domain.job import Confirm
from tuner.domain.money import ZERO, Cost, Money
from tuner.domain.records import CheckpointRow, ReportRow
from tuner.domain.space import Config
from tuner.domain.time import HOUR_NS, NS, Instant
from tuner.service.best import best_trial
from tuner.store import jobs, packages
from tuner.store.best import repeats
from tuner.store.job_record import numbered_events
from tuner.store.journal import SqlJournal
from tuner.store.packages import PackageRow
from tuner.tuning.stopping import points_per_usd

T4 = {"instance_type": "g4dn.xlarge"}
AUTO = {"scheduler": "auto", "sampler": "random"}
NODE_USD = 0.2  # the price of the fake node; a trial takes one of its two CPUs


def ask(finished: Finished, path: str, **query: Any) -> Any:
    answer = finished.client.get(f"/v1/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def cost(pricing: dict[str, Any], duration_ns: int, relative_time: float) -> int:
    """Return the cost in micro-dollars, computed from the fields of the answer."""
    overhead = pricing["interruption_overhead"] or 0
    ns = math.ceil(duration_ns * Fraction(str(relative_time)) * (1 + Fraction(str(overhead))))
    return math.ceil(Fraction(ns * round(pricing["trial_usd_per_hour"] * 1e6), HOUR_NS))


def test_pricing_on_the_job_s_own_machine_changes_nothing(finished: Finished) -> None:
    for path in (f"jobs/{finished.plain}/best", f"jobs/{finished.plain}/pareto"):
        plain = ask(finished, path)
        assert plain["pricing"] is None
        assert ask(finished, path, market="on_demand", instance_type="local") == plain


@pytest.mark.parametrize("query", [T4, {"market": "spot"}, {**T4, "market": "spot", "region": "us-east-1"}])
def test_pareto_prices_on_another_machine_follow_from_the_stated_figures(
    finished: Finished, query: dict[str, str]
) -> None:
    pareto_front = ask(finished, f"jobs/{finished.troubled}/pareto", **query)
    pricing = pareto_front["pricing"]
    ns = {(p.trial, p.step): p.ns for p in points(finished.service, finished.troubled, "max")}
    assert pareto_front["items"]
    for item in pareto_front["items"]:
        duration_ns = ns[item["trial"], item["step"]]
        for name, factor in (
            ("cost_usd", "relative_time"),
            ("cost_low_usd", "relative_time_low"),
            ("cost_high_usd", "relative_time_high"),
        ):
            assert round(item[name] * 1e6) == cost(pricing, duration_ns, pricing[factor]), name
        assert item["as_run_seconds"] == pytest.approx(duration_ns / 1e9)


@pytest.mark.parametrize("job", ["plain", "troubled", "lowest"])
def test_best_on_another_machine_is_the_best_of_all_reports_at_its_prices(
    finished: Finished, job: str
) -> None:
    name, mode = getattr(finished, job), "min" if job == "lowest" else "max"
    recorded = points(finished.service, name, mode)
    for micro in (40, 200, 10**6):
        answer = finished.client.get(
            f"/v1/jobs/{name}/best", params={**T4, "max_cost_usd": micro / 1e6, "forecast": False}
        )
        pricing = ask(finished, f"jobs/{name}/pareto", **T4)["pricing"]
        there = {p: cost(pricing, p.ns, pricing["relative_time"]) for p in recorded}
        within = [p for p in recorded if there[p] <= micro]
        if not within:
            detail = check_problem(answer, 404)["detail"]
            assert f"{min(there.values()) / 1e6:.6f}".rstrip("0") in detail
            continue
        best = min(within, key=lambda p: (-p.score, there[p], p.seq))
        assert (answer.json()["trial"], answer.json()["step"]) == (best.trial, best.step)
        better = [there[p] for p in recorded if p.score > best.score]
        shown = answer.json()["next_better"]
        assert (shown and round(shown["cost_usd"] * 1e6)) == (min(better) if better else None)


def test_unmeasured_interruption_overhead_is_stated(finished: Finished) -> None:
    pricing = ask(finished, f"jobs/{finished.plain}/best", market="spot")["pricing"]
    assert pricing["speed_source"] == "same_machine"
    assert pricing["interruption_overhead"] is None
    assert any("not counted" in note for note in pricing["notes"])


def test_next_point_is_the_next_pareto_point_with_its_extra_cost(finished: Finished) -> None:
    items = ask(finished, f"jobs/{finished.plain}/pareto")["items"]
    for current, after in pairwise(items):
        next_dollar = ask(
            finished, f"jobs/{finished.plain}/best", max_cost_usd=current["cost_usd"], forecast=False
        )["next_dollar"]
        assert next_dollar["forecast"] is None
        point = next_dollar["next_point"]
        assert (point["trial"], point["step"]) == (after["trial"], after["step"])
        assert round(point["extra_usd"] * 1e6) == round((after["cost_usd"] - current["cost_usd"]) * 1e6)
        assert point["gain"] == pytest.approx(after["metric"] - current["metric"])


@pytest.mark.parametrize("mode", ["max", "min"])
def test_forecast_lists_only_unfinished_trials_expected_to_beat_the_best(
    client: TestClient, service: FakeService, mode: str
) -> None:
    """Five trials rise by 0.1 per rung. Of the trials cut short, one is ahead of them at step 3 and one is behind at step 1."""
    job = fakes.submit(client, objective={"metric": "acc", "mode": mode}, fidelity={"min": 1, "max": 9})
    fakes.begin(service, job)
    curves = [{1: 0.1 * n, 3: 0.1 * n + 0.1, 9: 0.1 * n + 0.2 + 0.01 * (n % 2)} for n in range(1, 6)]
    curves += [{1: 0.7, 3: 0.95}, {1: 0.05}]
    journal = SqlJournal(service.database, job, service.project, 1, service.now())
    with journal.transaction() as tx:
        for number, curve in enumerate(curves):
            name = f"trial_{number:05d}"
            tx.put_trial(name, "paused", at=service.now(), config={"lr": 0.1})
            for step, score in curve.items():
                value = score if mode == "max" else 1 - score
                put_report(
                    tx, ReportRow(name, 1, step, service.now(), value, {}, Cost(Money(10 * step)), step * NS)
                )
    best_trial = client.get(f"/v1/jobs/{job}/best").json()
    (forecast,) = best_trial["next_dollar"]["forecast"]["items"]
    sign = 1 if mode == "max" else -1
    assert (forecast["trial"], forecast["from_step"], forecast["to_step"]) == ("trial_00005", 0, 9)
    assert forecast["low_metric"] <= forecast["expected_metric"] <= forecast["high_metric"]
    assert forecast["low_metric"] >= 0, "every metric of the job is a share"
    assert forecast["high_metric"] <= 1, "every metric of the job is a share"
    assert forecast["expected_gain"] == pytest.approx(
        sign * (forecast["expected_metric"] - best_trial["metric"])
    )
    assert 0 < forecast["expected_gain"] <= forecast["high_gain"]
    assert forecast["low_gain"] <= forecast["expected_gain"]
    assert best_trial == client.get(f"/v1/jobs/{job}/best").json()


def test_loss_that_is_too_large_to_square_does_not_break_the_answer(
    client: TestClient, service: FakeService
) -> None:
    job = fakes.submit(client, objective={"metric": "loss", "mode": "min"})
    fakes.begin(service, job)
    journal = SqlJournal(service.database, job, service.project, 1, service.now())
    curves = [*((1 + n / 10, 0.5 + n / 10) for n in range(4)), (1.2, 1e200), (1.05,)]
    with journal.transaction() as tx:
        for number, losses in enumerate(curves):
            name, at = f"trial_{number:05d}", service.now()
            tx.put_trial(name, "paused", at=at, config={"lr": 0.1})
            for step, loss in zip((1, 3), losses, strict=False):
                put_report(tx, ReportRow(name, 1, step, at, loss, {}, Cost(Money(20 * step)), step * NS))
    best = client.get(f"/v1/jobs/{job}/best").json()
    assert best["metric"] == 0.5
    assert best["next_dollar"]["forecast"]["reason"]


def test_empty_forecast_states_the_reason(finished: Finished) -> None:
    job = fakes.submit(finished.client, budget={"usd": 0.0002})
    fakes.simulate(finished.service, job)
    forecast = ask(finished, f"jobs/{job}/best")["next_dollar"]["forecast"]
    assert forecast["items"] == []
    assert forecast["reason"]
    none_better = ask(finished, f"jobs/{finished.plain}/best")["next_dollar"]["forecast"]
    assert none_better["items"] == []
    assert "no trial is expected to beat the best" in none_better["reason"]
    too_few = ask(finished, f"jobs/{finished.troubled}/best")["next_dollar"]["forecast"]
    assert "fewer than three" in too_few["reason"]


def test_job_stops_by_the_number_that_the_answer_shows(client: TestClient, service: FakeService) -> None:
    stop = {"worth": {"usd_per_point": 0.001}}
    job = fakes.submit(client, budget={"usd": 0.2}, stop=stop)
    run = fakes.simulate(service, job)
    shown = client.get(f"/v1/jobs/{job}").json()
    assert (shown["state"], shown["stop_reason"], shown["stop"]["worth"]) == (
        "succeeded",
        "worth",
        stop["worth"],
    )
    assert "points, and a point is worth $0.001" in shown["detail"]
    assert shown["spend"]["usd"] < 0.1
    assert shown["spend"]["held_usd"] == 0
    state = run.loop.state
    scores = [state.spec.objective.score(trial.value) for trial in state.trials if trial.value is not None]
    points = client.get(f"/v1/jobs/{job}/best").json()["next_dollar"]["forecast"]["points_per_usd"]
    assert points == points_per_usd(scores, state.spent, "max") < 1000


def test_repeats_do_not_change_the_gain_of_the_next_dollar(client: TestClient, service: FakeService) -> None:
    """`stop.worth` does not count the trials and the spend of the confirmation either. This holds also after the job is resumed."""
    confirm = {"candidates": 3, "seeds": 3}
    job = fakes.submit(client, confirm=confirm, budget={"usd": 0.004}, algorithm=AUTO)
    run = fakes.simulate(service, job)
    state = run.loop.state
    assert client.get(f"/v1/jobs/{job}").json()["stop_reason"] == "confirmed"
    searched = {trial.id: trial.value for trial in state.trials if trial.repeats is None}
    reports = [event for _, event in numbered_events(service.database, job) if isinstance(event, Reported)]
    spent = [event.spent for event in reports if event.trial in searched][-1]
    best = client.get(f"/v1/jobs/{job}/best").json()
    expected = points_per_usd([value for value in searched.values() if value is not None], spent, "max")
    assert best["next_dollar"]["forecast"]["points_per_usd"] == expected
    assert expected is not None
    assert best["confirmation"]["seeds"] == 3
    client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.02}})
    client.post(f"/v1/jobs/{job}/resume")
    with SqlJournal(service.database, job, service.project, 2, service.now()).transaction() as tx:
        tx.append(BudgetChanged(service.now(), Budget(usd=Money(20_000))))
    state = fakes.simulate(service, job, at=Instant(service.now.at)).loop.state
    reports = [event for _, event in numbered_events(service.database, job) if isinstance(event, Reported)]
    paid = [
        report.spent - before.spent
        for before, report in pairwise(reports)
        if state.trial(report.trial).repeats is not None
    ]
    assert sum(paid, ZERO) == state.spent_on_repeats > Money(2000)
    values = [trial.value for trial in state.trials if trial.repeats is None and trial.value is not None]
    best = client.get(f"/v1/jobs/{job}/best").json()
    expected = points_per_usd(values, state.spent - state.spent_on_repeats, "max")
    assert best["next_dollar"]["forecast"]["points_per_usd"] == expected


@pytest.mark.parametrize(
    ("other_usd", "chosen", "sure"), [(40, 0, True), (5, 1, False)], ids=["better", "as_good_and_cheaper"]
)
def test_best_is_confirmed_by_the_mean_of_its_seeds(
    client: TestClient, service: FakeService, other_usd: int, chosen: int, *, sure: bool
) -> None:
    """The trial with the best single result is worse on average. If two means are almost equal, the cheaper configuration is the best."""
    job = fakes.submit(client, confirm={"candidates": 3, "seeds": 2}, fidelity={"max": 9}, algorithm=AUTO)
    fakes.begin(service, job)
    close = [0.871, 0.869] if chosen else [0.71, 0.70]
    runs = [(0.1, 20, [0.88, 0.87]), (0.2, other_usd, close), (0.3, 20, [0.9, 0.6])]
    journal = SqlJournal(service.database, job, service.project, 1, service.now())
    with journal.transaction() as tx:
        for number, (lr, usd, value) in enumerate(
            (lr, usd, values[seed]) for seed in (0, 1) for lr, usd, values in runs
        ):
            name = f"trial_{number:05d}"
            tx.put_trial(name, "completed", at=service.now(), config={"lr": lr})
            put_report(tx, ReportRow(name, 1, 9, service.now(), value, {}, Cost(Money(usd)), 9 * NS))
            tx.put_checkpoint(CheckpointRow(name, 1, 9, "memory://a", 1, 0.1, service.now()))
    best = client.get(f"/v1/jobs/{job}/best").json()
    confirmation = best["confirmation"]
    assert (best["trial"], confirmation["trial"], confirmation["seeds"]) == (f"trial_0000{chosen}",) * 2 + (
        2,
    )
    assert confirmation["mean_metric"] == pytest.approx(sum(runs[chosen][2]) / 2)
    assert (confirmation["confidence"] > 0.5) is sure
    assert client.get(f"/v1/jobs/{job}/best?max_cost_usd=1").json()["confirmation"] is None
    with service.database.read() as db:
        assert best_trial(db, jobs.get(db, job)) == best["trial"], "the one that is exported and registered"
    with journal.transaction() as tx:
        tx.put_job("succeeded", "confirmed", at=service.now())
    ended, report = Client("http://tuner", fakes.KEY, transport=client._transport), f"/v1/jobs/{job}/report"
    assert (ended.job(job).confirmed_trial, client.get(report).json()["confirmed_trial"]) == (
        best["trial"],
    ) * 2
    for shown in (render.job(ended.job(job)), render.report(ended.report(job))):
        assert f"{best['trial']} is the best with several seeds" in cli_tables.text(
            shown, cli_tables.Style.TABLE
        )
    student = fakes.submit(client, teacher={"job": job, "trial": "best"})
    assert client.get(f"/v1/jobs/{student}").json()["teacher"]["trial"] == best["trial"]


def test_only_repeats_count_as_further_seeds(client: TestClient, service: FakeService) -> None:
    """The search trained the first configuration three times with the same seed, and it was confirmed with one further seed."""
    job = fakes.submit(client, confirm={"candidates": 2, "seeds": 2}, fidelity={"max": 9}, algorithm=AUTO)
    fakes.begin(service, job)
    journal = SqlJournal(service.database, job, service.project, 1, service.now())
    searched = [(0.1, 0.9), (0.2, 0.7), (0.1, 0.9), (0.1, 0.9)]
    with journal.transaction() as tx:
        for number, (lr, value) in enumerate([*searched, (0.1, 0.5), (0.2, 0.6)]):
            name, at = f"trial_{number:05d}", service.now()
            if number < len(searched):
                tx.append(Suggested(at, name, {"lr": lr}))
            tx.put_trial(name, "completed", at=at, config={"lr": lr})
            put_report(tx, ReportRow(name, 1, 9, at, value, {}, Cost(Money(20)), 9 * NS))
    confirmation = client.get(f"/v1/jobs/{job}/best?forecast=false").json()["confirmation"]
    assert (confirmation["trial"], confirmation["runner_up"]) == ("trial_00000", "trial_00001")
    assert (confirmation["seeds"], confirmation["mean_metric"]) == (2, pytest.approx(0.7))


@pytest.mark.parametrize(("again", "expected"), [(0, 100), (150, 200), (299, 301)])
def test_only_suggestions_since_the_first_trial_in_question_are_read(
    client: TestClient, service: FakeService, monkeypatch: pytest.MonkeyPatch, again: int, expected: int
) -> None:
    """The search suggested 301 trials, of which one has the configuration of the first trial. A job may have a million events."""
    job = fakes.submit(client, confirm={"candidates": 2, "seeds": 2}, fidelity={"max": 9}, algorithm=AUTO)
    fakes.begin(service, job)
    journal = SqlJournal(service.database, job, service.project, 1, service.now())
    lrs = [number / 1000 for number in range(1, 302)]
    if again:
        lrs[300 - again] = lrs[0]
    with journal.transaction() as tx:
        for number, lr in enumerate([*lrs, lrs[0], lrs[2]]):
            name = f"trial_{number:05d}"
            if number < len(lrs):
                tx.append(Suggested(service.now(), name, {"lr": lr}))
            tx.put_trial(name, "completed", at=service.now(), config={"lr": lr})
    read = list[str]()
    monkeypatch.setattr("tuner.store.best.decode", lambda body: read.append(body) or decode(body))  # type: ignore[func-returns-value]
    with service.database.read() as db:
        assert repeats(db, job) == {"trial_00301", "trial_00302"}
    assert len(read) == expected


def test_configuration_with_an_infeasible_seed_is_not_the_best(
    client: TestClient, service: FakeService
) -> None:
    limits = {"constraints": [{"metric": "latency_ms", "max": 20}]}
    confirm = {"confirm": {"candidates": 2, "seeds": 2}, "fidelity": {"max": 9}, "algorithm": AUTO}
    job = fakes.submit(client, **limits, **confirm)
    assert client.get(f"/v1/jobs/{job}").json()["confirm"] == confirm["confirm"]
    with service.database.read() as db:
        assert jobs.get(db, job).spec.confirm == Confirm(2, 2, distinct=True)
    fakes.begin(service, job)
    journal = SqlJournal(service.database, job, service.project, 1, service.now())
    runs = [(0.1, 0.9, 0.0), (0.2, 0.7, 0.0), (0.1, 0.95, 0.5), (0.2, 0.6, 0.0)]
    with journal.transaction() as tx:
        for number, (lr, value, violation) in enumerate(runs):
            name, at = f"trial_{number:05d}", service.now()
            tx.put_trial(name, "completed", at=at, config={"lr": lr})
            metrics = {"latency_ms": 20 * (1 + violation)}
            put_report(tx, ReportRow(name, 1, 9, at, value, metrics, Cost(Money(20)), 9 * NS, violation))
    best = client.get(f"/v1/jobs/{job}/best?forecast=false").json()
    assert (best["trial"], best["confirmation"]["runner_up"]) == ("trial_00001", None)


@pytest.mark.parametrize(
    "changes",
    [{"algorithm": {"scheduler": "asha"}}, {"budget": {"usd": 1, "on_exhausted": "pause"}}, {"fidelity": {}}],
    ids=["asha", "pause", "no_last_step"],
)
def test_confirm_without_a_reserved_budget_is_refused(client: TestClient, changes: dict[str, Any]) -> None:
    body = fakes.body(**{"fidelity": {"max": 9}, "algorithm": AUTO, "confirm": {}, **changes})
    (error,) = check_problem(client.post("/v1/jobs", json=body))["errors"]
    assert error["pointer"] == "/confirm"


def test_worth_with_proxies_is_refused(client: TestClient) -> None:
    body = fakes.body(
        stop={"worth": {"usd_per_point": 40}},
        fidelity={"min": 1, "max": 9, "proxies": {"resolution": [8, 16]}},
    )
    (error,) = check_problem(client.post("/v1/jobs", json=body))["errors"]
    assert error["pointer"] == "/stop/worth"
    assert "proxies" in error["detail"]


@pytest.mark.parametrize(
    ("query", "pointer", "word"),
    [
        ({"instance_type": "g4dn.xlrge"}, "instance_type", "g4dn.xlarge"),
        ({"instance_type": "locl"}, "instance_type", "the nearest: local"),
        ({"instance_type": "zzz"}, "instance_type", "for example: local, "),
        ({"market": "spott"}, "market", "spot"),
        ({"market": "spot_with_fallback"}, "market", "spot"),
        ({**T4, "region": "us-esat-1"}, "region", "us-east-1"),
        ({"region": "us-east-1"}, "region", "name an instance_type"),
        ({**T4, "region": "eastus"}, "region", "us-east-1"),
        ({"region": "nowhere at all"}, "region", "for example: "),
    ],
)
@pytest.mark.parametrize("path", ["jobs/{job}/best", "jobs/{job}/pareto", "best"])
def test_unknown_machine_market_or_region_is_refused_with_a_suggestion(
    finished: Finished, query: dict[str, str], pointer: str, word: str, path: str
) -> None:
    asked = {**query, **({"trainable": fakes.ENTRY, "metric": "acc"} if path == "best" else {})}
    answer = finished.client.get(f"/v1/{path.format(job=finished.plain)}", params=asked)
    problem = check_problem(answer)
    assert [error["pointer"] for error in problem["errors"]] == [pointer]
    assert word in problem["errors"][0]["detail"]


def test_best_over_all_jobs_leaves_out_jobs_that_do_not_fit_on_the_machine(
    client: TestClient, service: FakeService
) -> None:
    service.cluster.fake_nodes = [nodes.Node("n1", cpus=8, gpus=0, memory_bytes=1)]
    small, large = (fakes.submit(client, resources={"cpus": cpus}) for cpus in (1, 8))
    for job in (small, large):
        fakes.simulate(service, job)
    query = {"trainable": fakes.ENTRY, "metric": "acc", **T4}  # T4 has 4 CPUs
    answer = client.get("/v1/best", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.json()["job"] == small
    refused = client.get(f"/v1/jobs/{large}/best", params=T4)
    assert "needs 8" in check_problem(refused, 422)["detail"]


def test_best_over_all_jobs_can_be_priced_on_another_machine(finished: Finished) -> None:
    query = {"trainable": fakes.ENTRY, "metric": "acc"}
    overall_best = ask(finished, "best", **query, **T4)
    own = ask(finished, f"jobs/{overall_best['job']}/best", **T4, forecast=False)
    assert {name: own[name] for name in overall_best if name != "job"} == {
        name: overall_best[name] for name in overall_best if name != "job"
    }
    assert overall_best["pricing"]["instance_type"] == "g4dn.xlarge"


KIND = "m7i.large"


class Slower(fakes.Curves):
    """Curves whose steps take three times as long."""

    def step_ns(self, config: Config, step: int) -> int:
        return 3 * super().step_ns(config, step)


def run(service: FakeService, client: TestClient, kind: str | None = None, **changes: Any) -> str:
    there = {} if kind is None else dict([(nodes.INSTANCE_TYPE[0], kind)])
    service.cluster.fake_nodes = [replace(fakes.SMALL, labels=there)]
    job = fakes.submit(client, **changes)
    fakes.simulate(service, job, training=Slower() if kind else None)
    return job


def best_of(client: TestClient, job: str, **query: Any) -> Any:
    return client.get(f"/v1/jobs/{job}/best", params={"forecast": False, **query}).json()


def test_relative_speed_is_measured_if_the_trainable_ran_on_both_machine_types(
    service: FakeService, client: TestClient
) -> None:
    here = run(service, client, budget={"usd": 0.002})
    run(service, client, KIND, budget={"usd": 0.006})
    best_trial = best_of(client, here, instance_type=KIND)
    pricing = best_trial["pricing"]
    assert pricing["speed_source"] == "measured"
    assert pricing["relative_time_low"] <= 3 <= pricing["relative_time_high"]
    assert best_trial["cost_low_usd"] < best_trial["cost_usd"] < best_trial["cost_high_usd"]
    other = run(service, client, constants={"data_dir": "elsewhere"})
    assert best_of(client, other, instance_type=KIND)["pricing"]["speed_source"] == "assumed_same"
    proxies = {"fidelity": {**fakes.body()["fidelity"], "proxies": {"resolution": [8, 16]}}}
    cheaper = run(service, client, **proxies)
    assert best_of(client, cheaper, instance_type=KIND)["pricing"]["speed_source"] == "assumed_same"


def test_versions_of_a_package_are_compared(service: FakeService) -> None:
    client = fakes.client_of(replace(service, settings=replace(service.settings, packages=True)))

    def upload(text: str, name: str) -> dict[str, str]:
        data, headers = plain({"mine.py": text}), {"Content-Type": "application/zip"}
        answer = client.post("/v1/packages", content=data, headers=headers, params={"name": name})
        assert answer.status_code == 201, answer.text
        return {"package": answer.json()["id"], "trainable": "mine:train"}

    function = "def train(config): ...\n"
    here = run(service, client, budget={"usd": 0.002}, **upload(function, "digits"))
    run(service, client, KIND, budget={"usd": 0.006}, **upload(f"# changed\n{function}", "digits"))
    assert best_of(client, here, instance_type=KIND)["pricing"]["speed_source"] == "measured"
    other = run(service, client, budget={"usd": 0.002}, **upload(f"# another\n{function}", "letters"))
    assert best_of(client, other, instance_type=KIND)["pricing"]["speed_source"] == "assumed_same"


def test_interruption_overhead_is_computed_from_the_bill_of_spot_attempts(
    service: FakeService, client: TestClient
) -> None:
    job = run(service, client)
    with service.database.write() as db:
        db.execute(update(attempts).where(attempts.c.job == job).values(market="spot"))
    bill = client.get(f"/v1/jobs/{job}/bill").json()["by_kind"]
    pricing = best_of(client, job, market="spot")["pricing"]
    share = (bill["lost"] + bill["restore"]) / (bill["setup"] + bill["train"])
    assert share > 0
    assert pricing["interruption_overhead"] == pytest.approx(share, abs=1e-6)
    assert any("in this job" in note for note in pricing["notes"])


def give_each_job_a_package(service: FakeService) -> None:
    """Give each job another version of one package."""
    with service.database.write() as db:
        for number, (job, spec) in enumerate(db.execute(select(tables.jobs.c.id, tables.jobs.c.spec)).all()):
            sha256 = f"{number:064x}"
            packages.put(db, service.project, PackageRow(sha256, "digits", 1, 1, service.now()))
            packaged = encode(replace(decode(spec), package=f"pkg_{sha256}"))
            db.execute(update(tables.jobs).where(tables.jobs.c.id == job).values(spec=packaged))


@pytest.mark.parametrize("limit", [{}, {"max_cost_usd": 1e-9}], ids=["any_cost", "none_affordable"])
@pytest.mark.parametrize("machine", [{}, T4, {**T4, "market": "spot"}], ids=["own", "other", "spot"])
def test_best_over_all_jobs_takes_as_many_statements_for_many_jobs(
    service: FakeService, client: TestClient, machine: dict[str, str], limit: dict[str, float]
) -> None:
    job, statements = run(service, client), list[str]()
    event.listen(
        service.database.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2])
    )

    def count() -> int:
        del statements[:]
        answer = client.get(
            "/v1/best", params={"trainable": fakes.ENTRY, "metric": "acc", **machine, **limit}
        )
        assert answer.status_code == (404 if limit else 200), answer.text
        return len(statements)

    copy_job(service.database, job, 50)
    give_each_job_a_package(service)
    count()  # what the first request reads in addition
    few = count()
    copy_job(service.database, job, 150, name="more")
    give_each_job_a_package(service)
    assert count() == few
