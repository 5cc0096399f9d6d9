"""Test instants as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.domain.time import Instant, parse_rfc3339, rfc3339

MICROSECOND = 1000
YEAR_NS = 366 * 86_400 * 10**9


@given(st.integers(-100 * YEAR_NS // MICROSECOND, 200 * YEAR_NS // MICROSECOND))
def test_instant_before_or_after_1970_round_trips_as_text(microseconds: int) -> None:
    at = Instant(microseconds * MICROSECOND)
    assert parse_rfc3339(rfc3339(at)) == at


def test_fraction_of_a_second_before_1970_is_negative() -> None:
    assert parse_rfc3339("1969-12-31T23:59:59.500000Z") == -500_000_000


@pytest.mark.parametrize(
    "text", ["2026-01-31T12:00:00", "2026-01-31", "2026-13-01T00:00:00Z", "tomorrow", ""]
)
def test_text_that_is_not_a_time_with_an_offset_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^give a time with its offset, such as .*, or a duration"):
        parse_rfc3339(text)
