"""Test search spaces: drawn values lie inside, and errors are named."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import spaces
from tuner.domain.space import Categorical, Float, Int, Parameter, Space


@given(spaces(), st.integers())
def test_sample_lies_in_its_space(space: Space, seed: int) -> None:
    assert space.faults() == []
    assert space.contains(space.sample(Random(seed)))


@given(spaces())
def test_grid_points_lie_in_the_space_and_do_not_repeat(space: Space) -> None:
    points = []
    for _, point in zip(range(200), space.grid(3), strict=False):
        assert space.contains(point)
        assert point not in points or any(isinstance(v, bool) for v in point.values())
        points.append(point)


WRONG: list[tuple[dict[str, Parameter], str]] = [
    ({}, "/search_space"),
    ({"x": Float(1, 1)}, "/search_space/x/low"),
    ({"x": Float(2, 1)}, "/search_space/x/low"),
    ({"x": Float(0, 1, log=True)}, "/search_space/x/low"),
    ({"x": Float(-1, 1, log=True)}, "/search_space/x/low"),
    ({"x": Float(0, float("inf"))}, "/search_space/x"),
    ({"x": Float(float("nan"), 1)}, "/search_space/x"),
    ({"x": Int(5, 5)}, "/search_space/x/low"),
    ({"x": Int(0, 5, log=True)}, "/search_space/x/low"),
    ({"x": Categorical(())}, "/search_space/x/choices"),
    ({"x": Categorical(("a", "a"))}, "/search_space/x/choices"),
    ({"x": Float(0, 1, when={"y": ("a",)})}, "/search_space/x/when/y"),
    ({"x": Float(0, 1, when={"x": (0.5,)})}, "/search_space/x/when"),
    ({"a/b": Float(1, 0)}, "/search_space/a~1b/low"),
    ({"o": Categorical(("s", "t")), "x": Float(0, 1, when={"o": ("u",)})}, "/search_space/x/when/o"),
    ({"o": Categorical(("s", "t")), "x": Float(0, 1, when={"o": ()})}, "/search_space/x/when/o"),
]


@pytest.mark.parametrize(("parameters", "pointer"), WRONG)
def test_invalid_space_is_reported_with_its_field(parameters: dict[str, Parameter], pointer: str) -> None:
    assert pointer in [fault.pointer for fault in Space(parameters).faults()]


def test_choice_true_differs_from_choice_1() -> None:
    assert not Categorical((1, 0)).contains(True)
    assert Categorical((True, 1)).faults("/x") == []


def test_grid_as_large_as_the_integer_range_contains_every_integer() -> None:
    assert Int(8, 64, log=True).grid(57) == list(range(8, 65))
