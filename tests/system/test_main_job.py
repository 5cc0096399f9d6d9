"""Test the main job: submitted over REST, run on Ray Tune within its budget, and queried for its best
configuration.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.system import books
from tests.system.serving import USER_CODE, Served, job, until
from tuner.cli.job_of_code import recorded
from tuner.cluster.dashboard import Dashboard

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


def libraries(processes: list[psutil.Process], name: str) -> list[str]:
    """Return the shared libraries of this name that the processes have loaded."""
    maps = [mapped.path for process in processes for mapped in process.memory_maps()]
    return [path for path in maps if name in path]


def test_job_spends_its_budget_and_no_more(served: Served, dashboard: Dashboard) -> None:
    asked = job("steady:train", budget={"usd": 0.00075}, constants={"step_s": 0.2}, tags={"owner": "alice"})
    submitted = served.client.submit(asked, idempotency_key="once")
    assert served.client.submit(asked, idempotency_key="once").id == submitted.id
    until("Ray's dashboard shows what the worker does", lambda: shows_work(dashboard))
    workers, drivers = served.workers(), served.drivers(submitted.id)
    assert libraries(workers, "_raylet")
    assert libraries(drivers, "_raylet")
    # Ray Tune takes a second and 100 MB, and what Ray imports to send the objects of other libraries takes 0.3 s.
    unwanted = ("pandas", "pyarrow", "numpy", "pydantic_core")
    assert not [path for name in unwanted for path in libraries(workers, name)]
    assert not libraries(drivers, "pandas"), "Ray Tune would import pandas while the workers start"
    ended = served.finished(submitted.id)
    assert (ended.state, ended.stop_reason) == ("succeeded", "budget_usd"), ended.detail
    assert 0.97 * 750 <= books.micro(ended.spend.usd) <= 750
    books.check(served.client, submitted.id)
    bill = served.client.bill(submitted.id)
    assert (bill.preemptions, bill.savings.against_on_demand_usd) == (0, 0)
    check_what_ray_shows(served, dashboard, submitted.id)
    assert gpus_seen(served, submitted.id) == {""}, "the job asked for no GPU, though the machine has some"

    best = served.client.best(submitted.id)
    points = [
        (point.metric, trial.id, point.step, point.cost_usd)
        for trial in served.client.trials(submitted.id)
        for point in served.client.trial(submitted.id, trial.id).curve
    ]
    assert best.metric == max(metric for metric, *_ in points if metric is not None)
    cheap = sorted(cost for *_, cost in points)[len(points) // 2]
    limited = served.client.best(submitted.id, max_cost_usd=cheap)
    assert limited.metric == max(
        metric for metric, *_, cost in points if cost <= cheap and metric is not None
    )


def shows_work(dashboard: Dashboard) -> bool:
    """Return whether an actor of the job shows its trial, step and cost. Ray forgets them when the actor dies."""
    actors = dashboard.get("/logical/actors")["data"]["actors"].values()
    texts = [actor["reprName"] for actor in actors if actor["actorClass"] == "Worker of test"]
    work = r"test: trial_\d{5}, attempt \d+, step \d+, \$0\.\d{2,6}"
    return any(re.fullmatch(work, text) for text in texts)


def check_what_ray_shows(served: Served, ray: Dashboard, job_id: str) -> None:
    """Check that Ray's dashboard shows the job's name, owner, budget and spend, its workers, and the attempts that they were given."""
    (ray_job,) = [
        listed_job for listed_job in ray.get("/api/jobs/") if listed_job["submission_id"] == f"{job_id}-1"
    ]
    assert ray_job["metadata"]["tuning_job"] == job_id
    assert (ray_job["metadata"]["owner"], ray_job["metadata"]["budget_usd"]) == ("alice", "0.00075")
    assert ray_job["metadata"]["job_name"] == "test"
    spent = served.client.job(job_id).spend.usd
    until("the spend is final", lambda: float(metadata(ray, job_id)["spent_usd"]) == spent)
    assert served.client.job(job_id).links.ray_dashboard == f"/ray/#/jobs/{job_id}-1"
    assert f"tuner.service.driver --job {job_id} " in ray_job["entrypoint"]
    of_job = (
        f"filter_keys=job_id&filter_predicates=%3D&filter_values={ray_job['job_id']}&detail=true&limit=10000"
    )
    actors = ray.get(f"/api/v0/actors?{of_job}")["data"]["result"]["result"]
    workers = [
        actor for actor in actors if (actor["class_name"], actor["repr_name"]) == ("Worker of test", "test")
    ]
    assert workers, [(actor["class_name"], actor["repr_name"], actor["job_id"]) for actor in actors]
    tasks = ray.get(f"/api/v0/tasks?{of_job}")["data"]["result"]["result"]
    begun = {task["name"] for task in tasks if ", attempt " in task["name"]}
    attempts = sum(trial.attempts for trial in served.client.trials(job_id))
    assert attempts >= len(begun) > len(workers)


def metadata(ray: Dashboard, job_id: str) -> dict[str, str]:
    job_metadata: dict[str, str] = ray.get(f"/api/jobs/{job_id}-1")["metadata"]
    return job_metadata


def trained_as_printed(served: Served, job_id: str) -> Any:
    """Run the command that `tuner best` prints, without a reachable service, and return its last step."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    there = {**os.environ, "PATH": path, "TUNER_URL": served.client.url, "TUNER_HOME": str(served.home)}
    shown = subprocess.run(
        ["tuner", "best", job_id], env=there, capture_output=True, text=True, check=True
    ).stdout
    line = shown.partition("to train it:\n")[2].strip()
    nowhere = {**os.environ, "PATH": path, "TUNER_URL": "http://127.0.0.1:1"}
    done = subprocess.run(
        ["sh", "-c", f"{line} --json"], env=nowhere, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.extended
def test_tuned_model_reaches_its_target_and_retrains_to_the_same_metrics(served: Served) -> None:
    space = {
        "learning_rate": {"type": "float", "low": 1e-3, "high": 1e-1, "log": True},
        "width": {"type": "int", "low": 32, "high": 64},
    }
    asked = job(
        "trainables.digits_mlp:train",
        objective={"metric": "val_accuracy", "mode": "max", "target": 0.95},
        search_space=space,
        budget={"usd": 0.02},
        resources={"max_concurrent_trials": 2},
    )
    ended = served.finished(served.client.submit(asked).id)
    assert (ended.state, ended.stop_reason) == ("succeeded", "target"), ended.detail
    assert ended.best_so_far is not None
    assert (ended.best_so_far.metric or 0) >= 0.95
    assert trained_as_printed(served, ended.id) == {
        "step": ended.best_so_far.step,
        "metrics": ended.best_so_far.metrics,
    }
    books.check(served.client, ended.id)


@pytest.mark.extended
def test_warm_started_job_begins_near_the_optimum_of_the_earlier_job(served: Served) -> None:
    """The best `x` is 1. Without the warm start, the job would suggest the same configurations as the earlier
    job, because both have the same seed.
    """
    shared = {"constants": {"step_s": 0.01}, "algorithm": {"seed": 4}}
    earlier = served.submit("steady:train", budget={"usd": 0.01, "trials": 12}, **shared)
    served.finished(earlier.id)
    warm = {"budget": {"usd": 0.01, "trials": 4}, "warm_start": {"jobs": [earlier.id]}}
    ended = served.finished(served.submit("steady:train", **shared, **warm).id)
    assert (ended.state, ended.stop_reason) == ("succeeded", "trials"), ended.detail
    first = [trial.config["x"] for trial in served.client.trials(earlier.id)][:4]
    learned = [trial.config["x"] for trial in served.client.trials(ended.id)]
    assert len(learned) == 4
    assert sum(first) / 4 < 0.6
    assert min(learned) > 0.9
    report = served.client.report(ended.id)
    assert report.best == ended.best_so_far
    assert 0 < (report.best_spent_usd or 0) <= report.spent_usd == ended.spend.usd
    assert [estimate.method for estimate in report.estimates] == ["random_search", "stopping_asha"]
    books.check(served.client, ended.id)


def gpus_seen(served: Served, job_id: str) -> set[object]:
    """Return the values of CUDA_VISIBLE_DEVICES in a job's attempts."""
    trials = [served.client.trial(job_id, listed_trial.id) for listed_trial in served.client.trials(job_id)]
    return {point.metrics["gpus"] for trial in trials for point in trial.curve}


@pytest.mark.extended
@pytest.mark.parametrize("entry", ["with_checkpoint", "Trainable", "objective", "returns"])
def test_trainables_of_ray_tune_run_unchanged(served: Served, entry: str) -> None:
    asked = job(f"plain_tune:{entry}", budget={"usd": 0.01, "trials": 6})
    if entry == "returns":
        asked["fidelity"] = {"min": 1}
    ended = served.finished(served.client.submit(asked).id)
    assert (ended.state, ended.stop_reason) == ("succeeded", "trials"), ended.detail
    trials = list(served.client.trials(ended.id))
    assert len(trials) == 6
    assert any(trial.state == "completed" for trial in trials)
    for trial in trials:
        curve = served.client.trial(ended.id, trial.id).curve
        assert [point.step for point in curve] == list(range(1, trial.steps + 1)), (
            "a step was lost or reported twice"
        )
    books.check(served.client, ended.id)


@pytest.mark.extended
def test_objective_of_optuna_runs_unchanged(served: Served) -> None:
    sys.path.insert(0, str(USER_CODE))
    try:
        space = recorded("study:objective")
    finally:
        sys.path.remove(str(USER_CODE))
    assert space["power"] == {"type": "int", "low": 2, "high": 4, "when": {"shape": ["parabola"]}}
    asked = job("study:objective", kind="optuna", search_space=space, budget={"usd": 0.01, "trials": 8})
    ended = served.finished(served.client.submit(asked).id)
    assert (ended.state, ended.stop_reason) == ("succeeded", "trials"), ended.detail
    trials = list(served.client.trials(ended.id))
    assert len(trials) == 8
    assert all(("power" in trial.config) == (trial.config["shape"] == "parabola") for trial in trials)
    assert all(float(trial.config["x"]) % 0.25 == 0 for trial in trials)
    assert any(trial.state == "completed" for trial in trials)
    assert served.client.replay(ended.id).difference is None
    books.check(served.client, ended.id)
