"""Test that a worker stores the checkpoint of each step that is the job's best, however rarely it saves
otherwise.
"""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.worker.driving import parsed
from tuner.checkpoints.checkpoints import CheckpointId, CheckpointStore
from tuner.domain.objective import Constraint
from tuner.driver.messages import end_of
from tuner.worker import publishing

PEAK = [1.0, 2.0, 5.0, 4.0, 3.0, 5.0, 2.0, 1.0, 1.0]  # step 3 is the best; step 6 only equals it
SCORES: dict[str, Any] = {"metric": "acc", "mode": "max", "config": {"scores": PEAK}}


def steps_stored(driver: Any) -> list[int]:
    store = CheckpointStore(str(driver.storage), "default", "job_1")
    return sorted(
        checkpoint.step for checkpoint in store.ids("trial_00000") if store.has("trial_00000", checkpoint)
    )


def is_gone(driver: Any) -> bool:
    """Return whether the child has exited."""
    processes = driver.supervisor.processes
    return processes.pids[0] in processes._exits


@pytest.mark.parametrize(
    ("case", "module", "file"),
    [
        ("follows_scores", "tests.worker.cases", "state.pt"),
        ("follows_scores", "tests.worker.tune_cases", "step.txt"),
        ("FollowsScores", "tests.worker.tune_cases", "count.json"),
    ],
)
def test_best_step_has_a_checkpoint_after_the_trial(
    drive: Any, tmp_path: Path, case: str, module: str, file: str
) -> None:
    driver = drive(case, module)
    driver.run_to(9, **{**SCORES, "config": {"scores": [*PEAK, 1.0]}})
    assert driver.end("finish")["saved_step"] == 9
    assert steps_stored(driver) == [3, 9]
    store = CheckpointStore(str(driver.storage), "default", "job_1")
    best = store.fetch("trial_00000", CheckpointId(3, driver.attempt), tmp_path / "fetched")
    if file == "state.pt":
        import torch

        assert torch.load(best / file)["step"] == 3
    else:
        assert (best / file).read_text() == "3"


@pytest.mark.parametrize(
    ("case", "module", "saves_last"),
    [
        ("ends_early", "tests.worker.cases", True),
        ("follows_scores", "tests.worker.tune_cases", False),
        ("FollowsScores", "tests.worker.tune_cases", True),
    ],
)
@pytest.mark.parametrize("scores", [[1.0, 2.0, 5.0], [1.0, 2.0, 5.0, 4.0]])
def test_best_step_of_a_trial_that_ends_by_itself_has_a_checkpoint(
    drive: Any, case: str, module: str, saves_last: bool, scores: list[float]
) -> None:
    driver = drive(case, module)
    driver.begin(target_step=9, **{**SCORES, "config": {"scores": scores}})
    ended = driver.until_state("ended")
    assert ended["error"] is None
    assert steps_stored(driver) == sorted({3, len(scores)} if saves_last else {3})


@pytest.mark.parametrize(
    ("case", "module"), [("ends_early", "tests.worker.cases"), ("FollowsScores", "tests.worker.tune_cases")]
)
def test_trial_that_ends_by_itself_waits_until_its_checkpoints_are_stored(
    drive: Any,
    monkeypatch: pytest.MonkeyPatch,
    hanging_save: tuple[threading.Event, threading.Event],
    case: str,
    module: str,
) -> None:
    """It is billed as saving meanwhile, and does not end after the time that an ended attempt gives its uploads."""
    monkeypatch.setattr(publishing, "SAVE_GRACE_S", 0.0)
    hangs, goes_on = hanging_save
    driver = drive(case, module)
    driver.begin(target_step=9, **{**SCORES, "config": {"scores": [1.0, 2.0, 5.0]}})
    driver.reported(3)
    assert hangs.wait(240)
    attempt = driver.supervisor.attempt
    driver.until(lambda _: attempt.states.ends_by_itself and is_gone(driver))
    assert driver.supervisor.step()["state"] == "running"
    assert attempt.watch.kind == "checkpoint"
    goes_on.set()
    ended = driver.until_state("ended")
    assert ended["error"] is None
    assert ended["saved_step"] == 3
    assert steps_stored(driver) == [3]


@pytest.mark.parametrize("entry", ["ends_early", "ends_after"])
def test_trial_that_returned_is_lost_if_its_last_checkpoint_is_not_stored(
    drive: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str
) -> None:
    """`ends_early` returns while the checkpoint is being stored, and `ends_after` after that has failed."""

    def refuse(*_: object, **__: object) -> None:
        (tmp_path / "refused").touch()
        raise RuntimeError("the bucket is gone")

    monkeypatch.setattr(publishing, "WAITS_S", ())
    monkeypatch.setattr(CheckpointStore, "publish", refuse)
    driver = drive(entry)
    config = {"scores": [1.0, 2.0, 5.0, 4.0], "file": str(tmp_path / "refused")}
    driver.begin(target_step=9, **{**SCORES, "config": config})
    assert end_of(parsed(driver.until_state("failed"))) == "lost"


