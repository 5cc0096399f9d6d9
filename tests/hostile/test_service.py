"""Attacks of user code on a real service: each ends only its own trial, and does not affect a job next to it."""

import itertools
import time
from datetime import datetime
from typing import Any

import psutil
import pytest

from tests.system import books
from tests.system.serving import Served, children, line, until
from tests.system.serving import job as request
from tests.system.user_code.hostile import ATTACKS, ENDS_S, ON_THE_WORKER
from tuner.schemas.job import JobFacts

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

WALL_CLOCK_S = 60
LATE_S = 10


def attacking(served: Served, *attacks: str, **changed: Any) -> JobFacts:
    """Submit a job with one trial for each attack."""
    asked = request(
        "hostile:train",
        search_space={"attack": {"type": "categorical", "choices": list(attacks)}},
        algorithm={"sampler": "grid", "scheduler": "none"},
        fidelity={"min": 1, "max": 3},
        **{"budget": {"usd": 0.05, "wall_clock": f"{WALL_CLOCK_S}s"}, **changed},
    )
    return served.client.submit(asked)


def ended(served: Served, job: JobFacts) -> JobFacts:
    ended_job = served.client.wait(job.id, timeout_s=800)
    books.check(served.client, job.id)
    return ended_job


def ran_s(job: JobFacts) -> float:
    """Return for how long an ended job ran."""
    assert job.started_at is not None
    assert job.ended_at is not None
    return (datetime.fromisoformat(job.ended_at) - datetime.fromisoformat(job.started_at)).total_seconds()


def check_nothing_runs(served: Served) -> None:
    """Check that no child of a fork server is left. The fork servers themselves keep running."""

    def running() -> list[psutil.Process]:
        servers = [server for server in served.fork_servers() if "hostile:train" in line(server)]
        return [child for server in servers for child in children(server, recursive=True)]

    # An attack ends by itself after a minute.
    until("nothing of an attack runs", lambda: not running(), timeout_s=ENDS_S / 2)


@pytest.mark.extended
@pytest.mark.parametrize("attack", ["stops_its_supervisor", "stops_everything_above"])
def test_a_job_whose_worker_is_stopped_can_be_cancelled_within_ten_seconds(
    served: Served, attack: str
) -> None:
    job = attacking(served, attack)
    worker = until("the worker is stopped", lambda: _stopped_worker(served))
    asked_at = time.monotonic()
    served.client.cancel(job.id)
    ended_job = ended(served, job)
    assert time.monotonic() - asked_at <= LATE_S
    assert ended_job.state == "cancelled"
    until("the stopped worker is gone", lambda: not worker.is_running())
    check_nothing_runs(served)


def _stopped_worker(served: Served) -> psutil.Process | None:
    return next((worker for worker in served.workers() if worker.status() == psutil.STATUS_STOPPED), None)


def test_a_job_whose_worker_is_stopped_ends_at_its_wall_clock(served: Served) -> None:
    job = attacking(served, "stops_its_supervisor", budget={"usd": 0.05, "wall_clock": "30s"})
    ended_job = ended(served, job)
    assert ended_job.stop_reason == "wall_clock"
    assert ran_s(ended_job) <= 30 + LATE_S
    attempts = served.client.trial(job.id, "trial_00000").attempt_list
    assert any("was killed" in attempt.reason for attempt in attempts), [
        listed_attempt.reason for listed_attempt in attempts
    ]
    check_nothing_runs(served)


@pytest.mark.extended
def test_every_attack_ends_and_a_job_next_to_it_is_not_delayed(served: Served) -> None:
    neighbour = served.submit(
        "hostile:ticks", fidelity={"min": 1, "max": 100_000}, budget={"usd": 1, "trials": 1}
    )
    served.reports_at_least(neighbour.id, 5)
    began = time.time()
    job = attacking(
        served,
        *ATTACKS,
        budget={"usd": 0.02, "wall_clock": "600s"},
        resources={"cpus": 0.25, "max_concurrent_trials": 4},
    )
    ended_job = ended(served, job)
    over = time.time()
    served.client.cancel(neighbour.id)
    states = {str(trial.config["attack"]): trial.state for trial in served.client.trials(job.id)}
    assert set(states) == set(ATTACKS), (ended_job.detail, set(ATTACKS) - set(states))
    assert {states[name] for name in ON_THE_WORKER} <= {"failed", "stopped", "paused"}
    ticked = [point.metrics["at"] for point in served.client.trial(neighbour.id, "trial_00000").curve]
    during = sorted(at for at in ticked if began <= at <= over)
    longest_s = max(later - earlier for earlier, later in itertools.pairwise(during))
    print(
        f"{len(ATTACKS)} attacks in {over - began:.0f} s, the longest step next to them took {longest_s:.2f} s"
    )
    assert longest_s <= 0.2 + 1.0
    ended(served, neighbour)
    check_nothing_runs(served)
