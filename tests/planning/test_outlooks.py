"""Test forecasts of trials that were stopped early: their intervals must hold as often as they claim."""

from random import Random

import pytest

from tuner.planning.outlooks import FEWEST, outlooks


def searched(rng: Random, trials: int) -> tuple[dict[int, list[float]], dict[int, float]]:
    """Return curves that are cut off after one, two or three rungs, and the value that each trial would reach."""
    curves, ends = {}, {}
    for number in range(trials):
        first = rng.gauss(0, 1)
        second = first + 0.5 + rng.gauss(0, 0.2)
        last = second + 0.3 + rng.gauss(0, 0.1)
        came = 1 + (number % 2) + (number % 4 == 3)
        curves[number], ends[number] = [first, second, last][:came], last
    return curves, ends


def test_four_of_five_trials_end_within_their_interval() -> None:
    rng, held, asked = Random(3), 0, 0
    for _ in range(60):
        curves, ends = searched(rng, 40)
        cut = [number for number in curves if len(curves[number]) < 3]
        for number, outlook in outlooks(3, curves, cut).items():
            low, high = outlook.between()
            held, asked = held + (low <= ends[number] <= high), asked + 1
    assert asked > 1500
    assert 0.75 <= held / asked <= 0.88


def test_no_forecast_for_rungs_without_enough_continued_trials() -> None:
    curves = {number: [0.1 * number] for number in range(9)}
    assert outlooks(2, curves, list(curves)) == {}
    went_on = {number: [0.1 * number, 0.1 * number + 0.2] for number in range(10, 10 + FEWEST)}
    forecasts = outlooks(2, {**curves, **went_on}, [0])
    assert forecasts[0].mean == pytest.approx(0.2, abs=0.5)
    assert outlooks(3, {**curves, **went_on}, [0]) == {}


RISING = {number: [-1 - number / 10, -0.5 - number / 10] for number in range(10)}


@pytest.mark.parametrize(
    "diverged", [[-1.5, -1e6], [-1e6, -1e6], [-1e6, -1.5], [-1.5, -1e200], [-1.7e308, -1.7e308]]
)
def test_forecast_does_not_depend_on_a_trial_that_diverged(diverged: list[float]) -> None:
    curves = {**RISING, 10: [-0.9], 11: diverged}
    outlook = outlooks(2, curves, [10])[10]
    assert outlook.mean == pytest.approx(-0.4)
    low, high = outlook.between()
    assert -0.5 < low <= high < -0.3


@pytest.mark.parametrize("size", [1e160, 1e300, 1.7e308])
def test_no_forecast_for_scores_whose_squares_are_too_large(size: float) -> None:
    curves = {number: [-size * (10 - number) / 10, -size * number / 10] for number in range(10)}
    assert outlooks(2, {**curves, 10: [-1.0]}, [10]) == {}
    assert outlooks(2, {**RISING, 10: [-size]}, [10]) == {}


def test_equal_scores_are_forecast() -> None:
    curves = {number: [0.5, 0.75] for number in range(4)}
    assert outlooks(2, {**curves, 9: [0.5]}, [9])[9].mean == pytest.approx(0.75)
