"""Run the training toolkit on a real GPU. Without one the tests are skipped.

Only PyTorch and pytest are needed: `python -m pytest --noconftest -c /dev/null --rootdir . tests/training/test_on_a_gpu.py`.
"""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from tuner.training import (
    SpotSafe,
    accumulate,
    autocast,
    efficient_loader,
    fit_batch_size,
    grad_scaler,
    recompute,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
MIB = 1 << 20


def network(width: int = 512, depth: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = (
        nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width))
        for _ in range(depth)
    )
    return nn.Sequential(*blocks).cuda()


def test_batch_size_fits_after_a_real_out_of_memory_error() -> None:
    model, width = network(), 512
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.cuda.empty_cache()
    base = torch.cuda.memory_allocated()
    limit = base + 1024 * MIB
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    largest = 65536
    try:

        def step(size: int, parts: int) -> None:
            optimizer.zero_grad(set_to_none=True)
            model(torch.randn(size, width, device="cuda")).square().mean().backward()

        size, parts = fit_batch_size(step, largest)
        assert size < largest
        assert size * parts >= largest
        optimizer.zero_grad(set_to_none=True)
        batch = torch.randn(largest // 4, width, device="cuda")
        loss = accumulate(
            batch, -(-len(batch) // size), lambda part: model(part).square().mean(), optimizer=optimizer
        )
        assert loss > 0
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.memory_allocated() - base < 1024 * MIB, "the failed steps left nothing behind"


@pytest.mark.parametrize("every", [1, 2])
def test_recomputed_blocks_save_memory_and_have_equal_gradients(every: int) -> None:
    model = network()
    other = recompute(copy.deepcopy(model), every)
    x = torch.randn(4096, 512, device="cuda")
    peaks = []
    for tested_model in (model, other):
        torch.manual_seed(3)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        tested_model(x).square().mean().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    print(f"\nrecompute(every={every}): {peaks[0] / MIB:.0f} MiB without, {peaks[1] / MIB:.0f} MiB with")
    assert peaks[1] < 0.85 * peaks[0]
    torch.testing.assert_close([p.grad for p in other.parameters()], [p.grad for p in model.parameters()])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_accumulated_and_clipped_step_with_mixed_precision_equals_the_whole_batch(precision: str) -> None:
    x = torch.randn(256, 64, device="cuda")
    # small, so that no scaled gradient exceeds the range of fp16 and no step is skipped
    y = x.mean(1, keepdim=True)
    weights = []
    for parts in (1, 4):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1)).cuda()
        optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), grad_scaler(precision)

        def loss_of(batch: dict[str, torch.Tensor], model: nn.Module = model) -> torch.Tensor:
            with autocast(precision):
                return nn.functional.mse_loss(model(batch["x"]).float(), batch["y"])

        for _ in range(3):
            accumulate({"x": x, "y": y}, parts, loss_of, optimizer=optimizer, scaler=scaler, clip=1.0)
        weights.append([p.detach() for p in model.parameters()])
    rough = precision != "fp32"
    torch.testing.assert_close(
        weights[0], weights[1], rtol=0.02 if rough else 1e-5, atol=2e-3 if rough else 1e-6
    )


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_pins_memory_and_continues_in_the_middle_of_an_epoch(workers: int) -> None:
    loader = efficient_loader(Rows(), 4, seed=3, workers=workers)
    whole = [batch.tolist() for _ in range(2) for batch in loader]
    first, seen = efficient_loader(Rows(), 4, seed=3, workers=workers), []
    for batch in first:
        assert batch.is_pinned()
        seen.append(batch.to("cuda", non_blocking=True).tolist())
        if len(seen) == 7:
            break
    second = efficient_loader(Rows(), 4, seed=3, workers=workers)
    second.load_state_dict(first.state_dict())
    seen += [batch.tolist() for _ in range(2) for batch in second]
    assert seen == whole
    other = efficient_loader(Rows(), 4, seed=3)
    assert [batch.tolist() for _ in range(2) for batch in other] == whole  # with any number of workers


def test_checkpoint_of_a_gpu_training_continues_it(tmp_path: object) -> None:
    def run(steps: int, folder: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        with SpotSafe(model=model, optimizer=optimizer, checkpoint_dir=folder) as safe:
            for _ in safe.steps(steps):
                optimizer.zero_grad()
                loss = model(torch.ones(4, 8, device="cuda")).square().mean()
                loss.backward()
                optimizer.step()
                safe.report(loss=loss)
                safe.checkpoint_if_due()
        return [p.detach().cpu() for p in model.parameters()]

    whole = run(4, f"{tmp_path}/whole")
    run(2, f"{tmp_path}/parts")
    torch.testing.assert_close(run(4, f"{tmp_path}/parts"), whole)
