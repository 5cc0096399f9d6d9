"""Test cancelling and topping up jobs."""

from pathlib import Path

import pytest

from tests.system import books
from tests.system.decisions import decided, undisturbed
from tests.system.serving import Served, until
from tests.system.test_main_job import gpus_seen

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


@pytest.mark.extended
def test_cancelled_queued_job_does_not_block_the_next_job(served: Served) -> None:
    wide = {"max_concurrent_trials": 2}
    first = served.submit("steady:train", budget={"usd": 1}, resources=wide, constants={"step_s": 0.1}).id
    served.reports_at_least(first, 1)
    second, third = (
        served.submit("steady:train", resources=wide, budget={"usd": 0.0006}).id for _ in range(2)
    )
    assert served.client.job(second).state == "queued"
    assert served.client.cancel(second).state == "cancelled"
    served.client.cancel(first)
    assert served.finished(third).state == "succeeded"
    assert served.client.job(second).spend.usd == 0


@pytest.mark.extended
def test_topped_up_job_decides_like_a_job_with_the_full_budget(served: Served, tmp_path: Path) -> None:
    """Top up a job that needs half a minute on half a logical GPU and has GPU-hours for 22 s. The setup takes up to
    10 s of them on a busy machine. Steps are short after the top-up.
    """
    little, speed_up = 0.003, tmp_path / "speed_up"
    algorithm = {"scheduler": "asha", "sampler": "tpe", "seed": 7}
    asked = {"usd": 1, "trials": 12, "on_exhausted": "pause"}
    job = served.submit(
        "steady:topped_up",
        constants={"step_s": 1.0, "speed_up": str(speed_up)},
        algorithm=algorithm,
        budget={**asked, "gpu_hours": little},
        resources={"cpus": 0.5, "gpus": 0.5, "max_concurrent_trials": 1},
    ).id
    paused = served.finished(job)
    assert (paused.state, paused.stop_reason) == ("paused", "budget_gpu_hours"), paused.detail
    assert 0.9 * little <= paused.spend.gpu_hours <= little
    speed_up.touch()
    served.client.patch(job, budget={"gpu_hours": 0.02})
    served.client.resume(job)
    ended = served.finished(job)
    assert (ended.state, ended.stop_reason) == ("paused", "trials"), ended.detail
    assert decided(served.client, job) == undisturbed(budget=asked, algorithm=algorithm)
    best, metrics = served.client.best(job), [trial.metric for trial in served.client.trials(job)]
    assert best.metric == max(metric for metric in metrics if metric is not None)
    assert gpus_seen(served, job) <= {"0", "1", "2"}
    books.check(served.client, job)


@pytest.mark.extended
def test_running_job_is_steered(served: Served) -> None:
    """Change how many trials run at once, and enqueue, promote and stop trials. The driver acts on each request."""
    client, algorithm = served.client, {"scheduler": "asha", "sampler": "random"}
    constants = {"step_s": 0.3}
    job = served.submit("steady:train", budget={"usd": 1}, algorithm=algorithm, constants=constants).id
    served.reports_at_least(job, 2)

    def states() -> dict[str, str]:
        return {trial.id: trial.state for trial in client.trials(job)}

    assert client.patch(job, max_concurrent_trials=2).concurrency == 2
    until("two trials run", lambda: list(states().values()).count("running") == 2)
    client.enqueue(job, {"x": 0.125})
    until("the trial begins", lambda: any(trial.config == {"x": 0.125} for trial in client.trials(job)))
    low = min(
        (paused_trial for paused_trial in client.trials(job) if paused_trial.state == "paused"),
        key=lambda paused_trial: paused_trial.config["x"],
    )
    client.promote_trial(job, low.id)
    until("it reaches its next rung", lambda: client.trial(job, low.id).steps >= 3)
    running = next(name for name, state in states().items() if state == "running")
    client.stop_trial(job, running)
    until("it is stopped", lambda: client.trial(job, running).state in ("stopped", "completed"))
    client.patch(job, max_concurrent_trials=1)
    until("one trial runs", lambda: list(states().values()).count("running") == 1)
    client.cancel(job)
    assert served.finished(job).state == "cancelled"
    assert client.replay(job).difference is None
    books.check(client, job)
