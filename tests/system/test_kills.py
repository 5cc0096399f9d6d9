"""Kill every kind of process with SIGKILL at any time: nothing acknowledged is lost or doubled, and nothing is
overspent.
"""

from random import Random

import pytest

from tests.system import books
from tests.system.decisions import decided, undisturbed
from tests.system.serving import Served, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
BUDGET = {"usd": 0.02, "trials": 40}
STEP_S = 2.0
USD_PER_H = 0.05  # of a worker with one of the four CPUs and GPUs of a machine of $0.20 per hour
USD_PER_S = USD_PER_H / 3600
ASHA = {"scheduler": "asha", "sampler": "tpe", "seed": 7}


@pytest.mark.parametrize(
    "killed",
    [
        ("API", "worker", "head"),
        pytest.param(("API", "driver", "worker", "head", "machine"), marks=pytest.mark.extended),
    ],
    ids=len,
)
def test_job_survives_the_kill_of_each_process_within_its_budget(
    breakable: Served, killed: tuple[str, ...]
) -> None:
    """Kill one after another. Before the driver is killed at the end, the budget is reduced to a little more than the
    job has spent and held. The job also has GPU-hours, and a shared budget.
    """
    shared = f"kills-{len(killed)}"
    breakable.client.put_budget(shared, usd=1, gpu_hours=1, match={"budget": shared})
    job = breakable.submit(
        "steady:train",
        budget={**BUDGET, "gpu_hours": gpu_hours(BUDGET["usd"])},
        algorithm=ASHA,
        constants={"step_s": STEP_S},
        resources={"gpus": 1, "max_concurrent_trials": 1},
        tags={"budget": shared},
    ).id
    received, after = first_reports(breakable, job, 2)
    seen = 2
    for process in killed:
        kill(breakable, job, process)
        seen = until(
            f"a report after the end of the {process}", lambda seen=seen: _steps_beyond(breakable, job, seen)
        )
    usd = tightened(breakable, job)
    breakable.kill_driver(job)
    received += [
        (event.data["trial"], event.data["step"])
        for event in breakable.client.events(job, after=after)
        if event.type == "report"
    ]
    check_spent(breakable, job, usd, step_s=STEP_S)
    assert breakable.client.bill(job).gpu_hours > 0
    books.check_shared(breakable.client, shared, [job])
    done, reference = decided(breakable.client, job), undisturbed(budget=BUDGET, algorithm=ASHA)
    assert len(done.reports) > len(killed)
    assert done.reports == reference.reports[: len(done.reports)]
    # A trial that the budget did not pay for any more was suggested earlier than the undisturbed job suggests it.
    for trial in {trial for trial, _, _ in done.reports}:
        assert done.trials[trial][0] == reference.trials[trial][0], trial
    assert received == [(trial, step) for trial, step, _ in done.reports], (
        "an event is missing, or was sent twice"
    )


@pytest.mark.extended
def test_shared_budget_that_is_smaller_than_the_job_s_is_kept_after_a_kill(breakable: Served) -> None:
    """The shared budget pauses the job. It is reduced to a little more than the job has spent and held, and the driver is killed."""
    shared, match = "kills-shared", {"budget": "kills-shared"}
    breakable.client.put_budget(shared, usd=1, gpu_hours=1, match=match)
    job = breakable.submit(
        "steady:train",
        budget={"usd": 0.5, "gpu_hours": gpu_hours(0.5)},
        constants={"step_s": STEP_S},
        resources={"gpus": 1, "max_concurrent_trials": 1},
        tags=match,
    ).id
    breakable.reports_at_least(job, 2)
    usd = _little_more(breakable, job)
    breakable.client.put_budget(shared, usd=usd, gpu_hours=gpu_hours(usd), match=match)
    breakable.kill_driver(job)
    until("the job is paused", lambda: breakable.client.job(job).state == "paused")
    until("its money is released", lambda: not breakable.client.job(job).spend.held_usd)
    assert breakable.client.job(job).stop_reason == "budget_usd"
    books.check_shared(breakable.client, shared, [job])
    assert usd - useless_usd(STEP_S) <= breakable.client.budget(shared).spend.usd <= usd
    breakable.client.cancel(job)
    breakable.finished(job)


