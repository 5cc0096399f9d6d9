"""The shipped trainables, called as a service or a script would call them."""

import json
import math
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tests.training.simulated_gpu import simulated_gpu
from trainables import char_lm, digits_cnn, digits_mlp, digits_packed
from tuner.api.translate import spec_of
from tuner.domain.space import Space
from tuner.schemas.job import JobRequest
from tuner.training import SpotSafe, measured, packed, recompute, seed_everything
from tuner.training.channel import StopTraining

Reports = list[dict[str, float]]
Run = Callable[..., Reports]
LOOPS = [digits_mlp, digits_cnn, char_lm]  # with a training loop of their own
MODULES = [*LOOPS, digits_packed]
SMALL: dict[str, dict[str, Any]] = {
    "digits_mlp": {"width": 32},
    "digits_cnn": {"width": 4},
    "char_lm": {"width": 16, "depth": 1, "batch_size": 4},
    "digits_packed": {"width": 32},
}
PROMISED = {
    "digits_mlp": {"val_accuracy", "val_loss", "train_loss"},
    "digits_cnn": {"val_accuracy", "val_loss", "train_loss"},
    "char_lm": {"val_loss", "val_bits_per_char", "train_loss"},
    "digits_packed": {"val_accuracy", "val_loss", "train_loss"},
}


def short_name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


shipped = pytest.mark.parametrize("module", MODULES, ids=short_name)
loops = pytest.mark.parametrize("module", LOOPS, ids=short_name)
digits = pytest.mark.parametrize("module", [digits_mlp, digits_cnn, digits_packed], ids=short_name)


@shipped
def test_seed_of_the_service_counts_without_an_own_seed(run_whole: Run, module: ModuleType) -> None:
    """Repeats of `confirm` differ only in this seed."""
    first, same, other = (run_whole(module, 1, service_seed=seed) for seed in (0, 0, 1))
    assert first == same
    assert first != other


