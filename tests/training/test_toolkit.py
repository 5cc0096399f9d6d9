"""Test that the training toolkit changes memory and time, but not results: accumulation, recomputed activations, fitted batch sizes,
loaders that continue, and distillation.
"""

import copy
import itertools
import random
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from tests.training.simulated_gpu import simulated_gpu
from tuner.training import (
    Batches,
    SpotSafe,
    accumulate,
    distillation_loss,
    efficient_loader,
    fit_batch_size,
    grad_scaler,
    loaders,
    measured,
    recompute,
)

Pair = namedtuple("Pair", ["x", "y"])


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 1)).double()


def examples(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(size, 4, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
    return x, x.prod(1, keepdim=True)


FORMS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], tuple[Any, Any]]]] = {
    "tuple": (lambda x, y: (x, y), lambda batch: (batch[0], batch[1])),
    "named tuple": (Pair, lambda batch: (batch.x, batch.y)),
    "dictionary": (
        lambda x, y: {"x": x, "of": {"y": [y], "scale": 1.0}},
        lambda b: (b["x"], b["of"]["y"][0]),
    ),
    "arrays": (
        lambda x, y: {"x": x.numpy(), "y": y.numpy()},
        lambda b: (torch.tensor(b["x"]), torch.tensor(b["y"])),
    ),
    "list with texts": (lambda x, y: [x, y, ["name"] * len(x)], lambda batch: (batch[0], batch[1])),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scaled", [False, True])
def test_accumulated_and_clipped_step_equals_that_of_the_whole_batch(form: str, scaled: bool) -> None:
    made, read = FORMS[form]
    x, y = examples(10)
    whole, parts = model(), model()
    optimizer = torch.optim.SGD(whole.parameters(), 1.0)
    expected = nn.functional.mse_loss(whole(x), y)
    expected.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(whole.parameters(), 0.01)
    optimizer.step()
    calls = []

    def loss_of(batch: Any) -> torch.Tensor:
        inputs, targets = read(batch)
        calls.append(len(inputs))
        return nn.functional.mse_loss(parts(inputs), targets)

    loss = accumulate(
        made(x, y),
        4,
        loss_of,
        optimizer=torch.optim.SGD(parts.parameters(), 1.0),
        scaler=grad_scaler("fp16", "cpu") if scaled else None,
        clip=0.01,
    )
    assert calls == [3, 3, 3, 1]
    assert loss == pytest.approx(expected.item())
    torch.testing.assert_close([*parts.parameters()], [*whole.parameters()])


@pytest.mark.parametrize("batch", [(torch.zeros(2), torch.zeros(3)), torch.zeros(0), {}, 1.0], ids=str)
def test_batch_without_a_number_of_examples_is_refused(batch: Any) -> None:
    with pytest.raises(ValueError, match="same number of examples"):
        accumulate(batch, 2, lambda _: torch.zeros(1), optimizer=torch.optim.SGD(model().parameters(), 0.1))


@pytest.mark.parametrize(("every", "again"), [(1, 4), (2, 2), (3, 2)])
def test_recomputed_blocks_have_equal_gradients_and_keep_fewer_tensors(every: int, again: int) -> None:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5))

    torch.manual_seed(0)
    plain = nn.Sequential(*(block() for _ in range(4)))
    other = copy.deepcopy(recompute(copy.deepcopy(plain), every))
    x, kept = torch.randn(8, 4), []
    for network in (plain, other):
        torch.manual_seed(5)
        saved: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, saved=saved: saved.append(t) or t, lambda t: t
        ):
            loss = network(x).square().mean()
        kept.append(len(saved))
        loss.backward()
    torch.testing.assert_close(
        [p.grad for p in other.parameters()], [p.grad for p in plain.parameters()], rtol=0, atol=0
    )
    assert kept[1] < kept[0]
    assert sum("forward" in vars(module) for module in other) == again
    assert [*other.state_dict()] == [*plain.state_dict()]


