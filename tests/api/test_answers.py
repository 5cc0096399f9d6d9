"""The best configuration under a budget, and all costs, equal values computed from the records by separate code."""

from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.conftest import Finished
from tests.api.points import Point, points, put_report
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tuner.domain.money import MS_PER_HOUR, Cost, Money
from tuner.domain.records import ReportRow
from tuner.domain.time import NS, Instant
from tuner.schemas import answers as wire
from tuner.store.journal import SqlJournal


def place(shown: Any) -> tuple[str, int]:
    return shown["trial"], shown["step"]


@dataclass(frozen=True)
class Many:
    """A job with all kinds of reports: ties, equal costs, missing metrics."""

    service: FakeService
    client: TestClient
    job: str
    mode: str

    @property
    def path(self) -> str:
        return f"/v1/jobs/{self.job}"

    @property
    def points(self) -> list[Point]:
        return points(self.service, self.job, self.mode)


def reported(finished: Finished, mode: str, count: int) -> Many:
    """Create a job with `count` trials, each with one random report."""
    rng = Random(count)
    rows = [
        (rng.choice([None, *map(float, range(9))]), rng.randint(1, 12), rng.randint(0, 5), rng.randint(1, 9))
        for _ in range(count)
    ]
    service, client = finished.service, finished.client
    job = fakes.submit(client, objective={"metric": "acc", "mode": mode})
    fakes.begin(service, job)
    journal = SqlJournal(service.database, job, service.project, 1, service.now())
    with journal.transaction() as tx:
        for number, (value, usd, gpu_ms, seconds) in enumerate(rows):
            trial, cost = f"trial_{number:05d}", Cost(Money(usd), gpu_ms)
            tx.put_trial(trial, "running", at=service.now(), config={"lr": 0.1})
            at, metrics = Instant(number), {"acc": value}
            put_report(tx, ReportRow(trial, 1, 1, at, value, metrics, cost, seconds * NS))
    return Many(service, client, job, mode)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_all_routes_name_the_same_best_trial(service: FakeService, client: TestClient, mode: str) -> None:
    """This holds even if the best trial's newest report is worse than another trial's."""
    from tuner.client import frames  # imports pandas

    sign = 1 if mode == "max" else -1
    job = fakes.submit(client, objective={"metric": "acc", "mode": mode})
    fakes.begin(service, job)
    journal = SqlJournal(service.database, job, service.project, 1, service.now())
    with journal.transaction() as tx:
        for number, values in enumerate([(0.5, 0.9, None, 0.6), (0.7, 0.8)]):
            tx.put_trial(f"trial_{number:05d}", "running", at=service.now(), config={"lr": 0.1})
            for step, value in enumerate(values, 1):
                signed = None if value is None else sign * value
                row = (f"trial_{number:05d}", 1, step, Instant(step), signed, {"acc": signed})
                put_report(tx, ReportRow(*row, Cost(Money(step)), NS))
    best = client.get(f"/v1/jobs/{job}/best").json()
    order = "-metric" if mode == "max" else "metric"
    listed = client.get(f"/v1/jobs/{job}/trials", params={"sort": order}).json()["items"]
    assert [(trial["id"], trial["metric"], trial["latest_metric"]) for trial in listed] == [
        ("trial_00000", sign * 0.9, sign * 0.6),
        ("trial_00001", sign * 0.8, sign * 0.8),
    ]
    assert (best["trial"], best["metric"]) == (listed[0]["id"], listed[0]["metric"])
    detail = client.get(f"/v1/jobs/{job}/trials/trial_00000").json()
    assert (detail["metric"], detail["latest_metric"]) == (sign * 0.9, sign * 0.6)
    frame = frames.trials([wire.Trial(**trial) for trial in listed], {}).sort_values(
        "metric", ascending=mode == "min"
    )
    assert frame["trial"].iloc[0] == best["trial"]


LIMITS: list[dict[str, Any]] = [
    {
        **({} if micro_usd is None else {"max_cost_usd": micro_usd / 1_000_000}),
        **({} if gpu_ms is None else {"max_gpu_hours": gpu_ms / MS_PER_HOUR}),
        **({} if seconds is None else {"max_duration": f"{seconds}s"}),
    }
    for micro_usd, gpu_ms, seconds in product((None, 4, 8), (None, 1, 3), (None, 3, 6))
]


