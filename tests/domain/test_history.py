"""Test what one job may learn from another: configurations in its own space, and the most informative trials."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import examples, spaces
from tuner.domain.records import most_informative, transferred
from tuner.domain.space import Categorical, Config, Float, Int, Space

SPACE = Space(
    {
        "momentum": Float(0, 0.99, when={"optimizer": ("sgd",)}),
        "lr": Float(0.001, 1, log=True),
        "optimizer": Categorical(("sgd", "adamw")),
        "width": Int(8, 64),
    }
)
SGD: Config = {"lr": 0.1, "optimizer": "sgd", "width": 8, "momentum": 0.5}
ADAMW: Config = {"lr": 0.1, "optimizer": "adamw", "width": 8}


@examples(100, gate=40)
@given(spaces(), st.integers())
def test_configuration_of_the_same_space_transfers_unchanged(space: Space, seed: int) -> None:
    config = space.sample(Random(seed))
    assert transferred(space, config) == config


@given(spaces(), spaces(), st.integers())
def test_transferred_configuration_is_a_subset_inside_the_new_space(
    old: Space, new: Space, seed: int
) -> None:
    config = old.sample(Random(seed))
    subset = transferred(new, config)
    if subset is not None:
        assert new.contains(subset)
        assert subset.items() <= config.items()


@given(spaces(), st.integers(), st.data())
def test_configuration_without_an_active_parameter_is_not_transferred(
    space: Space, seed: int, data: st.DataObject
) -> None:
    config = space.sample(Random(seed))
    del config[data.draw(st.sampled_from(sorted(config)))]
    assert transferred(space, config) is None


def test_only_values_of_a_step_are_transferred() -> None:
    space = Space({"dropout": Float(0, 0.5, step=0.05)})
    assert transferred(space, {"dropout": 0.15, "width": 8}) == {"dropout": 0.15}
    assert transferred(space, {"dropout": 0.16}) is None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({**SGD, "depth": 3}, SGD),
        ({**ADAMW, "momentum": 0.5}, ADAMW),
        ({**ADAMW, "optimizer": "sgd"}, None),
        ({**ADAMW, "optimizer": "lion"}, None),
        ({**ADAMW, "lr": 2.0}, None),
        ({**ADAMW, "width": 8.5}, None),
        ({}, None),
    ],
    ids=[
        "one that the space lacks",
        "one that is inactive",
        "one missing",
        "another choice",
        "out of bounds",
        "a fraction",
        "nothing",
    ],
)
def test_configuration_of_another_space_is_reduced_or_not_transferred(
    config: Config, expected: Config | None
) -> None:
    assert transferred(SPACE, config) == expected


ENDS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.integers(-5, 5).map(float), st.integers(1, 27)),
    max_size=40,
)


@given(ENDS, st.integers(0, 30))
def test_most_informative_trials_are_unique_ordered_and_fill_the_limit(
    last_points: list[tuple[float, float, int]], limit: int
) -> None:
    indices = most_informative(last_points, limit)
    assert indices == sorted(set(indices))
    assert len(indices) == min(limit, len(last_points))


@given(ENDS, st.integers(2, 30))
def test_omitted_trials_are_neither_better_nor_trained_longer(
    last_points: list[tuple[float, float, int]], limit: int
) -> None:
    indices = most_informative(last_points, limit)
    left = [last_points[i] for i in range(len(last_points)) if i not in indices]
    ranked = sorted(indices, key=lambda i: (last_points[i][0], -last_points[i][1]))
    best, rest = ranked[: limit - limit // 2], ranked[limit - limit // 2 :]
    assert all(
        (violation, -score) >= (last_points[i][0], -last_points[i][1])
        for violation, score, _ in left
        for i in best
    )
    assert all(steps <= max(last_points[i][2] for i in indices) for *_, steps in left)
    assert not left or len(rest) == limit // 2


def test_half_are_the_best_trials_and_half_the_longest_trained_others() -> None:
    ends = [
        (0.0, score, step) for score, step in [(0.1, 27), (0.9, 1), (0.8, 1), (0.2, 9), (0.7, 1), (0.3, 1)]
    ]
    assert most_informative(ends, 4) == [0, 1, 2, 3]
    assert most_informative(ends, 3) == [0, 1, 2]


def test_feasible_trials_are_the_best_ones() -> None:
    ends = [(0.5, 0.9, 1), (0.0, 0.1, 1), (0.2, 0.8, 1), (0.0, 0.2, 1), (0.7, 0.5, 9)]
    assert most_informative(ends, 3) == [1, 3, 4]
