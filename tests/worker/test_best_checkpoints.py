"""Test that a worker stores the checkpoint of each step that is the job's best, however rarely it saves
otherwise.
"""

from pathlib import Path
from typing import Any

import pytest

from tuner.checkpoints.checkpoints import CheckpointStore, Found

PEAK = [1.0, 2.0, 5.0, 4.0, 3.0, 5.0, 2.0, 1.0, 1.0]  # step 3 is the best; step 6 only equals it
SCORES: dict[str, Any] = {"metric": "acc", "mode": "max", "config": {"scores": PEAK}}


def steps_stored(driver: Any) -> list[int]:
    store = CheckpointStore(str(driver.storage), "default", "job_1")
    return sorted(found.step for found in store.found("trial_00000") if store.has("trial_00000", found))


@pytest.mark.parametrize(
    ("case", "module", "file"),
    [
        ("follows_scores", "tests.worker.cases", "state.pt"),
        ("follows_scores", "tests.worker.tune_cases", "step.txt"),
        ("FollowsScores", "tests.worker.tune_class", "count.json"),
    ],
)
def test_best_step_has_a_checkpoint_after_the_trial(
    drive: Any, tmp_path: Path, case: str, module: str, file: str
) -> None:
    driver = drive(case, module)
    driver.begin(until=9, **SCORES)
    driver.until_state("waiting")
    driver.order("finish")
    assert driver.until_state("finished")["saved_step"] == 9
    assert steps_stored(driver) == [3, 9]
    store = CheckpointStore(str(driver.storage), "default", "job_1")
    best = store.fetch("trial_00000", Found(3, driver.attempt), tmp_path / "fetched")
    if file == "state.pt":
        import torch

        assert torch.load(best / file)["step"] == 3
    else:
        assert (best / file).read_text() == "3"


def test_trial_that_does_not_lead_stores_only_its_last_step(drive: Any) -> None:
    driver = drive("follows_scores")
    driver.begin(until=9, job_best=5.5, **SCORES)
    driver.until_state("waiting")
    driver.order("finish")
    driver.until_state("finished")
    assert steps_stored(driver) == [9]


def test_kept_best_state_is_dropped_when_another_trial_leads(drive: Any) -> None:
    driver = drive("follows_scores")
    driver.begin(until=3, **SCORES)
    driver.until_state("waiting")
    driver.order("go", until=9, lease_ns=0, job_best=6.0)
    driver.until_state("waiting")
    driver.order("pause")
    driver.until_state("paused")
    assert steps_stored(driver) == [9]


@pytest.mark.parametrize(("until", "stored"), [(2, [2]), (4, [3])])
def test_stopped_leader_stores_its_best_step_first(drive: Any, until: int, stored: list[int]) -> None:
    """The best step is the one that waits for a reply, or an earlier one."""
    driver = drive("follows_scores")
    driver.begin(until=until, **SCORES)
    driver.until_state("waiting")
    driver.order("stop", keep_best=True)
    assert driver.until_state("stopped")["error"] is None
    assert steps_stored(driver) == stored


def test_leader_of_cancelled_job_stops_without_storing(drive: Any) -> None:
    driver = drive("follows_scores")
    driver.begin(until=2, **SCORES)
    driver.until_state("waiting")
    driver.order("stop", keep_best=False)
    driver.until_state("stopped")
    assert steps_stored(driver) == []


def test_best_step_is_saved_immediately_if_saving_is_cheap(drive: Any) -> None:
    driver = drive("counts")
    driver.begin(
        until=3, metric="acc", mode="max", config={"gated": 4, "gate": "never", "step_s": 0}, job_best=2.0
    )
    driver.until_state("waiting")
    driver.takes(60.0)
    driver.order("go", until=9, lease_ns=0)
    driver.until(lambda _: steps_stored(driver) == [3])