@pytest.mark.parametrize("momentum", [0.1, None], ids=["moving", "mean"])
def test_recomputed_batch_normalization_counts_each_batch_once(momentum: float | None) -> None:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=momentum), nn.Tanh())

    torch.manual_seed(0)
    plain = nn.Sequential(block(), block())
    other = recompute(copy.deepcopy(plain))
    for network in (plain, other):
        buffers = {name: id(buffer) for name, buffer in network.named_buffers()}
        for seed in range(2):
            # Two forward passes before the backward pass, as with two losses.
            batches = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(seed))
            sum(network(batch).square().mean() for batch in batches).backward()
        assert {name: id(buffer) for name, buffer in network.named_buffers()} == buffers
    assert other[0][1].num_batches_tracked == 4
    torch.testing.assert_close(other.state_dict(), plain.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(
        [p.grad for p in other.parameters()], [p.grad for p in plain.parameters()], rtol=0, atol=0
    )


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), RuntimeError("can't allocate memory")], ids=str
)
def test_batch_size_is_halved_until_it_fits_and_recorded(error: Exception) -> None:
    tried = []

    def step(size: int, parts: int) -> None:
        tried.append((size, parts))
        if size > 20:
            raise error

    assert fit_batch_size(step, 100) == (12, 9)
    assert tried == [(100, 1), (50, 2), (25, 4), (12, 9)]
    assert measured.measurements()["facts"]["fitted_batch_size"] == 12
    with pytest.raises(type(error)):
        fit_batch_size(step, 100, smallest=25)


def test_batch_size_does_not_hide_other_errors() -> None:
    def step(size: int, parts: int) -> None:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        fit_batch_size(step, 100)


def test_distillation_mixes_labels_and_teacher() -> None:
    student, teacher = torch.randn(6, 3, requires_grad=True), torch.randn(6, 3)
    target = teacher.argmax(1)
    labels = nn.functional.cross_entropy(student, target)
    torch.testing.assert_close(distillation_loss(student, teacher, target, weight=0.0), labels)
    same = distillation_loss(teacher, teacher, target, weight=1.0)
    torch.testing.assert_close(same, torch.tensor(0.0))
    expected = 9 * nn.functional.kl_div(
        (student / 3).log_softmax(1), (teacher / 3).softmax(1), reduction="batchmean"
    )
    torch.testing.assert_close(
        distillation_loss(student, teacher, target, weight=1.0, temperature=3.0), expected
    )
    for bad in ({"weight": 1.1}, {"temperature": 0.0}):
        with pytest.raises(ValueError, match="from 0 to 1"):
            distillation_loss(student, teacher, target, **bad)


class Augmented(Dataset[tuple[float, ...]]):
    """Rows with random numbers. Loading one takes a second of the fake time `at`."""

    def __init__(self, size: int = 40) -> None:
        self.size, self.at = size, 0.0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: int) -> tuple[float, ...]:
        self.at += 1
        return row, random.random(), float(np.random.rand()), float(torch.rand(()))


def batches_of(loader: Any, epochs: int = 1) -> list[list[list[float]]]:
    return [[column.tolist() for column in batch] for _ in range(epochs) for batch in loader]


def test_random_augmentations_do_not_depend_on_the_process_nor_on_an_interruption() -> None:
    states = random.getstate(), torch.get_rng_state().tolist()
    whole = batches_of(efficient_loader(Augmented(), 4, seed=3, workers=0), epochs=2)
    assert (random.getstate(), torch.get_rng_state().tolist()) == states
    assert batches_of(efficient_loader(Augmented(), 4, seed=3), epochs=2) == whole
    first = efficient_loader(Augmented(), 4, seed=3, workers=0)
    seen = [[column.tolist() for column in batch] for batch, _ in zip(first, range(7), strict=False)]
    second = efficient_loader(Augmented(), 4, seed=3, workers=1)
    second.load_state_dict({**first.state_dict(), "next": 7})
    assert seen + batches_of(second, epochs=2) == whole
    assert len({str(batch[1:]) for batch in whole}) == 20, "each batch draws other numbers"


def noisy(rows: list[Any]) -> list[torch.Tensor]:
    return [torch.rand(len(rows))]


def test_random_collation_of_rows_in_memory_does_not_depend_on_the_process() -> None:
    rows = TensorDataset(torch.arange(8.0))
    assert batches_of(efficient_loader(rows, 4, collate_fn=noisy)) == batches_of(
        efficient_loader(rows, 4, collate_fn=noisy, workers=1)
    )


def test_options_for_workers_are_accepted_before_any_worker_starts() -> None:
    options: dict[str, Any] = {"timeout": 60, "persistent_workers": True, "multiprocessing_context": "fork"}
    loader = efficient_loader(Augmented(4), 4, prefetch_factor=2, **options)
    assert len(batches_of(loader)) == 1


@pytest.mark.parametrize(("train_s", "workers"), [(0.0, 2), (3.0, 2), (4.0, 1), (75.0, 1), (80.0, 0)])
def test_number_of_workers_is_measured(monkeypatch: pytest.MonkeyPatch, train_s: float, workers: int) -> None:
    data = Augmented(4 * 10)
    monkeypatch.setattr(loaders.time, "perf_counter", lambda: data.at)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for _ in zip(efficient_loader(data, 4), range(loaders.TIMED + 2), strict=False):
        data.at += train_s
    assert measured.measurements()["facts"]["loader_workers"] == workers


