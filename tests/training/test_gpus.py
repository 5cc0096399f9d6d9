"""Test which functions of `torch.cuda` and `torch.amp` the helpers call, and when. These tests use no GPU.

`tests/trainables/test_trainables.py` trains on a simulated GPU, and on a real one if the machine has one.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.counting import Count
from tests.training.simulated_gpu import simulated_gpu
from tuner.training import SpotSafe, accumulate, autocast, checkpoint, grad_scaler, measured, plain
from tuner.training.estimators import stateful


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Make CUDA look initialized, and return the device and dtype of each `torch.autocast` that is entered.
    Each runs on the CPU.
    """
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
def test_autocast_enters_contexts_for_cpu_and_cuda_if_cuda_is_initialized(
    contexts: list[tuple[str, Any]], precision: str, dtype: Any
) -> None:
    with autocast(precision):
        pass
    assert contexts == [("cpu", dtype), ("cuda", dtype)]
    assert measured.measurements()["facts"]["device"] == "cuda"
    contexts.clear()
    with autocast(precision, "cpu"):
        pass
    assert contexts == [("cpu", dtype)]


def test_each_entry_of_one_autocast_checks_whether_cuda_is_initialized(
    contexts: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(torch.cuda, "is_initialized", lambda: False)
        mixed = autocast("bf16")
        with mixed:
            pass
    assert contexts == [("cpu", torch.bfloat16)]
    for _ in range(2):
        contexts.clear()
        with mixed, mixed:
            assert torch.is_autocast_enabled("cpu")
        assert contexts == [("cpu", torch.bfloat16), ("cuda", torch.bfloat16)] * 2
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_enters_no_cuda_context_if_cuda_is_not_initialized() -> None:
    with autocast("bf16"):
        assert not torch.is_autocast_enabled("cuda")


@pytest.mark.parametrize(("is_available", "device"), [(True, "cuda"), (False, "cpu")])
def test_grad_scaler_is_made_for_cuda_if_it_is_available(
    monkeypatch: pytest.MonkeyPatch, is_available: bool, device: str
) -> None:
    made = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_available)
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device, enabled: made.append((device, enabled)))
    grad_scaler("fp16")
    grad_scaler("fp16", "xpu")
    assert made == [(device, True), ("xpu", True)]


class Reads(TorchDispatchMode):
    """Count how often a number is read from a tensor. On a GPU, each read waits for the computation."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_number_of_reads_does_not_depend_on_the_number_of_micro_batches() -> None:
    network = nn.Linear(4, 1)
    optimizer, x = torch.optim.SGD(network.parameters(), 0.1), torch.randn(12, 4)
    read = []
    for parts in (2, 6):
        with Reads() as reads:
            accumulate(x, parts, lambda x: network(x).mean(), optimizer=optimizer, scaler=grad_scaler("fp32"))
        read.append(reads.count)
    assert read[0] == read[1]


# Random generators


def test_snapshot_does_not_read_cuda_generators_if_cuda_is_not_initialized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: pytest.fail("this initializes every GPU"))
    assert checkpoint.snapshot({}, step=1)["random"]["cuda"] == []


def test_restore_initializes_cuda_and_then_sets_as_many_generators_as_there_are_devices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    states, calls = [torch.tensor([n], dtype=torch.uint8) for n in range(3)], list[Any]()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: states)
    checkpoint.write(checkpoint.snapshot({}, step=4), tmp_path / "saved")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "init", lambda: calls.append("initialized"))
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", calls.append)
    assert checkpoint.restore({}, [tmp_path / "saved"]) == 4
    assert calls == ["initialized", states[:2]]


# Saving and restoring


def test_tensors_in_lists_and_dictionaries_are_restored_on_their_device(tmp_path: Path) -> None:
    def train(steps: int) -> tuple[dict[str, Any], list[Any]]:
        network = nn.Linear(2, 1).to("cuda")
        averages: dict[str, Any] = {
            name: value.detach().clone() for name, value in network.state_dict().items()
        }
        outputs = list[Any]()  # the tensors of earlier steps
        with SpotSafe(model=network, averages=averages, outputs=outputs, checkpoint_dir=tmp_path) as run:
            for step in run.steps(steps):
                for name, value in network.state_dict().items():
                    averages[name].mul_(0.9).add_(value, alpha=0.1)
                outputs.append((step, network(torch.ones(1, 2, device="cuda")).detach()))
                outputs.append(torch.ones(2))
                run.report(loss=1.0)
        return averages, outputs

    with simulated_gpu():
        train(1)
        averages, outputs = train(2)
        assert {str(value.device) for value in averages.values()} == {"cuda:0"}
        assert [str(output[1].device) for output in outputs[::2]] == ["cuda:0", "cuda:0"]
        assert [str(output.device) for output in outputs[1::2]] == ["cpu", "cpu"]
    averages, outputs = dict.fromkeys(averages), []
    parts = {"averages": stateful("averages", averages), "outputs": stateful("outputs", outputs)}
    saved = plain.read(max(tmp_path.iterdir()) / "state.pt")["parts"]
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    assert {str(output[1].device) for output in outputs[::2]} == {"cpu"}, "this machine has no GPU"


def test_cuda_is_synchronized_before_the_checkpoint_phase_begins(
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
