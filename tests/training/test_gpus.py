"""What our helpers do where there is a GPU, on machines without one: PyTorch's own functions are asked, or others stand in for them."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.counting import Count
from trainables import char_lm, digits_cnn, digits_mlp
from tuner.training import SpotSafe, accumulated_step, autocast, checkpoint, grad_scaler, measured


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """A PyTorch that has initialized CUDA; the contexts for mixed precision that were entered, with what each was asked for."""
    entered: list[tuple[str, Any]] = []

    class Context(torch.autocast):
        def __init__(self, device: str, dtype: Any = None, enabled: bool = True) -> None:
            super().__init__("cpu", dtype=dtype, enabled=enabled)
            self.asked = (device, dtype if enabled else None)

        def __enter__(self) -> Any:
            entered.append(self.asked)
            return super().__enter__()

    monkeypatch.setattr(torch, "autocast", Context)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    return entered


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", None), ("bf16", torch.bfloat16)])
def test_a_precision_holds_on_gpus_too_where_they_are_used(
    on_gpu: list[tuple[str, Any]], precision: str, dtype: Any
) -> None:
    with autocast(precision):
        pass
    assert on_gpu == [("cpu", dtype), ("cuda", dtype)]
    assert measured.taken()["facts"]["device"] == "cuda"
    on_gpu.clear()
    with autocast(precision, "cpu"):
        pass
    assert on_gpu == [("cpu", dtype)]
    measured.forget()


def test_a_context_that_is_made_once_holds_each_time_and_on_gpus_that_are_used_later(
    on_gpu: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(torch.cuda, "is_initialized", lambda: False)
        mixed = autocast("bf16")
        with mixed:
            pass
    assert on_gpu == [("cpu", torch.bfloat16)]
    for _ in range(2):
        on_gpu.clear()
        with mixed, mixed:
            assert torch.is_autocast_enabled("cpu")
        assert on_gpu == [("cpu", torch.bfloat16), ("cuda", torch.bfloat16)] * 2
    assert not torch.is_autocast_enabled("cpu")
    measured.forget()


def test_a_training_on_the_cpu_asks_for_no_context_of_a_gpu() -> None:
    with autocast("bf16"):
        assert not torch.is_autocast_enabled("cuda")
    measured.forget()


@pytest.mark.parametrize(("there", "device"), [(True, "cuda"), (False, "cpu")])
def test_losses_are_scaled_for_the_gpu_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, there: bool, device: str
) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.amp, "GradScaler", lambda found, enabled: asked.append((found, enabled)))
    grad_scaler("fp16")
    grad_scaler("fp16", "xpu")
    assert asked == [(device, True), ("xpu", True)]


class Reads(TorchDispatchMode):
    """Counts how often a number is read from a tensor, for which a GPU would be waited for."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_micro_batches_follow_each_other_without_waiting_for_the_gpu() -> None:
    network = nn.Linear(4, 1)
    optimizer, x = torch.optim.SGD(network.parameters(), 0.1), torch.randn(12, 4)
    read = []
    for parts in (2, 6):
        with Reads() as reads:
            accumulated_step(
                x, parts, lambda x: network(x).mean(), optimizer=optimizer, scaler=grad_scaler("fp32")
            )
        read.append(reads.count)
    assert read[0] == read[1]


# Random generators


def test_a_training_on_the_cpu_asks_no_gpu_for_its_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: pytest.fail("this initializes every GPU"))
    assert checkpoint.snapshot({}, step=1)["random"]["cuda"] == []


def test_generators_of_gpus_are_set_after_their_seeds_and_as_many_as_there_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    states, done = [torch.tensor([n], dtype=torch.uint8) for n in range(3)], list[Any]()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: states)
    checkpoint.write(checkpoint.snapshot({}, step=4), tmp_path / "saved")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "init", lambda: done.append("initialized"))
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", done.append)
    assert checkpoint.restore({}, [tmp_path / "saved"]) == 4
    assert done == ["initialized", states[:2]]


# Saving


def test_what_the_gpu_still_computes_is_training_not_saving(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    order = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", list)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("synchronized"))
    with SpotSafe(steps=1, checkpoint_dir=tmp_path, count=Count()) as run:
        run._home.phase = order.append  # type: ignore[method-assign, assignment]
        for _ in run.steps():
            run.report(loss=1.0)
    assert order[:3] == ["train", "synchronized", "checkpoint"]


# The shipped trainables


@pytest.fixture
def on_meta(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.device]]:
    """What is put on CUDA goes to the device `meta` instead, which computes shapes alone, and as CUDA does refuses tensors of the CPU;
    the devices of all losses."""
    losses: list[torch.device] = []
    tensor_to, module_to = torch.Tensor.to, nn.Module.to

    def moved(original: Any) -> Any:
        def to(self: Any, *where: Any, **how: Any) -> Any:
            return original(self, *("meta" if one == "cuda" else one for one in where), **how)

        return to

    def step(batch: Any, parts: int, loss_of: Any, *, optimizer: Any, scaler: Any) -> float:
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.device)
        return 0.0

    class Once(SpotSafe):
        def __init__(self, **parts: Any) -> None:
            super().__init__(steps=1)

        def report(self, **metrics: Any) -> None:
            self._step, self._reported = 1, True

    monkeypatch.setattr(torch.Tensor, "to", moved(tensor_to))
    monkeypatch.setattr(nn.Module, "to", moved(module_to))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for module in (digits_mlp, digits_cnn, char_lm):
        monkeypatch.setattr(module, "SpotSafe", Once)
        monkeypatch.setattr(module, "accumulated_step", step)
    yield losses
    measured.forget()


@pytest.mark.parametrize("module", [digits_mlp, digits_cnn, char_lm])
def test_a_shipped_trainable_trains_on_the_gpu_where_there_is_one(
    on_meta: list[torch.device], module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    if module is char_lm:  # it reads its validation loss itself
        monkeypatch.setattr(torch.Tensor, "__float__", lambda loss: 0.0 if loss.is_meta else loss.item())
    module.train({"width": 16, "depth": 1, "batch_size": 512, "dropout": 0.1})
    assert {device.type for device in on_meta} == {"meta"}
