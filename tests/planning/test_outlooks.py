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