@pytest.mark.parametrize(
    ("options", "seconds", "chosen"),
    [
        pytest.param({"in_memory": True}, [], (0, False, None), id="in memory"),
        pytest.param({}, [(0.05, 1)], (0, False, None), id="fast without workers"),
        pytest.param({}, [(1, 1), (0.05, 1)], (1, False, 2), id="one worker keeps up"),
        pytest.param({}, [(1, 1), (0.3, 1), (0.24, 1)], (1, False, 2), id="more prefetching gains little"),
        pytest.param({}, [(1, 1), (0.3, 1), (0.05, 1)], (1, False, 4), id="more prefetching suffices"),
        pytest.param({}, [(1, 1), (0.3, 1), (0.2, 1), (0.1, 1)], (1, False, 8), id="most prefetching"),
        pytest.param({"given": {"prefetch_factor": 3}}, [(1, 1)], (1, False, 3), id="prefetching is given"),
        pytest.param({"gpu": True}, [(0.05, 1), (0, 1.1)], (0, True, None), id="pinning gains"),
        pytest.param({"gpu": True}, [(0.3, 1), (0.05, 1.2)], (0, False, None), id="pinning costs more"),
        pytest.param({"gpu": True}, [(1.3, 1), (1, 1.2), (0, 1)], (1, True, 2), id="a thread pins"),
        pytest.param({"gpu": True, "in_memory": True}, [(1, 1), (2, 1)], (0, True, None), id="pins rows"),
        pytest.param(
            {"gpu": True, "given": {"pin_memory": False}}, [(0, 1)], (0, False, None), id="pinning is given"
        ),
    ],
)
def test_arguments_of_the_loader_are_measured(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], seconds: list[Any], chosen: Any
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    search = loaders.fastest_arguments(None, **{"given": {}, **options})
    *earlier, last = [None, *seconds]
    timed = [search.send(times) for times in earlier]  # type: ignore[arg-type]
    as_timed = [dict(arguments) for arguments in timed]
    with pytest.raises(StopIteration) as end:
        search.send(last)
    arguments = end.value.value
    assert chosen == tuple(arguments.get(name) for name in ("num_workers", "pin_memory", "prefetch_factor"))
    assert timed == as_timed, "what a loader was made with is never changed"


