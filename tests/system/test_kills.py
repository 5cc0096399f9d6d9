"""Kill every kind of process with SIGKILL at any time: nothing acknowledged is lost or doubled, and nothing is
overspent.
"""

from pathlib import Path
from random import Random

import pytest

from tests.system import books
from tests.system.serving import Served, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


@pytest.mark.parametrize("count", [2, pytest.param(12, marks=pytest.mark.extended)])
def test_tiny_budgets_with_a_kill_in_each_are_never_overspent(breakable: Served, count: int) -> None:
    """The startup cost of a worker depends on the machine. Each job therefore gets a budget slightly above what
    it has spent and held, after a random number of steps.
    """
    rng, budgets = Random(0), dict[str, float]()
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
        ended = breakable.finished(job)
        assert (ended.state, ended.stop_reason) == ("succeeded", "budget_usd"), ended.detail
        assert 0.97 * usd <= ended.spend.usd <= usd == ended.budget["usd"]
        books.check(breakable.client, job)
        no_report_is_lost_or_doubled(breakable, job)
        ends = [
            a.end
            for t in breakable.client.trials(job)
            for a in breakable.client.trial(job, t.id).attempt_list
        ]
        assert "lost" in ends
    print(f"{len(jobs)} jobs, a driver or a worker killed in each: overspend 0")


def tightened(served: Served, job: str) -> float:
    """Reduce the job's budget to slightly more than it has spent and held, and return the new budget in USD."""
    spend = served.client.job(job).spend
    usd = round(spend.usd + spend.held_usd + 0.0003, 6)
    served.client.patch(job, budget={"usd": usd})
    return usd


def test_a_job_survives_the_end_of_each_process(breakable: Served, tmp_path: Path) -> None:
    """Kill the API, the driver, the worker, the head, and then all of them, one after another in one job.

    Steps are long until the end, so that the job outlasts all restarts on a slow machine, and short after that.
    """
    budget, constants = {"usd": 0.02, "trials": 10}, {"step_s": 2.0, "hurry": str(tmp_path / "hurry")}
    job = breakable.submit("steady:train", budget=budget, constants=constants).id
    seen = 2

    def goes_on(after: str) -> None:
        nonlocal seen
        seen = until(f"a new report after {after}", lambda: _steps_beyond(breakable, job, seen))

    goes_on("the start")
    breakable.kill_api()
    breakable.start()
    goes_on("the API was killed")
    breakable.kill_driver(job)
    goes_on("the driver was killed")
    breakable.kill_worker(job)
    goes_on("a worker was killed")
    breakable.kill_head()
    goes_on("the head was killed")
    breakable.kill_api()
    breakable.kill_head()
    breakable.start()
    goes_on("the machine was restarted")
    (tmp_path / "hurry").touch()
    undisturbed = breakable.submit("steady:train", budget=budget, constants={"step_s": 0.01}).id
    ended = breakable.finished(job)
    assert (ended.state, ended.stop_reason) == ("succeeded", "trials"), ended.detail
    books.check(breakable.client, job)
    no_report_is_lost_or_doubled(breakable, job)
    breakable.finished(undisturbed)
    assert decisions(breakable, job) == decisions(breakable, undisturbed)


def _steps_beyond(served: Served, job: str, seen: int) -> int:
    shown = served.client.job(job)
    assert shown.state in ("queued", "running"), shown.detail
    return shown.progress.steps if shown.progress.steps > seen else 0


def no_report_is_lost_or_doubled(served: Served, job: str) -> None:
    for trial in served.client.trials(job):
        curve = served.client.trial(job, trial.id).curve
        assert [point.step for point in curve] == list(range(1, trial.steps + 1))


def decisions(served: Served, job: str) -> dict[str, object]:
    return {t.id: (t.config, t.state, t.steps, t.metric) for t in served.client.trials(job)}


def test_events_are_followed_through_a_restart_without_a_gap(breakable: Served) -> None:
    job = breakable.submit("steady:train", budget={"usd": 0.01, "trials": 4}, constants={"step_s": 0.2}).id
    found: list[tuple[str, int]] = []
    after = None
    for event in breakable.client.events(job):
        after = event.id if event.id is not None else after
        if event.type == "report":
            found.append((event.data["trial"], event.data["step"]))
        if len(found) == 3:
            break
    breakable.kill_api()
    breakable.start()
    rest = [event.data for event in breakable.client.events(job, after=after) if event.type == "report"]
    found += [(data["trial"], data["step"]) for data in rest]
    reports = {
        (trial.id, point.step)
        for trial in breakable.client.trials(job)
        for point in breakable.client.trial(job, trial.id).curve
    }
    assert set(found) == reports
    assert len(found) == len(reports)
