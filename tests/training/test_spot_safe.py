"""Test `SpotSafe` in a plain script: an interrupted run continues as if it had not been interrupted."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.training.counting import Count, count_to
from tests.training.fit import Record, fit
from tuner.training import Batches, SpotSafe, checkpoint
from tuner.training.sharded import unwrapped

ROOT = Path(__file__).resolve().parents[2]
KINDS = [("sgd", "fp32"), ("adamw", "bf16"), ("adamw", "fp16")]


def script(*arguments: object) -> tuple[int, list[Record]]:
    command = [sys.executable, "-m", "tests.training.fit", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def records_of(directory: Path | None, **how: Any) -> tuple[list[Record], str]:
    records: list[Record] = []
    last = fit(directory, tell=records.append, **how)
    return records, last


def test_killed_script_resumes_bit_for_bit(tmp_path: Path) -> None:
    records, last = records_of(None, optimizer="adamw", precision="fp16", steps=8)
    whole = [*records, {"digest": last, "ray": False}]
    killed, before = script("adamw", "fp16", tmp_path / "cut", 8, 5)
    assert killed == -signal.SIGKILL
    assert before == whole[:5]
    _, after = script("adamw", "fp16", tmp_path / "cut", 8)
    assert after[0]["step"] in (4, 5)  # the save of step 5 may have been in progress
    assert after == whole[after[0]["step"] :]


@pytest.mark.parametrize(("optimizer", "precision"), KINDS)
def test_run_that_ended_early_resumes_bit_for_bit(tmp_path: Path, optimizer: str, precision: str) -> None:
    how: dict[str, Any] = {"optimizer": optimizer, "precision": precision}
    whole, last = records_of(None, steps=7, **how)
    before, _ = records_of(tmp_path, steps=3, **how)
    after, resumed_last = records_of(tmp_path, steps=7, **how)
    assert [*before, *after] == whole
    assert resumed_last == last


@pytest.mark.parametrize("cut", range(1, 7))
def test_run_interrupted_at_any_step_resumes_bit_for_bit(tmp_path: Path, cut: int) -> None:
    def lose_power(step: int) -> None:
        if step == cut:
            raise InterruptedError

    whole, last = records_of(None, steps=7)
    with pytest.raises(InterruptedError):
        fit(tmp_path, steps=7, before_step=lose_power)
    after, resumed_last = records_of(tmp_path, steps=7)
    assert after == whole[cut:]
    assert resumed_last == last


def test_different_training_gives_different_records(tmp_path: Path) -> None:
    records, _ = records_of(None, steps=2)
    other, _ = records_of(None, steps=2, optimizer="adamw")
    assert records[0]["digest"] != other[0]["digest"]
    assert records[0]["draws"] != records[1]["draws"]


def test_a_finished_run_has_no_steps_left(tmp_path: Path) -> None:
    assert count_to(3, tmp_path) == [1, 2, 3]
    assert count_to(3, tmp_path) == []
    assert count_to(5, tmp_path) == [4, 5]


def test_nothing_is_saved_without_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fit(None, steps=2)
    assert list(tmp_path.iterdir()) == []


def test_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    count_to(5, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000004", "step_00000005"]


def test_training_during_a_write_neither_waits_for_it_nor_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    trained, real_write = threading.Event(), checkpoint.write

    def slow_write(state: Any, directory: Path) -> None:
        assert trained.wait(300)  # the write is not finished before the next step has been trained
        real_write(state, directory)
        events.append(f"written {state['step']}")

    monkeypatch.setattr(checkpoint, "write", slow_write)
    count = Count()
    with SpotSafe(count=count, steps=2, checkpoint_dir=tmp_path) as run:
        for step in run.steps():
            count.value += 1
            events.append(f"trained {step + 1}")
            if step == 1:
                trained.set()
            run.report(count=count.value)
    assert events == ["trained 1", "trained 2", "written 1", "written 2"]
    for step in (1, 2):
        state = torch.load(tmp_path / f"step_{step:08d}" / checkpoint.STATE_FILE, weights_only=True)
        assert state["parts"]["count"]["value"].item() == step


def test_steps_and_report_are_refused_outside_a_with_block(tmp_path: Path) -> None:
    count_to(2, tmp_path)
    run = SpotSafe(count=Count(), steps=3, checkpoint_dir=tmp_path)
    with pytest.raises(RuntimeError, match="with SpotSafe"):
        run.steps()
    with pytest.raises(RuntimeError, match="with SpotSafe"):
        run.report(count=1)
    with run:
        assert next(run.steps()) == 2
        run.report(count=3)
    with pytest.raises(RuntimeError, match="with SpotSafe"):
        run.report(count=4)


def test_second_report_in_a_step_is_refused() -> None:
    with SpotSafe(steps=2) as run:
        next(run.steps())
        run.report(loss=1.0)
        with pytest.raises(RuntimeError, match="step 1 was reported before"):
            run.report(accuracy=0.5)


def test_a_step_without_a_report_is_refused() -> None:
    with SpotSafe(steps=2) as run:
        steps = run.steps()
        next(steps)
        with pytest.raises(RuntimeError, match=r"step 1 ended without run\.report"):
            next(steps)


def test_script_must_give_the_number_of_steps() -> None:
    with SpotSafe() as run, pytest.raises(ValueError, match=r"run\.steps\(10\)"):
        next(run.steps())


def test_part_without_state_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="loss cannot be checkpointed"):
        SpotSafe(loss=torch.nn.functional.mse_loss)  # type: ignore[arg-type]


def test_parts_that_are_none_are_not_saved(tmp_path: Path) -> None:
    with SpotSafe(count=Count(), scheduler=None, steps=1, checkpoint_dir=tmp_path) as run:
        next(run.steps())
        run.report(count=1)
    state = torch.load(tmp_path / "step_00000001" / checkpoint.STATE_FILE, weights_only=True)
    assert set(state["parts"]) == {"count"}


SCHEDULERS: list[Callable[[torch.optim.Optimizer], Any]] = [
    lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
    lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 3]),
    lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 6),
    lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
    lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=2),
            torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        ],
        [2],
    ),
]


def rates(schedule: Callable[[Any], Any], steps: int, directory: Path | None) -> list[float]:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler, seen = schedule(optimizer), []
    with SpotSafe(optimizer=optimizer, scheduler=scheduler, steps=steps, checkpoint_dir=directory) as run:
        for _ in run.steps():
            seen.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
            run.report(rate=seen[-1])
    return seen


@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_common_learning_rate_schedules_resume_unchanged(
    tmp_path: Path, schedule: Callable[[Any], Any]
) -> None:
    whole = rates(schedule, 7, None)
    assert rates(schedule, 3, tmp_path) + rates(schedule, 7, tmp_path) == whole
    assert len(set(whole)) > 1


def test_checkpoint_restores_the_order_of_batches(tmp_path: Path) -> None:
    batches = Batches(10, 3, seed=1)
    with SpotSafe(batches=batches, steps=1, checkpoint_dir=tmp_path) as run:
        next(run.steps())
        next(iter(batches))
        run.report(loss=1.0)
    left = [batch.tolist() for batch in batches]
    resumed = Batches(10, 3, seed=1)
    with SpotSafe(batches=resumed, steps=2, checkpoint_dir=tmp_path):
        assert [batch.tolist() for batch in resumed] == left


@pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "plain"])
def test_checkpoint_of_a_compiled_model_has_the_names_of_the_model(tmp_path: Path, is_compiled: bool) -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    saved = network()
    with SpotSafe(model=torch.compile(saved, backend="eager"), steps=1, checkpoint_dir=tmp_path) as run:
        next(run.steps())
        run.report(loss=1.0)
    assert checkpoint.saved_state(tmp_path / "step_00000001")["model"].keys() == saved.state_dict().keys()
    restored = network()
    with SpotSafe(
        model=torch.compile(restored, backend="eager") if is_compiled else restored,
        steps=2,
        checkpoint_dir=tmp_path,
    ):
        torch.testing.assert_close(restored.state_dict(), saved.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("is_collection", [True, False])
def test_metric_that_does_not_save_its_state_is_refused(tmp_path: Path, is_collection: bool) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")

    def mean() -> Any:
        metric = torchmetrics.MeanMetric()
        return torchmetrics.MetricCollection([metric]) if is_collection else metric

    saved, restored = mean(), mean()
    with pytest.raises(TypeError, match=r"seen is a metric .* call metric\.persistent\(True\)"):
        SpotSafe(seen=saved)
    saved.persistent(True)
    restored.persistent(True)
    with SpotSafe(seen=saved, steps=1, checkpoint_dir=tmp_path) as run:
        next(run.steps())
        saved.update(3.0)
        run.report(loss=1.0)
    with SpotSafe(seen=restored, steps=2, checkpoint_dir=tmp_path):
        torch.testing.assert_close(restored.state_dict(), saved.state_dict())


def test_wrappers_of_a_model_are_removed_in_any_order() -> None:
    model = nn.Linear(2, 2)

    def distributed(module: nn.Module) -> nn.Module:
        wrapper = DistributedDataParallel.__new__(DistributedDataParallel)  # the constructor needs ranks
        nn.Module.__init__(wrapper)
        wrapper.module = module
        return wrapper

    compiled = torch.compile(model, backend="eager")
    parallel = nn.DataParallel(compiled)
    for part in (
        model,
        compiled,
        parallel,
        distributed(compiled),
        torch.compile(distributed(model), backend="eager"),
    ):
        assert unwrapped("model", part) is model


@pytest.mark.parametrize("prefix", ["_orig_mod.", "_orig_mod.module."])
def test_checkpoint_of_a_compiled_model_by_an_earlier_release_is_restored(
    tmp_path: Path, prefix: str
) -> None:
    saved, restored = nn.Linear(2, 2), nn.Linear(2, 2)
    with SpotSafe(model=saved, steps=1, checkpoint_dir=tmp_path) as run:
        next(run.steps())
        run.report(loss=1.0)
    path = tmp_path / "step_00000001" / checkpoint.STATE_FILE
    state = torch.load(path, weights_only=True)
    state["parts"]["model"] = {prefix + name: value for name, value in state["parts"]["model"].items()}
    torch.save(state, path)
    with SpotSafe(model=torch.compile(restored, backend="eager"), steps=2, checkpoint_dir=tmp_path):
        assert torch.equal(restored.weight, saved.weight)