def test_best_step_of_the_last_stage_of_proxies_has_a_checkpoint(drive: Any) -> None:
    driver = drive("follows_scores")
    driver.run_to(9, rungs=[3, 6], proxies={"resolution": [16, 32]}, **SCORES)
    driver.end("finish")
    stored = set(steps_stored(driver))
    # The checkpoint of step 4 is deleted with the last one, if the driver knew a newer one by then.
    assert {6, 9} <= stored <= {4, 6, 9}


@pytest.mark.parametrize(
    ("target_step", "job_best", "end", "stored"),
    [
        pytest.param(9, 5.5, {"word": "finish"}, [9], id="another trial leads"),
        pytest.param(2, None, {"word": "stop", "keep_best": True}, [2], id="stopped at its best step"),
        pytest.param(4, None, {"word": "stop", "keep_best": True}, [3], id="stopped after its best step"),
        pytest.param(2, None, {"word": "stop", "keep_best": False}, [], id="its job is cancelled"),
    ],
)
def test_best_step_is_stored_at_the_end_only_if_it_is_needed(
    drive: Any, target_step: int, job_best: float | None, end: dict[str, Any], stored: list[int]
) -> None:
    driver = drive("follows_scores")
    driver.run_to(target_step, job_best=job_best, **SCORES)
    assert driver.end(**end)["error"] is None
    assert steps_stored(driver) == stored


def gated(first: int, gate: Path) -> dict[str, Any]:
    return {**SCORES, "config": {"scores": PEAK, "gated": first, "gate": str(gate)}}


@pytest.mark.parametrize(("gated_step", "kept"), [(3, 2), (4, 3)], ids=["next is better", "next is worse"])
def test_stop_in_the_middle_of_a_step_stores_the_best_step(
    drive: Any, tmp_path: Path, gated_step: int, kept: int
) -> None:
    driver, gate = drive("follows_scores"), tmp_path / "gate"
    driver.begin(target_step=9, **gated(gated_step, gate))
    driver.reported(gated_step - 1)
    attempt = driver.supervisor.attempt
    driver.until(lambda _: attempt.awaiting_reply is None)
    assert attempt.best_steps.kept_step == kept
    driver.order("stop", keep_best=True)
    assert driver.supervisor.step()["state"] == "running"
    gate.touch()
    assert driver.until_state("stopped")["error"] is None
    assert steps_stored(driver) == [3]


@pytest.mark.parametrize("fails", [False, True])
def test_stop_waits_until_the_best_step_is_stored_or_cannot_be(
    drive: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hanging_save: tuple[threading.Event, threading.Event],
    fails: bool,
) -> None:
    monkeypatch.setattr(publishing, "WAITS_S", ())
    hangs, goes_on = hanging_save
    driver, gate = drive("follows_scores"), tmp_path / "gate"
    driver.begin(target_step=9, **gated(5, gate))
    assert hangs.wait(240)
    driver.reported(4)
    driver.order("stop", keep_best=True)
    gate.touch()
    driver.reported(5)
    assert driver.supervisor.step()["state"] == "running", "the next step does not begin"
    assert driver.supervisor.attempt.watch.kind == "checkpoint"
    if fails:
        shutil.rmtree(driver.supervisor.attempt.staging / "step_00000003")
    goes_on.set()
    assert driver.until_state("stopped")["error"] is None
    assert steps_stored(driver) == ([] if fails else [3])


def test_infeasible_step_is_not_the_best(drive: Any) -> None:
    driver = drive("follows_scores")
    driver.run_to(9, **SCORES, constraints=(Constraint("acc", max=4.5),))
    assert driver.end("finish")["error"] is None
    stored = set(steps_stored(driver))
    # Step 2 was the best before step 4. Its checkpoint is deleted with the last one, if the driver knew a newer one by then.
    assert {4, 9} <= stored <= {2, 4, 9}, "step 3 has the best score of all, and is infeasible"


def test_kept_best_state_is_dropped_when_another_trial_leads(drive: Any) -> None:
    driver = drive("follows_scores")
    driver.run_to(3, **SCORES)
    driver.order("continue", target_step=9, lease_ns=0, job_best=6.0)
    driver.until_state("waiting")
    driver.end("pause")
    assert steps_stored(driver) == [9]


def test_best_step_is_saved_immediately_if_saving_is_cheap(drive: Any) -> None:
    driver = drive("counts")
    driver.run_to(
        3, metric="acc", mode="max", config={"gated": 4, "gate": "never", "step_s": 0}, job_best=2.0
    )
    driver.takes(60.0)
    driver.order("continue", target_step=9, lease_ns=0)
    driver.until(lambda _: steps_stored(driver) == [3])