def test_measuring_changes_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the training is interrupted while the loader is measured with workers."""
    monkeypatch.setattr(loaders, "TIMED", 1)
    monkeypatch.setattr(loaders, "TIMED_WITH_WORKERS", 1)

    def search(*_: object, **__: object) -> loaders.ArgumentSearch:
        yield {"num_workers": 0}
        yield (fewer := {"num_workers": 1, "prefetch_factor": 2})
        yield {"num_workers": 1, "prefetch_factor": 4}
        return fewer

    whole = batches_of(efficient_loader(Augmented(), 4, seed=3, workers=0), epochs=2)
    monkeypatch.setattr(loaders, "fastest_arguments", search)
    first, second = (efficient_loader(Augmented(), 4, seed=3) for _ in range(2))
    seen = [[column.tolist() for column in batch] for batch, _ in zip(first, range(7), strict=False)]
    second.load_state_dict({**first.state_dict(), "next": 7})
    assert seen + batches_of(second, epochs=2) == whole
    facts = measured.measurements()["facts"]
    assert (facts["loader_workers"], facts["prefetch_factor"]) == (1, 2)


def rows_of(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def loader_of_rank(monkeypatch: pytest.MonkeyPatch, rank: int, ranks: int, size: int = 40) -> Any:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    return efficient_loader(torch.arange(size), 4, seed=3)


@pytest.mark.parametrize("size", [40, 37, 45])
def test_ranks_take_the_batches_in_turns(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    whole = rows_of(loader_of_rank(monkeypatch, 0, 1, size))
    first, second = (rows_of(loader_of_rank(monkeypatch, rank, 2, size)) for rank in (0, 1))
    assert len(first) == len(second)
    in_turns = [batch for pair in zip(first, second, strict=True) for batch in pair]
    assert in_turns == (whole + whole)[: len(in_turns)], (
        "the last rank repeats a batch if their number is odd"
    )


def test_state_of_the_loader_fits_another_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows_of(loader_of_rank(monkeypatch, 0, 1))
    loader = loader_of_rank(monkeypatch, 0, 2)
    for _ in zip(loader, range(3), strict=False):
        pass
    state = loader.state_dict()
    continued = loader_of_rank(monkeypatch, 0, 1)
    continued.load_state_dict(state)
    assert rows_of(continued) == whole[state["next"] :]


LOADERS = [efficient_loader, lambda data, size: Batches(len(data), size)]


@pytest.mark.parametrize("make", LOADERS)
def test_loop_left_at_the_last_batch_does_not_make_the_next_one_empty(make: Any) -> None:
    loader, restored, held = make(torch.arange(8), 4), make(torch.arange(8), 4), []
    for seen, _ in enumerate(loader, start=1):
        if seen == 2:
            state = loader.state_dict()
            break
    assert len(rows_of(loader)) == 2
    restored.load_state_dict(state)
    assert [len(rows_of(restored)) for _ in range(2)] == [0, 2], (
        "the code after the interrupted loop runs first"
    )
    for _ in range(2):
        held.append(iter(loader))  # an iterator that is not closed when the next loop begins
        assert [next(held[-1]) is not None for _ in range(2)] == [True, True]
    assert len(rows_of(loader)) == 2


@pytest.mark.parametrize("make", LOADERS)
def test_steps_of_a_part_of_an_epoch_resume_with_all_their_batches(make: Any) -> None:
    def steps(loader: Any, count: int) -> list[list[list[int]]]:
        return [[rows.tolist() for rows in itertools.islice(loader, 5)] for _ in range(count)]

    expected = steps(make(torch.arange(20), 2), 4)
    assert [len(step) for step in expected] == [5, 5, 5, 5]
    for saved in range(5):
        first, resumed = make(torch.arange(20), 2), make(torch.arange(20), 2)
        before = steps(first, saved)
        resumed.load_state_dict(first.state_dict())
        assert before + steps(resumed, 4 - saved) == expected


def test_arguments_of_the_loader_are_kept_or_refused() -> None:
    loader = efficient_loader(Augmented(), 4, num_workers=0)
    assert len(batches_of(loader)) == 10
    assert loader.arguments["num_workers"] == 0
    with pytest.raises(TypeError, match="does not take drop_last, sampler"):
        efficient_loader(Augmented(), 4, drop_last=True, sampler=[1])
    with pytest.raises(TypeError, match="workers and num_workers are both given"):
        efficient_loader(Augmented(), 4, workers=1, num_workers=1)
    assert len(rows_of(efficient_loader(torch.arange(8), 4, seed=2**60))) == 2


@pytest.mark.parametrize(
    "kind",
    [
        TensorDataset,
        lambda rows: rows,
        list,
        lambda rows: tuple({"x": row, "name": "row"} for row in rows),
        lambda rows: Subset(TensorDataset(rows), range(8)),
    ],
    ids=["dataset", "tensor", "list", "dictionaries", "subset"],
)
def test_examples_on_the_gpu_are_not_pinned(kind: Any) -> None:
    with simulated_gpu():
        rows = torch.arange(8.0)
        assert efficient_loader(kind(rows), 4).arguments["pin_memory"]
        loader = efficient_loader(kind(rows.cuda()), 4)
        assert not loader.arguments["pin_memory"]
        assert len(list(loader)) == 2


@pytest.mark.parametrize(
    ("options", "kind"), [({"collate_fn": noisy}, TensorDataset), ({}, type("Slow", (TensorDataset,), {}))]
)
def test_rows_that_may_take_time_are_not_in_memory(options: dict[str, Any], kind: Any) -> None:
    loader = efficient_loader(kind(torch.arange(8.0)), 4, **options)
    assert loader._searching


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.extended)])
def test_loader_continues_in_the_middle_of_an_epoch(tmp_path: Path, workers: int) -> None:
    data = TensorDataset(torch.arange(40))

    def run(stop_after: int | None = None) -> list[list[int]]:
        loader = efficient_loader(data, 4, seed=3, workers=workers)
        seen: list[list[int]] = []
        with SpotSafe(checkpoint_dir=tmp_path, loader=loader) as safe:
            for _ in safe.steps(2):
                for (rows,) in loader:
                    seen.append(rows.tolist())
                    if len(seen) == stop_after:
                        safe._save(now=True)
                        return seen
                safe.report(loss=0.0)
        return seen

    first = run(stop_after=7)
    second = run()
    assert len(first) + len(second) == 20
    whole = efficient_loader(data, 4, seed=3, workers=workers)
    expected = [rows.tolist() for _ in range(2) for (rows,) in whole]
    assert first + second == expected
    assert sorted(expected[:10]) != sorted(expected[10:]), "each epoch has its own order"
    assert sorted(row for rows in expected[10:] for row in rows) == list(range(40))