@pytest.fixture
def run_whole(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that calls a module's `train` for a few steps and returns its reports as numbers."""

    def called(
        module: ModuleType, steps: int, directory: Path | None = None, service_seed: int = 0, **config: Any
    ) -> Reports:
        reports: Reports = []
        seed_everything(service_seed)

        class Limited(SpotSafe):
            def __init__(self, **parts: Any) -> None:
                super().__init__(**{**parts, "steps": steps, "checkpoint_dir": directory})

            def report(self, **metrics: Any) -> None:
                reports.append({name: float(value) for name, value in metrics.items()})
                super().report(**metrics)

        monkeypatch.setattr(module if module in LOOPS else packed, "SpotSafe", Limited)
        how = {"steps": steps} if module is digits_packed else {}
        module.train({**SMALL[short_name(module)], **config}, **how)
        return reports

    return called


@pytest.fixture
def run(run_whole: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Like `run_whole`, with steps of a third of the digits and a fifth of the text, for tests that need not learn much."""
    monkeypatch.setattr(char_lm, "STEPS_AN_EPOCH", 8)
    for module in (digits_mlp, digits_cnn, digits_packed):
        x_train, x_val, y_train, y_val = module.data()
        part = [x_train[:449], x_val, y_train[:449], y_val]
        monkeypatch.setattr(module, "data", lambda part=part: part)
    return run_whole


@digits
def test_digits_model_reaches_high_accuracy(run_whole: Run, module: ModuleType) -> None:
    reports = run_whole(module, 6)
    assert reports[-1]["val_accuracy"] > max(0.85, reports[0]["val_accuracy"])
    assert reports[-1]["train_loss"] < reports[0]["train_loss"]


def test_character_model_lowers_its_validation_loss(run_whole: Run) -> None:
    losses = [report["val_loss"] for report in run_whole(char_lm, 4)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < math.log(128) - 1.5  # a uniform guess among 128 characters gives log(128)


@shipped
def test_metrics_of_the_docstring_are_reported_and_finite(run: Run, module: ModuleType) -> None:
    (report,) = run(module, 1)
    assert set(report) == PROMISED[short_name(module)]
    assert all(name in module.train.__doc__ for name in report)
    assert all(math.isfinite(value) for value in report.values())


@shipped
def test_the_same_seed_gives_the_same_metrics(run: Run, module: ModuleType) -> None:
    first = run(module, 2, seed=4, dropout=0.2)
    torch.manual_seed(99)
    random.seed(99)
    assert run(module, 2, seed=4, dropout=0.2) == first
    assert run(module, 2, seed=5, dropout=0.2) != first


@shipped
def test_interrupted_training_resumes_bit_for_bit(run: Run, module: ModuleType, tmp_path: Path) -> None:
    config: dict[str, Any] = {"dropout": 0.2, "precision": "fp16", "accumulate": 2}
    whole = run(module, 2, **config)
    assert run(module, 1, tmp_path, **config) + run(module, 2, tmp_path, **config) == whole


def test_character_model_continues_in_the_middle_of_an_epoch(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole, calls = run(char_lm, 2, dropout=0.2), list[None]()

    def interrupt(self: SpotSafe) -> None:
        calls.append(None)
        if len(calls) == 11:  # the third batch of the second epoch
            self._save(now=True)
            raise StopTraining(0)

    with monkeypatch.context() as patch:
        patch.setattr(SpotSafe, "checkpoint_if_due", interrupt)
        with pytest.raises(StopTraining):
            run(char_lm, 2, tmp_path, dropout=0.2)
    assert run(char_lm, 2, tmp_path, dropout=0.2) == whole[1:]


def test_recomputed_activations_change_no_metric(run: Run) -> None:
    config = {"depth": 2, "dropout": 0.2}
    assert run(char_lm, 1, **config, recompute=1) == run(char_lm, 1, **config)
    model = recompute(char_lm.build(config))
    assert all("forward" in vars(block) for block in model.blocks), "not parts of a block"


@loops
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_training_learns_in_mixed_precision(run: Run, module: ModuleType, precision: str) -> None:
    reports = run(module, 3, precision=precision)
    assert reports[-1]["train_loss"] < reports[0]["train_loss"]
    assert reports[:1] != run(module, 1)


NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")


@loops
@pytest.mark.parametrize(
    ("gpu", "tolerance"),
    [(simulated_gpu, 1e-9), pytest.param(nullcontext, 0.02, marks=NO_GPU)],
    ids=["simulated GPU", "real GPU"],
)
def test_training_on_a_gpu_gives_the_same_metrics_as_on_the_cpu(
    run: Run, module: ModuleType, gpu: Any, tolerance: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every optimized parameter and gradient is on the GPU, before and after a restart from a checkpoint."""
    with monkeypatch.context() as without_gpu:
        without_gpu.setattr(torch.cuda, "is_available", lambda: False)
        on_cpu = run(module, 2, accumulate=2)
    devices: set[str] = set()

    def note_devices(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        tensors = (p for group in optimizer.param_groups for p in group["params"])
        devices.update(tensor.device.type for p in tensors for tensor in (p, p.grad))

    hook = register_optimizer_step_pre_hook(note_devices)
    measured.forget()
    with gpu():
        on_gpu = run(module, 1, tmp_path, accumulate=2) + run(module, 2, tmp_path, accumulate=2)
    hook.remove()
    assert devices == {"cuda"}
    assert measured.measurements()["facts"]["device"] == "cuda"
    for metrics, expected in zip(on_gpu, on_cpu, strict=True):
        assert metrics == pytest.approx(expected, rel=tolerance)


@loops
def test_an_unknown_precision_is_refused(run: Run, module: ModuleType) -> None:
    with pytest.raises(ValueError, match="fp32, bf16 and fp16"):
        run(module, 1, precision="int8")


@pytest.mark.parametrize("module", [digits_mlp, char_lm], ids=short_name)
def test_accumulation_changes_the_loss_only_by_rounding(run: Run, module: ModuleType) -> None:
    whole, parts = run(module, 1, optimizer="sgd"), run(module, 1, optimizer="sgd", accumulate=3)
    assert parts[0]["train_loss"] == pytest.approx(whole[0]["train_loss"], rel=1e-3)


def test_convolutional_network_learns_with_accumulation(run: Run) -> None:
    """Its batch normalisation sees micro-batches, so the results are not identical."""
    reports = run(digits_cnn, 2, accumulate=3)
    assert reports[-1]["train_loss"] < reports[0]["train_loss"]


@loops
@pytest.mark.parametrize(
    "config",
    [
        {"optimizer": "sgd", "learning_rate": 0.01, "weight_decay": 1e-4},
        {"depth": 3, "dropout": 0.5, "weight_decay": 0.1},
        {"batch_size": 1024, "learning_rate": 1e-4},
    ],
    ids=["sgd", "deep", "large batches"],
)
def test_documented_parameters_are_accepted(run: Run, module: ModuleType, config: dict[str, Any]) -> None:
    if module is char_lm and "batch_size" in config:
        config = {**config, "batch_size": 16}
    (report,) = run(module, 1, **config)
    assert all(name in module.train.__doc__ for name in config)
    assert all(math.isfinite(value) for value in report.values())


class Read(dict[str, Any]):
    """A configuration that records which names are read."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


def space_of(module: ModuleType) -> Space:
    """Return the search space as the service reads it from a JSON request."""
    asked = {
        "name": "suggested",
        "trainable": f"{module.__name__}:train",
        "objective": module.OBJECTIVE,
        "search_space": module.SEARCH_SPACE,
        "budget": {"usd": 1.0},
    }
    spec = spec_of(JobRequest.model_validate_json(json.dumps(asked)))
    assert spec.faults() == []
    return spec.space


@shipped
def test_suggested_space_has_exactly_the_parameters_that_training_reads(
    run: Run, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[str] = set()
    train = module.train

    def watched(config: dict[str, Any], **how: int) -> None:
        asked = Read(config)
        train(asked, **how)
        read.update(asked.names)

    monkeypatch.setattr(module, "train", watched)
    for optimizer in ("sgd", "adamw"):
        run(module, 1, optimizer=optimizer)
    constants = {"precision", "accumulate", "quantize_aware", "recompute", "seed", "heads"}
    assert set(module.SEARCH_SPACE) == read - constants
    assert all(name in train.__doc__ for name in module.SEARCH_SPACE)


@shipped
def test_configurations_of_the_suggested_space_run_and_report_its_objective(
    run: Run, module: ModuleType
) -> None:
    space, rng = space_of(module), Random(1)
    for _ in range(3):
        config = {**space.sample(rng), "seed": 1}
        if module is char_lm:  # the other modules are fast
            config["batch_size"] = 4
        (report,) = run(module, 1, **config)
        assert math.isfinite(report[module.OBJECTIVE["metric"]])
        assert module.OBJECTIVE["mode"] == ("max" if "accuracy" in module.OBJECTIVE["metric"] else "min")


@digits
def test_most_configurations_of_the_suggested_space_learn(run_whole: Run, module: ModuleType) -> None:
    space, rng = space_of(module), Random(2)
    last = [run_whole(module, 3, **space.sample(rng))[-1]["val_accuracy"] for _ in range(5)]
    assert sum(accuracy > 0.3 for accuracy in last) > 2
    assert max(last) > 0.85


@pytest.mark.parametrize("width", [1, 6, 17])
def test_width_is_rounded_down_to_a_multiple_of_heads(
    run: Run, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []

    class Small(char_lm.CharModel):
        def __init__(self, width: int, *rest: Any) -> None:
            built.append(width)
            super().__init__(width, *rest)

    monkeypatch.setattr(char_lm, "CharModel", Small)
    run(char_lm, 1, width=width)
    assert built == [max(4, width // 4 * 4)]


def rows(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


@digits
def test_training_and_validation_images_are_disjoint(module: ModuleType) -> None:
    x_train, x_val, y_train, y_val = module.data()
    assert rows(x_train) & rows(x_val) == set()
    assert (len(x_train), len(x_val)) == (len(y_train), len(y_val)) == (1347, 450)
    assert len(rows(x_train)) + len(rows(x_val)) == 1797


@digits
def test_split_is_repeatable_and_has_every_digit(module: ModuleType) -> None:
    before, again = module.data(), module.data.__wrapped__()
    assert all(torch.equal(first, two) for first, two in zip(before, again, strict=True))
    assert set(again[2].tolist()) == set(again[3].tolist()) == set(range(10))


def test_character_model_is_validated_on_held_out_files() -> None:
    assert set(char_lm.FILES) & set(char_lm.HELD_OUT) == set()
    learned, held_out = char_lm.texts()
    assert len(learned) > 5 * len(held_out) > 100_000
    assert 0 <= int(learned.min()) <= int(learned.max()) < char_lm.ALPHABET


def test_character_model_output_does_not_depend_on_later_characters() -> None:
    torch.manual_seed(0)
    model = char_lm.CharModel(16, 2, 4, 0.0).eval()
    seen = torch.randint(128, (1, 20))
    changed = seen.clone()
    changed[0, 12:] = (changed[0, 12:] + 1) % 128
    with torch.no_grad():
        seen_output, two = model(seen), model(changed)
    torch.testing.assert_close(seen_output[0, :12], two[0, :12])
    assert not torch.allclose(seen_output[0, 12:], two[0, 12:])
