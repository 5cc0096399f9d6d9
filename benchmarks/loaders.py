"""Measure what `efficient_loader` gains over PyTorch's `DataLoader`, for three kinds of data.

The data `steady` takes the same time to decode each example. The data `late` has one slow example in 64, as from a storage that sometimes
answers late. The data `memory` has its examples in memory. Training on a batch is simulated by waiting, as if a GPU trained, so the
processors are free for loading.
"""

import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import torch
import typer
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tuner.training.loaders import efficient_loader

BATCH = 8
BATCHES = 400
STEP_S = 0.01


class Slow(Dataset[torch.Tensor]):
    """Examples that take time to load."""

    def __init__(self, load_s: float, late_s: float = 0.0) -> None:
        self._load_s, self._late_s = load_s, late_s

    def __len__(self) -> int:
        return BATCH * BATCHES

    def __getitem__(self, row: int) -> torch.Tensor:
        time.sleep(self._load_s + (self._late_s if row % 64 == 0 else 0.0))
        return torch.zeros(32)


KINDS: dict[str, Callable[[], Any]] = {
    "steady": lambda: Slow(STEP_S / BATCH * 0.8),
    "late": lambda: Slow(STEP_S / BATCH * 0.4, late_s=0.03),
    "memory": lambda: TensorDataset(torch.zeros(BATCH * BATCHES, 32)),
}


def epoch_s(loader: Iterable[Any]) -> float:
    """Train an epoch, and return its seconds."""
    began = time.perf_counter()
    for _ in loader:
        time.sleep(STEP_S)
    return time.perf_counter() - began


def plain(dataset: Any, workers: int) -> DataLoader[Any]:
    return DataLoader(
        dataset, batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )


def main(
    epochs: Annotated[int, typer.Option(help="Epochs of each loader, after one that is not counted.")] = 3,
) -> None:
    """Print the seconds of an epoch with each loader, and their ratio to training without any loading."""
    print(f"{BATCHES} batches, {BATCHES * STEP_S:.1f} s of training; ratio to that")
    for kind, dataset in KINDS.items():
        ours = efficient_loader(dataset(), BATCH)
        loaders = {
            "0 workers": plain(dataset(), 0),
            "1 worker": plain(dataset(), 1),
            "efficient_loader": ours,
        }
        for name, loader in loaders.items():
            first_s = epoch_s(loader)
            seconds = sorted(epoch_s(loader) for _ in range(epochs))
            ratios = [second / (BATCHES * STEP_S) for second in (first_s, *seconds)]
            chosen = f", chose {ours.arguments}" if loader is ours else ""
            print(
                f"{kind:8} {name:17} first epoch {ratios[0]:.2f}, "
                f"others {ratios[1 + epochs // 2]:.2f} ({ratios[1]:.2f} to {ratios[-1]:.2f}){chosen}"
            )


if __name__ == "__main__":
    typer.run(main)
