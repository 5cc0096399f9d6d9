"""Batches in an order that survives a restart."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

from tuner.training.measured import note


class Batches:
    """Index batches over `size` examples, by default shuffled in a new order each epoch.

    The position is part of a checkpoint. Each epoch has its own random generator, so an interrupted epoch resumes with the same batches.
    """

    def __init__(self, size: int, batch_size: int, *, seed: int = 0, shuffle: bool = True) -> None:
        self._size, self._batch, self._seed = size, max(1, min(batch_size, size)), seed
        self._shuffle = shuffle
        self._epoch = self._next = 0

    def __len__(self) -> int:
        return -(-self._size // self._batch)

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield the remaining batches of this epoch, then move to the next epoch."""
        note(batch_size=self._batch)
        for batch in self.rest():
            self.advance()
            yield batch
        self.end_epoch()

    def rest(self) -> Sequence[torch.Tensor]:
        """Return the remaining batches of this epoch."""
        if self._shuffle:
            generator = torch.Generator().manual_seed(self.seed_of_epoch)
            order = torch.randperm(self._size, generator=generator)
        else:
            order = torch.arange(self._size)
        return torch.split(order, self._batch)[self._next :]

    @property
    def seed_of_epoch(self) -> int:
        return self._seed * 1_000_003 + self._epoch

    def advance(self) -> None:
        """Count one more batch of this epoch as used."""
        self._next += 1

    def end_epoch(self) -> None:
        self._epoch, self._next = self._epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch, self._next = int(state["epoch"]), int(state["next"])


class ResumableLoader:
    """The batches of a `DataLoader`, whose position is part of a checkpoint. Made by `efficient_loader`."""

    def __init__(self, dataset: Any, order: Batches, arguments: Mapping[str, Any]) -> None:
        self._order, self._drawn = order, torch.Generator()
        # Without its own generator, each epoch would draw a number from PyTorch's. A continued epoch would draw one more.
        self._loader: DataLoader[Any] = DataLoader(
            dataset, batch_sampler=_Rest(order), generator=self._drawn, **arguments
        )

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Any]:
        """Yield the remaining batches of this epoch, then move to the next epoch."""
        self._drawn.manual_seed(self._order.seed_of_epoch)
        for batch in self._loader:
            self._order.advance()  # not when a worker loads the batch, which is earlier
            yield batch
        self._order.end_epoch()

    def state_dict(self) -> dict[str, Any]:
        return self._order.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order.load_state_dict(state)


class _Rest(Sampler[list[int]]):
    """The rows of the remaining batches of an epoch."""

    def __init__(self, order: Batches) -> None:
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[list[int]]:
        for rows in self._order.rest():
            yield rows.tolist()


def efficient_loader(
    dataset: Any,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    workers: int | None = None,
    **more: Any,
) -> ResumableLoader:
    """Return a loader that continues in the middle of an epoch with the same batches. Pass it to `SpotSafe`.

    It pins memory if CUDA is available, and its workers stay alive between epochs. A loop that is left early continues there the next
    time, too. Random numbers that are drawn in worker processes differ after an interruption. Do not use it with Lightning, which does not
    take a loader to the end of its last epoch, and would find the next one empty.

    Args:
        dataset: A dataset of PyTorch with a length, or any sequence of examples.
        batch_size: Examples per batch.
        seed: Of the order of the examples. Each epoch has an order of its own.
        shuffle: Whether the examples are shuffled.
        workers: The processes that load examples. None takes one less than the trial's CPUs, and none for tensors in memory, which are
            faster to read than to send to another process.
        more: Further arguments of PyTorch's `DataLoader`, such as `collate_fn` and `prefetch_factor`.
    """
    if workers is None:
        in_memory = isinstance(dataset, TensorDataset | torch.Tensor | list | tuple)
        workers = 0 if in_memory else max(0, torch.get_num_threads() - 1)
    pin = torch.cuda.is_available()
    note(loader_workers=workers, pin_memory=pin, batch_size=batch_size)
    arguments = {"num_workers": workers, "pin_memory": pin, "persistent_workers": workers > 0, **more}
    return ResumableLoader(dataset, Batches(len(dataset), batch_size, seed=seed, shuffle=shuffle), arguments)