def first_reports(served: Served, job: str, count: int) -> tuple[list[tuple[str, int]], int]:
    """Return the trial and step of the first reports, and the id of the event of the last of them."""
    reports: list[tuple[str, int]] = []
    for event in served.client.events(job):
        if event.type == "report":
            reports.append((event.data["trial"], event.data["step"]))
        if len(reports) == count:
            assert event.id is not None
            return reports, event.id
    raise AssertionError(f"the job ended after {reports}")


def kill(served: Served, job: str, process: str) -> None:
    match process:
        case "API":
            served.restart()
        case "driver":
            served.kill_driver(job)
        case "worker":
            served.kill_worker(job)
        case "head":
            served.kill_head()
        case "machine":
            served.kill_api()
            served.kill_head()
            served.start()


def gpu_hours(usd: float) -> float:
    """Return the GPU-hours of a worker that costs so much, and a second more, so that the dollars run out first."""
    return usd / USD_PER_H + 1 / 3600


def tightened(served: Served, job: str) -> float:
    """Reduce the job's budget to slightly more than it has spent and held, and return the new budget in USD."""
    usd = _little_more(served, job)
    served.client.patch(job, budget={"usd": usd, "gpu_hours": gpu_hours(usd)})
    return usd


def _little_more(served: Served, job: str) -> float:
    """Return slightly more USD than the job has spent and held."""
    spend = served.client.job(job).spend
    return round(spend.usd + spend.held_usd + 0.0003, 6)


def useless_usd(step_s: float) -> float:
    """Return the USD that may be left when a budget is used up.

    After a lease that was too short, an attempt needs the time of two steps and of its setup.
    """
    return (2 * step_s + 1.0) * USD_PER_S


def check_spent(served: Served, job: str, usd: float, *, step_s: float) -> None:
    """Check that the job, of which an attempt was lost, has spent its budget and no more.

    A job ends when the rest of its budget pays for no attempt.
    """
    ended = served.finished(job)
    assert (ended.state, ended.stop_reason) == ("succeeded", "budget_usd"), ended.detail
    assert usd - useless_usd(step_s) <= ended.spend.usd <= usd == ended.budget["usd"]
    books.check(served.client, job)
    trials = [served.client.trial(job, trial.id) for trial in served.client.trials(job)]
    assert "lost" in [attempt.end for trial in trials for attempt in trial.attempt_list]


def _steps_beyond(served: Served, job: str, seen: int) -> int:
    shown = served.client.job(job)
    assert shown.state in ("queued", "running"), shown.detail
    return shown.progress.steps if shown.progress.steps > seen else 0


@pytest.mark.extended
def test_tiny_budgets_with_a_kill_in_each_are_never_overspent(breakable: Served) -> None:
    """The startup cost of a worker depends on the machine. Each job therefore gets a budget slightly above what
    it has spent and held, after a random number of steps.
    """
    rng, budgets, count = Random(0), dict[str, float](), 12
    jobs = [
        breakable.submit("steady:train", name=f"tiny {n}", budget={"usd": 0.01}, constants={"step_s": 0.1}).id
        for n in range(count)
    ]
    after = {job: rng.randrange(1, 8) for job in jobs}
    kills = {job: (breakable.kill_driver, breakable.kill_worker)[n % 2] for n, job in enumerate(jobs)}
    for _ in jobs:
        ripe = until(
            "a job to kill in", lambda: [job for job in kills if breakable.has_reported(job, after[job])]
        )
        budgets[ripe[0]] = tightened(breakable, ripe[0])
        kills.pop(ripe[0])(ripe[0])
    for job, usd in budgets.items():
        check_spent(breakable, job, usd, step_s=0.1)
    print(f"{len(jobs)} jobs, a driver or a worker killed in each: overspend 0")
