"""Test how sure a confirmation is."""

import pytest

from tuner.tuning.confirm import confidence, mean


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([[1.0, 1.0], [0.5, 0.5]], 1.0),  # no variation
        ([[0.5, 0.5], [0.5, 0.5]], 0.5),
        ([[1.0, 0.6], [0.6, 0.2]], 0.8536),  # t = 1.4142 with 2 degrees of freedom
        ([[1.7e308, -1.7e308], [0.0, 0.0]], 0.5),  # too large to say how much the scores vary
    ],
)
def test_confidence_follows_students_t_test(results: list[list[float]], expected: float) -> None:
    assert confidence(results, 0, 1) == pytest.approx(expected, abs=1e-4)


def test_mean_of_huge_scores_is_finite() -> None:
    assert mean([1.7e308, 1.7e308]) == 1.7e308