def within(point: Point, limits: dict[str, Any]) -> bool:
    return (
        point.usd <= round(limits.get("max_cost_usd", 1) * 1_000_000)
        and point.gpu_ms <= round(limits.get("max_gpu_hours", 1) * MS_PER_HOUR)
        and point.ns <= int(limits.get("max_duration", "99s")[:-1]) * NS
    )


def check_best(many: Many, limits: dict[str, Any]) -> None:
    affordable = [point for point in many.points if within(point, limits)]
    answer = many.client.get(f"{many.path}/best", params=limits)
    if not affordable:
        check_problem(answer, 404)
        return
    best = min(affordable, key=lambda point: point.order)
    assert place(answer.json()) == (best.trial, best.step)
    better = [point for point in many.points if point.score > best.score]
    cheapest = min(better, key=lambda point: point.cheapest_first, default=None)
    shown = answer.json()["next_better"]
    assert (shown and place(shown)) == (cheapest and (cheapest.trial, cheapest.step))


@pytest.mark.parametrize(("mode", "count"), [("max", 30), ("min", 20)])
def test_best_within_limits_equals_the_best_of_all_reports_within_them(
    finished: Finished, mode: str, count: int
) -> None:
    """The queries themselves are tested with arbitrary reports in `tests/store/test_pareto_front.py`."""
    many = reported(finished, mode, count)
    for limits in LIMITS:
        check_best(many, limits)


def test_each_pareto_point_is_the_best_at_its_own_cost(finished: Finished) -> None:
    for point in finished.client.get(f"/v1/jobs/{finished.plain}/pareto").json()["items"]:
        query = {"max_cost_usd": point["cost_usd"]}
        best_trial = finished.client.get(f"/v1/jobs/{finished.plain}/best", params=query).json()
        assert {name: best_trial[name] for name in point} == point


def test_cheapest_point_is_named_if_nothing_is_affordable(finished: Finished) -> None:
    answer = finished.client.get(f"/v1/jobs/{finished.plain}/best", params={"max_cost_usd": 0.000001})
    problem = check_problem(answer, 404)
    pareto_points = points(finished.service, finished.plain, "max")
    cheapest = min(
        pareto_points, key=lambda point: (point.usd, point.gpu_ms, point.ns, -point.score, point.seq)
    )
    for word in (cheapest.trial, f"step {cheapest.step}", str(Money(cheapest.usd))):
        assert word in problem["detail"]
    assert problem["detail"].startswith("raise the limits: "), (
        "the title says that no configuration is within them"
    )
    assert "GPU-hours" not in problem["detail"], "the job used no GPU"


def test_job_without_reports_has_no_best_and_an_empty_pareto_front(finished: Finished) -> None:
    path = f"/v1/jobs/{finished.waiting}"
    assert "acc" in check_problem(finished.client.get(f"{path}/best"), 404)["detail"]
    assert finished.client.get(f"{path}/pareto").json()["items"] == []


def test_best_over_all_jobs_is_the_best_of_their_best_trials(
    client: TestClient, service: FakeService
) -> None:
    mine = {}
    for seed in (1, 2):
        job = fakes.submit(client, algorithm={"sampler": "random", "seed": seed}, budget={"usd": 0.001})
        fakes.simulate(service, job, seed=seed)
        mine[job] = client.get(f"/v1/jobs/{job}/best").json()
    fakes.submit(client)
    query = {"trainable": fakes.ENTRY, "metric": "acc"}
    best_trial = client.get("/v1/best", params=query).json()
    best = max(mine, key=lambda job: float(mine[job]["metric"]))
    assert best_trial["job"] == best
    assert {name: best_trial[name] for name in best_trial if name != "job"} == {
        name: mine[best][name] for name in best_trial if name != "job"
    }
    for wrong in ({"trainable": "a:b"}, {"metric": "loss"}, {"max_cost_usd": 0.000001}):
        check_problem(client.get("/v1/best", params={**query, **wrong}), 404)
    for wrong, near in (({"trainable": fakes.ENTRY[:-1]}, fakes.ENTRY), ({"metric": "acca"}, "acc")):
        refused = client.get("/v1/best", params={**query, **wrong}).json()
        assert f"the nearest: {near}" in refused["detail"]
    check_problem(client.get("/v1/best"))
