"""Test `tuner.training.prepare` in one process. `tests/worker/test_preloading.py` has tests with a worker."""

import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import manual_seed

from tuner.training import prepare, preparing, seed_everything
from tuner.training.seeding import seed_attempt, seed_untouched


@pytest.fixture(autouse=True)
def _no_other_functions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(preparing, "_PREPARED", [])
    return


def test_equal_arguments_get_the_same_object_however_they_are_given() -> None:
    @prepare
    def data(folder: str, size: int = 32) -> list[Any]:
        return [folder, size]

    assert data("a") is data("a", 32) is data(size=32, folder="a")
    assert data("a", 16) == ["a", 16]
    assert data.__name__ == "data"


def test_argument_without_a_plain_value_is_refused() -> None:
    @prepare
    def data(folder: object) -> object:
        return folder

    with pytest.raises(TypeError, match="the arguments of data must be plain values"):
        data(object())


def test_only_functions_whose_arguments_are_constants_are_called() -> None:
    called: list[Any] = []

    @prepare
    def by_constant(folder: str, size: int = 32) -> None:
        called.append((folder, size))

    @prepare
    def by_parameter(width: int) -> None:
        called.append(width)

    @prepare
    def by_nothing() -> None:
        called.append(())

    preparing.prepare_all({"folder": "a", "size": 8, "epochs": 3})
    by_constant("a", 8)
    by_nothing()
    assert called == [("a", 8), ()]
    by_parameter(5)
    assert called == [("a", 8), (), 5]


def test_prepared_data_is_repeatable_and_leaves_the_random_generators_alone() -> None:
    def draw() -> list[float]:
        return [random.random(), float(numpy.random.random()), float(torch.rand(1))]

    def expected(seed: int) -> list[float]:
        random.seed(seed), numpy.random.seed(seed), torch.manual_seed(seed)
        return draw()

    undisturbed, threads = expected(7), torch.get_num_threads()
    prepared = prepare(draw)
    random.seed(7), numpy.random.seed(7), torch.manual_seed(7)
    first = prepared()
    assert draw() == undisturbed
    assert first == prepare(draw)() == expected(preparing.SEED)
    assert torch.get_num_threads() == threads


IMPORTS_INSIDE = """
import random, sys
from tuner.training import prepare, seed_everything

@prepare
def data():
    import numpy, torch
    return random.random(), float(numpy.random.random()), float(torch.rand(1)), torch.get_num_threads()

seed_everything(5)
seed_everything(7, threads=1)
assert not {"numpy", "torch"} & sys.modules.keys(), "nothing is imported only to be seeded"
first = data()
import numpy, torch
assert torch.get_num_threads() == 1
after = random.random(), float(numpy.random.random()), float(torch.rand(1))
assert data.__wrapped__ and prepare(data.__wrapped__)() == first and first[3] == 1
seed_everything(7)
assert after == (random.random(), float(numpy.random.random()), float(torch.rand(1)))
"""


def test_generators_that_user_code_has_seeded_are_left_unchanged() -> None:
    seed_attempt(3)
    numpy.random.seed(0)
    seed_untouched(9, before=3)
    assert random.random() == random.Random(9).random()
    assert numpy.random.random() == numpy.random.RandomState(0).random_sample()
    assert torch.initial_seed() == 9
    seed_attempt(3)
    torch.manual_seed(4)
    seed_untouched(9, before=3)
    assert torch.initial_seed() == 4
    assert numpy.random.random() == numpy.random.RandomState(9).random_sample()


def test_generators_that_user_code_has_seeded_with_the_same_number_are_left_unchanged() -> None:
    def draw() -> list[float]:
        return [random.gauss(0, 1), float(numpy.random.randn()), float(torch.randn(1))]

    seed_everything(0)
    expected = [draw() for _ in range(700)]  # more than a block of 624 numbers
    seed_attempt(0)
    assert [draw() for _ in range(700)] == expected
    for set_own_seed in (seed_everything, manual_seed, numpy.random.seed, random.seed):
        seed_attempt(0)
        set_own_seed(0)
        seed_untouched(9, before=0)
        kept = [drawn == first for drawn, first in zip(draw(), expected[0], strict=True)]
        libraries = (random.seed, numpy.random.seed, manual_seed)
        assert kept == [set_own_seed in (seed_everything, own) for own in libraries]


def test_seed_of_an_attempt_is_the_initial_seed_of_pytorch() -> None:
    for seed in (0, 3, 2**40):
        seed_attempt(seed)
        assert torch.initial_seed() == seed
        torch.rand(3)
        seed_untouched(9, before=seed)
        assert torch.initial_seed() == 9
    seed_attempt(0)
    torch.default_generator.manual_seed(5)
    seed_untouched(9, before=0)
    assert torch.initial_seed() == 5


def test_library_that_the_function_imports_is_seeded_and_left_as_if_imported_later() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS_INSIDE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
