"""Test that misbehaving user code fails only its own trial, and that its cost is billed."""

from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from tests.cluster.waiting import is_dead
from tests.system import books
from tests.system.serving import Served, job, line, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
MANNERS = ["well", "nan", "raise", "exit", "killed", "hang", "print", "fork"]


def test_misbehaving_code_fails_only_its_own_trial(served: Served, tmp_path: Path) -> None:
    """Detecting the trial that hangs takes half a minute."""
    mark = str(tmp_path)
    asked = job(
        "misbehaving:train",
        search_space={"how": {"type": "categorical", "choices": MANNERS}},
        algorithm={"sampler": "grid", "scheduler": "none"},
        fidelity={"min": 1, "max": 4},
        budget={"usd": 0.02},
        constants={"mark": mark},
    )
    ended = served.finished(served.client.submit(asked).id)
    assert (ended.state, ended.stop_reason) == ("succeeded", "space_exhausted"), ended.detail
    trials = {str(trial.config["how"]): trial for trial in served.client.trials(ended.id)}
    states = {how: trial.state for how, trial in trials.items()}
    assert states == {
        "well": "completed",
        "nan": "failed",
        "raise": "failed",
        "exit": "failed",
        "killed": "failed",
        "hang": "failed",
        "print": "completed",
        "fork": "completed",
    }
    reasons = {how: trial.reason for how, trial in trials.items() if trial.reason}
    assert "RuntimeError: a bug" in reasons["raise"]
    assert "exit status 3" in reasons["exit"]
    assert "SIGKILL" in reasons["killed"]
    assert "score = nan" in reasons["nan"]
    assert "may have been hanging" in reasons["hang"]
    detail = served.client.trial(ended.id, trials["raise"].id).attempt_list[-1].detail
    assert "in _raise" in detail, "the traceback is shown"
    assert "RuntimeError: a bug" in served.client.logs(ended.id, trials["raise"].id).text
    assert not [p for p in psutil.process_iter() if mark in line(p)]
    books.check(served.client, ended.id)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("always_raises", "the data is not where it was"),
        ("wrong_metric", "did not report the metric 'score'"),
    ],
)
def test_job_whose_first_trials_fail_alike_stops_early_with_the_reason(
    served: Served, entry: str, message: str
) -> None:
    ended = served.finished(served.submit(f"misbehaving:{entry}", budget={"usd": 1}).id)
    assert (ended.state, ended.stop_reason) == ("failed", "error")
    assert message in ended.detail
    assert sum(ended.progress.trials.values()) <= 4
    assert ended.spend.usd < 0.002
    books.check(served.client, ended.id)


@pytest.mark.extended
def test_processes_of_a_command_end_with_their_driver(served: Served) -> None:
    """A program that prints nothing does not notice by itself that nobody reads its output any more."""
    sleep = f"sleep 600.{uuid4().int}"  # also identifies its process
    command = f"sh -c '{sleep} & wait' {{x}}"
    asked = {**job("", budget={"usd": 0.01}), "command": command}
    del asked["trainable"]
    submitted = served.client.submit(asked).id
    started = until(
        "the program runs",
        lambda: [p for p in psutil.process_iter() if line(p).startswith(sleep)],
    )
    served.kill_driver(submitted)
    until("the processes of the program are gone", lambda: all(map(is_dead, started)))
    served.client.cancel(submitted)
    assert served.finished(submitted).state == "cancelled"
