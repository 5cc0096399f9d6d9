"""The text plot of a report's curve."""

from hypothesis import given
from hypothesis import strategies as st

from tuner.cli.render import HEIGHT, LABEL, WIDTH, columns, curve
from tuner.schemas.answers import SpentPoint

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def rising(draw: st.DrawFn) -> list[SpentPoint]:
    """Generate a curve of a metric that is maximised or minimised."""
    count = draw(st.integers(1, 10))
    spends = sorted(draw(st.lists(st.integers(0, 10**6), min_size=count, max_size=count)))
    values = sorted(draw(st.lists(FINITE, min_size=count, max_size=count, unique=True)))
    if draw(st.booleans()):
        values.reverse()
    return [
        SpentPoint(spent_usd=spent / 1e6, value=value, trial="trial_00000", step=1)
        for spent, value in zip(spends, values, strict=True)
    ]


@given(rising(), st.integers(0, 10**6))
def test_each_column_holds_the_best_value_at_its_spend(points: list[SpentPoint], more: int) -> None:
    held = columns(points, points[-1].spent_usd + more / 1e6)
    assert len(held) == WIDTH
    assert held[-1] == points[-1].value
    order = [next((i for i, point in enumerate(points) if point.value == value), -1) for value in held]
    assert order == sorted(order)


@given(rising(), st.integers(0, 10**6))
def test_ascii_chart_has_a_fixed_size_and_ends_at_the_top(points: list[SpentPoint], more: int) -> None:
    lines = curve(points, points[-1].spent_usd + more / 1e6)
    assert len(lines) == HEIGHT + 2
    assert all(len(line) <= LABEL + 2 + WIDTH for line in lines)
    assert len(lines[0]) == LABEL + 2 + WIDTH
    assert lines[0].endswith("•")


def test_better_values_are_higher_and_axes_name_first_and_best_value() -> None:
    points = [
        SpentPoint(spent_usd=spent, value=value, trial="t", step=1) for spent, value in ((0, 9), (1, 3))
    ]
    lines = curve(points, 2)
    assert lines[0].startswith("           3 │")
    assert lines[HEIGHT - 1].startswith("           9 │•")
    assert lines[-1].endswith("$2.00")
