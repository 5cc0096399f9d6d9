"""Batches in an order that survives a restart."""

import math
import os
import random
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from statistics import mean, median
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Sampler, Subset, TensorDataset, default_collate

from tuner.training.measured import note


class Batches:
    """Batches of the indices of `size` examples. By default the examples are shuffled in a new order each epoch.

    The position is part of a checkpoint. Each epoch has its own random generator, so an interrupted epoch resumes with the same batches.
    By default all ranks get the same batches. If each rank passes `rank` and `ranks`, the ranks take the batches of an epoch in turns.
    All ranks then train the same number of batches: if the number of batches is not divisible by `ranks`, the last ranks repeat the
    first batches of the epoch. A saved position can be restored with a different number of ranks.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self._size, self._batch, self._seed = size, max(1, min(batch_size, size)), seed
        self._shuffle = shuffle
        self._rank, self._ranks = rank, ranks
        self._epoch = self._next = (
            0  # `_next` counts the batches of this epoch that all ranks together have used
        )
        self._is_restored = False

    @property
    def total(self) -> int:
        """The number of batches of an epoch, of all ranks together."""
        return -(-self._size // self._batch)

    def __len__(self) -> int:
        return -(-self.total // self._ranks)

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield the remaining batches of this epoch, then move to the next epoch."""
        note(batch_size=self._batch)
        with self.loop():
            for batch in self.rest():
                self.advance()
                yield batch

    @contextmanager
    def loop(self) -> Iterator[None]:
        """Move to the next epoch after a loop over batches if no batch of this epoch remains.

        This includes a loop that was left at its last batch, as with `break` or `itertools.islice`. A checkpoint after such a loop then
        has the position of the next epoch. If the iterator of an earlier loop still exists, begin with the next epoch.

        The first loop after a restore stays in the restored epoch, even if no batch remains. The checkpoint was then saved inside the
        loop, and the code that follows the loop has not run for this epoch yet.
        """
        if not self.left and not self._is_restored:
            self.end_epoch()
        self._is_restored = False
        epoch = self._epoch
        try:
            yield
        finally:
            # The iterator of a loop that was left early may be closed only during a later loop.
            if self._epoch == epoch and not self.left:
                self.end_epoch()

    def rest(self) -> Sequence[torch.Tensor]:
        """Return the remaining batches of this rank and epoch."""
        if self._shuffle:
            generator = torch.Generator().manual_seed(self.seed_of_epoch % 2**63)
            order = torch.randperm(self._size, generator=generator)
        else:
            order = torch.arange(self._size)
        batches = torch.split(order, self._batch)
        return [batches[number] for number in self.numbers()]

    def numbers(self) -> list[int]:
        """Return the numbers of the remaining batches of this rank, counted from 0 in the epoch."""
        first = self._next + self._rank
        return [number % self.total for number in range(first, first + self.left * self._ranks, self._ranks)]

    @property
    def seed_of_epoch(self) -> int:
        return self._seed * 1_000_003 + self._epoch

    @property
    def left(self) -> int:
        """The number of remaining batches of this rank and epoch."""
        return max(0, -(-(self.total - self._next) // self._ranks))

    def advance(self) -> None:
        """Count one more batch of this epoch as used, on each rank."""
        self._next += self._ranks

    def end_epoch(self) -> None:
        self._epoch, self._next = self._epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch, self._next = int(state["epoch"]), int(state["next"])
        self._is_restored = True


class ResumableLoader:
    """A loader of batches whose position is part of a checkpoint. It wraps a `DataLoader` and is made by `efficient_loader`."""

    def __init__(self, dataset: Any, order: Batches, search: "ArgumentSearch") -> None:
        self._dataset, self._order, self._search = dataset, order, search
        self._searching = True
        self.arguments: dict[str, Any] = {}  #: The arguments that were chosen for the `DataLoader`.
        self._seconds: list[
            tuple[float, float]
        ] = []  # for each timed batch, the seconds of waiting for it and of training on it
        self._choose(None)

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Any]:
        """Yield the remaining batches of this epoch, then move to the next epoch."""
        with self._order.loop():
            while self._order.left:
                yield from self._timed_batches()

    def _timed_batches(self) -> Iterator[Any]:
        """Yield batches until the loader is replaced by one with other arguments, or the epoch ends."""
        began = time.perf_counter()
        for batch in self._loader:
            loaded = time.perf_counter()
            self._order.advance()  # count the batch when it is used, because workers load batches in advance
            yield batch
            if not self._searching:
                continue
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.synchronize()  # otherwise only the start of the GPU's work would be measured, not the training
            trained = time.perf_counter()
            self._seconds.append((loaded - began, trained - loaded))
            workers = self.arguments["num_workers"]
            # Do not count the first batch, which also opens files and allocates memory, nor the batches that the workers load together at the start.
            warm = max(1, workers * (self.arguments.get("prefetch_factor") or 0))
            if len(self._seconds) == warm + (TIMED_WITH_WORKERS if workers else TIMED):
                # With workers, use the mean: if workers are too slow, training waits only for one of several batches, which a median does not show.
                average = mean if workers else median
                waiting_s, training_s = zip(*self._seconds[warm:], strict=True)
                if self._choose((average(waiting_s), average(training_s))):
                    return
            began = time.perf_counter()

    def _choose(self, measured: tuple[float, float] | None) -> bool:
        """Send `measured` to the search for the fastest arguments, and make the loader with the next arguments of the search.

        `measured` has the seconds of waiting for a batch and of training on it. None starts the search.

        Return False if the arguments are those of the present loader, which is then kept.
        """
        self._seconds.clear()
        try:
            arguments = self._search.send(measured)  # type: ignore[arg-type]
        except StopIteration as end:
            arguments, self._searching = end.value, False
        if arguments == self.arguments:
            return False
        self._loader, self.arguments = self._loader_with(arguments), arguments
        return True

    def _loader_with(self, arguments: Mapping[str, Any]) -> DataLoader[Any]:
        workers = arguments["num_workers"]
        arguments = {"persistent_workers": workers > 0, **arguments}
        if not workers:  # without workers, PyTorch refuses these options
            for name in ("prefetch_factor", "timeout", "multiprocessing_context", "persistent_workers"):
                arguments.pop(name, None)
        # Give the loader its own generator. Otherwise it would draw a number from PyTorch's generator whenever an epoch begins. An
        # interrupted epoch begins twice, so later random numbers would differ.
        loader: DataLoader[Any] = DataLoader(
            self._dataset,
            batch_sampler=_Rest(self._order),
            generator=torch.Generator(),
            collate_fn=_as_it_is,
            **arguments,
        )
        note(loader_workers=workers, pin_memory=loader.pin_memory)
        if loader.prefetch_factor is not None:
            note(prefetch_factor=loader.prefetch_factor)
        return loader

    def state_dict(self) -> dict[str, Any]:
        return self._order.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order.load_state_dict(state)


TIMED = 5  # how many batches are timed to measure loading in this process
TIMED_WITH_WORKERS = 40  # how many batches are timed to measure a prefetch factor
PREFETCH_FACTORS = (2, 4, 8)  # batches that each worker loads in advance
WORTH = 0.05  # a change of the arguments is useful if it saves at least this share of the time
CHOOSES_EXAMPLES = {"batch_sampler", "drop_last", "generator", "sampler"}  # arguments of `DataLoader`

ArgumentSearch = Generator[dict[str, Any], tuple[float, float], dict[str, Any]]


def fastest_arguments(
    workers: int | None, given: Mapping[str, Any], *, in_memory: bool = False, gpu: bool = False
) -> ArgumentSearch:
    """Search the fastest arguments of `DataLoader`: yield arguments to be timed, and return the fastest ones.

    After each yield, the caller must send two times in seconds: of waiting for a batch, and of training on it.

    Args:
        workers: The number of workers that the user chose. Nothing is then timed. None if the search must find the number.
        given: Further arguments of `DataLoader`, which are not changed.
        in_memory: Whether the examples are in memory, so that workers are not useful.
        gpu: Whether the trial has a GPU and the examples are not on it, so that pinned memory may be useful.
    """
    arguments = {"num_workers": workers or 0, "pin_memory": gpu, **given}
    pins = gpu and "pin_memory" not in given
    if workers is not None or (in_memory and not pins):
        return arguments
    load_s, train_s = pinned = yield {**arguments}
    if pins:
        load_s, train_s = yield {**arguments, "pin_memory": False}
    workers = 0 if in_memory else useful_workers(load_s, train_s, torch.get_num_threads())
    if pins:
        # With workers, a thread pins batches while training runs, so only the time of training is compared. Without workers, pinning is a
        # part of loading, so the sum of both times is compared.
        arguments["pin_memory"] = pinned[1] <= train_s if workers else sum(pinned) <= load_s + train_s
    arguments["num_workers"] = workers
    if not workers or "prefetch_factor" in given:
        return arguments
    fastest_s = math.inf
    for factor in PREFETCH_FACTORS:
        wait_s, train_s = yield {**arguments, "prefetch_factor": factor}
        if wait_s + train_s > (1 - WORTH) * fastest_s:
            break  # loading more batches in advance is not faster and takes memory
        fastest_s = wait_s + train_s
        arguments = {**arguments, "prefetch_factor": factor}
        if wait_s <= WORTH * fastest_s:
            break
    return arguments


def useful_workers(load_s: float, train_s: float, cpus: int) -> int:
    """Return how many worker processes are needed to load batches as fast as training uses them, at most one less than the CPUs.

    Args:
        load_s: Seconds in which one process loads a batch.
        train_s: Seconds of training on a batch.
        cpus: The CPUs of the trial.
    """
    if load_s <= WORTH * (load_s + train_s):
        return 0
    return min(max(0, cpus - 1), math.ceil(load_s / max(train_s, load_s / cpus)))


class _Rest(Sampler[list[int]]):
    """A sampler of the remaining batches of an epoch. For each batch it yields a list: the batch's seed, then the rows of its examples."""

    def __init__(self, order: Batches) -> None:
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[list[int]]:
        seed = self._order.seed_of_epoch * self._order.total
        for number, rows in zip(self._order.numbers(), self._order.rest(), strict=True):
            yield [seed + number, *rows.tolist()]


class _SeededBatches:
    """A dataset whose items are batches. The random generators are seeded for each batch.

    Therefore random augmentations of a batch are the same in any worker process, and after an interruption. Seeding is left out if
    `draws` is False, which means that loading draws no random numbers.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], *, draws: bool) -> None:
        self._dataset, self._collate, self._draws = dataset, collate, draws

    def __getitems__(self, seed_and_rows: list[int]) -> Any:
        seed, *rows = seed_and_rows
        with _seeded(seed) if self._draws else nullcontext():
            if callable(several := getattr(self._dataset, "__getitems__", None)):
                return self._collate(several(rows))
            return self._collate([self._dataset[row] for row in rows])


def _rank() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks. This also works before the ranks have joined."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _has_gpu_tensors(dataset: Any) -> bool:
    """Return whether a dataset in memory consists of tensors on a GPU, which PyTorch refuses to pin."""
    if isinstance(dataset, Subset):  # `random_split` returns these
        return _has_gpu_tensors(dataset.dataset)
    if isinstance(dataset, TensorDataset):
        return any(tensor.is_cuda for tensor in dataset.tensors)
    if isinstance(dataset, torch.Tensor):
        return dataset.is_cuda
    examples = isinstance(dataset, list | tuple) and dataset[:1]
    return any(isinstance(leaf, torch.Tensor) and leaf.is_cuda for leaf in tree_leaves(examples))


def _as_it_is(batch: Any) -> Any:
    return batch


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the random generators of Python, NumPy and PyTorch on the CPU in the block, and restore their states afterwards."""
    numpy: Any = sys.modules.get("numpy")
    kept = random.getstate(), torch.get_rng_state(), numpy and numpy.random.get_state()
    random.seed(seed)
    torch.default_generator.manual_seed(seed % 2**63)
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(kept[0])
        torch.set_rng_state(kept[1])
        if numpy is not None:
            numpy.random.set_state(kept[2])


def efficient_loader(
    dataset: Any,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    workers: int | None = None,
    collate_fn: Callable[[Any], Any] | None = None,
    **more: Any,
) -> ResumableLoader:
    """Return a loader that continues in the middle of an epoch with the same batches. Pass it to `SpotSafe`.

    The first batches are timed to choose the number of workers, whether memory is pinned, and how many batches each worker loads in
    advance. Workers stay alive between epochs. If a loop is left early, the next loop continues at the same batch. Each batch
    seeds the generators of Python, NumPy and PyTorch while it is loaded, so random augmentations are the same with any number of workers,
    and after an interruption. The ranks of a trial take the batches in turns, so each example is used once in an epoch. Do not use it with
    Lightning, which does not read the loader to the end of its last epoch. After a restore, the next epoch would have no batches.

    Args:
        dataset: A dataset of PyTorch with a length, or any sequence of examples.
        batch_size: Examples per batch of one rank.
        seed: The seed of the order of the examples, and of random augmentations. Each epoch has a different order.
        shuffle: Whether the examples are shuffled.
        workers: The processes that load examples. None measures: as many as keep up with training, at most one less than the trial's
            CPUs, and none if loading takes less than 5 % of the time. A `TensorDataset`, tensor, list or tuple without `collate_fn`
            is in memory and gets no workers. If a number is given, nothing is measured.
        collate_fn: Makes a batch of a list of examples. None stacks tensors, as PyTorch's `DataLoader` does.
        more: Further arguments of `DataLoader`, which are then not measured. If they are not given, `pin_memory` is False without a GPU
            and for tensors that are on the GPU, and otherwise measured. `prefetch_factor` is 2. It is doubled, up to 8, while training
            waits for batches and doubling it saves at least 5 % of the time. `num_workers` is another name of `workers`.

    Raises:
        TypeError: An argument of `DataLoader` that chooses the examples of a batch, such as `drop_last` or `sampler`.
    """
    if refused := sorted(CHOOSES_EXAMPLES & more.keys()):
        raise TypeError(
            f"efficient_loader does not take {', '.join(refused)}: it chooses the examples of a batch itself, so that a trial can resume"
        )
    if "num_workers" in more:
        if workers is not None:
            raise TypeError("workers and num_workers are both given; give only one of them")
        workers = more.pop("num_workers")
    gpu = torch.cuda.is_available() and not _has_gpu_tensors(dataset)
    note(batch_size=batch_size)
    # These types neither take time to load an example nor draw random numbers. A subclass or `collate_fn` may.
    in_memory = collate_fn is None and type(dataset) in (TensorDataset, torch.Tensor, list, tuple)
    # Seeding is left out if nothing draws random numbers, because it takes a tenth of a millisecond per batch.
    batches = _SeededBatches(dataset, collate_fn or default_collate, draws=bool(workers) or not in_memory)
    rank, ranks = _rank()
    order = Batches(len(dataset), batch_size, seed=seed, shuffle=shuffle, rank=rank, ranks=ranks)
    return ResumableLoader(batches, order, fastest_arguments(workers, more, in_memory=in_memory, gpu=gpu))
