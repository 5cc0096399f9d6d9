"""Test what a save copies before training continues: the copy is exact, training does not change it, and its
memory is reused.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.training.counting import Count
from tuner.training import SpotSafe, checkpoint

TENSORS = {
    "a row": torch.randn(7),
    "a matrix": torch.randn(5, 3),
    "a transposed one": torch.randn(5, 3).T,
    "every second of a row": torch.arange(10.0)[::2],
    "one number, repeated": torch.ones(1).expand(4),
    "a number": torch.tensor(3.5),
    "nothing": torch.empty(0, 4),
    "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "half precision": torch.randn(6).to(torch.bfloat16),
    "whole numbers": torch.arange(6, dtype=torch.int64),
    "truths": torch.tensor([True, False]),
    "complex, conjugate": torch.randn(4, dtype=torch.complex64).conj(),
    "sparse": torch.eye(3).to_sparse(),
    "a parameter": nn.Parameter(torch.randn(3)),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS.keys())
def test_repeated_copies_are_exact_and_share_no_memory_with_the_tensor(tensor: Any) -> None:
    copies = checkpoint.Copies()
    for _ in range(3):
        copies.begin()
        copied = [copies.copy(tensor), copies.copy(tensor)]
        for copy in copied:
            assert torch.equal(
                copy.to_dense() if copy.is_sparse else copy, tensor.to_dense() if tensor.is_sparse else tensor
            )
            assert copy.dtype == tensor.dtype
            assert not copy.requires_grad
        if tensor.layout == torch.strided and tensor.numel():
            assert len({copied[0].data_ptr(), copied[1].data_ptr(), tensor.data_ptr()}) == 3


def test_copy_memory_is_reused_by_the_next_save_and_freed_when_unused() -> None:
    copies, tensor = checkpoint.Copies(), torch.randn(1000)
    first = copies.copy(tensor)
    copies.begin()
    tensor.add_(1)
    second = copies.copy(tensor)
    assert second.data_ptr() == first.data_ptr()
    assert torch.equal(second, tensor)
    copies.begin()
    copies.copy(torch.randn(10))
    copies.begin()
    assert copies._free.keys() == {(torch.float32, torch.Size([10]), (1,))}


def test_part_that_grows_is_saved_in_its_current_size(tmp_path: Path) -> None:
    count = Count()
    with SpotSafe(count=count, steps=3, checkpoint_dir=tmp_path) as run:
        for step in run.steps():
            count.value = torch.arange(float(10 * (step + 1)))
            run.report(step=step)
    for step in (2, 3):
        state = torch.load(tmp_path / f"step_{step:08d}" / checkpoint.STATE_FILE, weights_only=True)
        assert torch.equal(state["parts"]["count"]["value"], torch.arange(float(10 * step)))


@pytest.mark.parametrize("first", [True, False])
def test_inference_mode_around_some_reports_does_not_break_training(tmp_path: Path, first: bool) -> None:
    model = nn.Linear(3, 1)
    with SpotSafe(model=model, steps=3, checkpoint_dir=tmp_path) as run:
        for step in run.steps():
            with torch.inference_mode((step % 2 == 0) == first):
                run.report(step=step)
            model(torch.ones(3)).sum().backward()


def test_checkpoint_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, real = [], checkpoint.sync

    def sync(directory: Path) -> None:
        assert directory.name.startswith(".writing_")
        synced.append(directory)
        real(directory)

    monkeypatch.setattr(checkpoint, "sync", sync)
    with SpotSafe(count=Count(), steps=2, checkpoint_dir=tmp_path) as run:
        for step in run.steps():
            run.report(step=step)
    assert len(synced) == 2
