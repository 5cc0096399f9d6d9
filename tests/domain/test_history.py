"""Test what one job may learn from another: configurations in its own space, and the most informative trials."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import examples, spaces
from tuner.domain.history import most_informative, transferred
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
def test_a_configuration_of_the_space_is_handed_on_as_it_is(space: Space, seed: int) -> None:
    config = space.sample(Random(seed))
    assert transferred(space, config) == config


@given(spaces(), spaces(), st.integers())
def test_what_is_handed_on_is_of_the_new_space_and_says_nothing_new(
    old: Space, new: Space, seed: int
) -> None:
    config = old.sample(Random(seed))
    found = transferred(new, config)
    if found is not None:
        assert new.contains(found)
        assert found.items() <= config.items()


@given(spaces(), st.integers(), st.data())
def test_a_configuration_that_lacks_an_active_parameter_is_left_out(
    space: Space, seed: int, data: st.DataObject
) -> None:
    config = space.sample(Random(seed))
    del config[data.draw(st.sampled_from(sorted(config)))]
    assert transferred(space, config) is None


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
def test_a_configuration_of_another_space(config: Config, expected: Config | None) -> None:
    assert transferred(SPACE, config) == expected


ENDS = st.lists(st.tuples(st.integers(-5, 5).map(float), st.integers(1, 27)), max_size=40)


@given(ENDS, st.integers(0, 30))
def test_so_many_trials_are_told_of_as_there_may_be_each_once_and_in_order(
    ends: list[tuple[float, int]], limit: int
) -> None:
    found = most_informative(ends, limit)
    assert found == sorted(set(found))
    assert len(found) == min(limit, len(ends))


@given(ENDS, st.integers(2, 30))
def test_nobody_left_out_is_better_than_the_best_half_nor_more_trained_than_the_rest(
    ends: list[tuple[float, int]], limit: int
) -> None:
    found = most_informative(ends, limit)
    left = [ends[i] for i in range(len(ends)) if i not in found]
    by_score = sorted(found, key=lambda i: -ends[i][0])
    best, rest = by_score[: limit - limit // 2], by_score[limit - limit // 2 :]
    assert all(score <= ends[i][0] for score, _ in left for i in best)
    assert all(steps <= max(ends[i][1] for i in found) for _, steps in left)
    assert not left or len(rest) == limit // 2


def test_half_are_the_best_and_half_the_most_trained_of_the_others() -> None:
    ends = [(0.1, 27), (0.9, 1), (0.8, 1), (0.2, 9), (0.7, 1), (0.3, 1)]
    assert most_informative(ends, 4) == [0, 1, 2, 3]
    assert most_informative(ends, 3) == [0, 1, 2]
