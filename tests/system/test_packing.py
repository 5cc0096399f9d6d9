"""Test jobs whose trials share a worker, on a real cluster."""

import pytest

from tests.system import books
from tests.system.serving import Served, kill, until
from tests.system.test_bill import Watch, began

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
TOLERANCE = 0.03


def test_shares_of_trials_add_up_to_the_time_of_their_worker(served: Served) -> None:
    watch = Watch(served)
    watch.start()
    job = served.submit(
        "steady:train",
        fidelity={"min": 1, "max": 20},
        algorithm={"scheduler": "none"},
        budget={"usd": 1, "trials": 3},
        constants={"step_s": 1.0},
        resources={"pack": 3, "max_concurrent_trials": 3},
    ).id
    ended = served.finished(job)
    assert (ended.state, ended.stop_reason) == ("succeeded", "trials"), ended.detail
    assert ended.resources["pack"] == 3
    worked_s = watch.stop() - began(served)
    attempts = [
        attempt
        for trial in served.client.trials(job)
        for attempt in served.client.trial(job, trial.id).attempt_list
    ]
    assert len(attempts) == 3
    assert max(attempt.began_at for attempt in attempts) < min(attempt.ended_at for attempt in attempts)
    books.check(served.client, job)
    expected = worked_s * ended.price.trial_usd_per_hour / 3600
    difference = abs(ended.spend.usd - expected) / expected
    print(f"bill ${ended.spend.usd:.6f}, worker time x price ${expected:.6f}: {difference:.2%} apart")
    assert difference <= TOLERANCE


def test_trials_that_share_a_worker_survive_its_death(served: Served) -> None:
    """Promote and pause trials in their slots, and kill the worker once in between."""
    job = served.submit(
        "steady:train",
        budget={"usd": 0.01, "trials": 16},
        algorithm={"scheduler": "asha", "sampler": "random", "seed": 3},
        constants={"step_s": 1.0},
        resources={"pack": 4},
    ).id
    served.reports_at_least(job, 6)
    assert len(served.workers()) <= 2, "the machine has two CPUs"
    until("trials share a worker", lambda: _running(served, job) > 2)
    kill(until("the job has a worker", lambda: next(iter(served.workers()), None)))
    ended = served.finished(job)
    assert ended.state == "succeeded", ended.detail
    trials = [served.client.trial(job, trial.id) for trial in served.client.trials(job)]
    ends = [attempt.end for trial in trials for attempt in trial.attempt_list]
    assert ends.count("lost") >= 2, "all attempts of the worker were lost"
    assert not [trial for trial in trials if trial.state == "failed"]
    assert ended.spend.usd <= ended.budget["usd"]
    books.check(served.client, job)


def _running(served: Served, job: str) -> int:
    return sum(trial.state == "running" for trial in served.client.trials(job))


def test_hanging_trial_does_not_outlive_the_budget_of_its_pack(served: Served) -> None:
    """The trials do not report before the limit of `finished`. They are ended with their leases, and the budget is kept."""
    job = served.submit(
        "steady:train",
        budget={"usd": 0.0005},
        constants={"step_s": 600.0},
        resources={"pack": 2, "max_concurrent_trials": 2},
    ).id
    ended = served.finished(job)
    assert ended.stop_reason == "budget_usd", ended.detail
    assert ended.spend.usd <= 0.0005
    books.check(served.client, job)
