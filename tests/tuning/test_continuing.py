"""What training on would bring: intervals that hold as often as they say, and the expected improvement."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.tuning.continuing import FEWEST, Outlook, outlooks

OUTLOOKS = st.builds(Outlook, st.floats(-10, 10), st.floats(1e-3, 10), st.integers(2, 50))


def searched(rng: Random, trials: int) -> tuple[dict[int, list[float]], dict[int, float]]:
    """Curves of three levels of which half go on at random each time, and where those end that did not."""
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
        for number, one in outlooks(3, curves, cut).items():
            low, high = one.between()
            held, asked = held + (low <= ends[number] <= high), asked + 1
    assert asked > 1500
    assert 0.75 <= held / asked <= 0.88


def test_what_nobody_went_on_from_is_not_foretold() -> None:
    curves = {number: [0.1 * number] for number in range(9)}
    assert outlooks(2, curves, list(curves)) == {}
    went_on = {number: [0.1 * number, 0.1 * number + 0.2] for number in range(10, 10 + FEWEST)}
    found = outlooks(2, {**curves, **went_on}, [0])
    assert found[0].mean == pytest.approx(0.2, abs=0.5)
    assert outlooks(3, {**curves, **went_on}, [0]) == {}


@given(outlook=OUTLOOKS, best=st.floats(-10, 10))
def test_an_expected_gain_is_no_less_than_that_of_the_mean_and_falls_with_the_best(
    outlook: Outlook, best: float
) -> None:
    gain = outlook.gain(best)
    low, high = outlook.gain_between(best)
    assert gain >= max(0.0, outlook.mean - best) - 1e-9
    assert outlook.gain(best + 1) <= gain + 1e-12
    assert 0 <= low <= high


@pytest.mark.parametrize("best", [-2.0, 0.0, 1.0, 4.0])
@pytest.mark.parametrize("degrees", [2, 3, 30])
def test_an_expected_gain_is_the_mean_of_what_is_above_the_best(best: float, degrees: int) -> None:
    from scipy.integrate import quad  # both take half a second
    from scipy.stats import t as student

    outlook = Outlook(0.5, 0.7, degrees)
    wanted, _ = quad(lambda x: (0.5 + 0.7 * x - best) * student.pdf(x, degrees), (best - 0.5) / 0.7, math.inf)
    assert outlook.gain(best) == pytest.approx(wanted, rel=1e-5)


def test_what_is_certain_gains_what_it_gains() -> None:
    assert Outlook(1.0, 0.0, 5).gain(0.25) == 0.75
    assert Outlook(1.0, 0.0, 5).gain(2.0) == 0
