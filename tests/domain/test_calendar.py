"""Test local days and calendar periods when clocks are put forward and back."""

from datetime import date, datetime, timedelta
from typing import get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import examples
from tuner.domain.calendar import Period, day_name, moment_of, offsets, period_of, zone
from tuner.domain.time import DAY_NS, NS, rfc3339

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia"]
zones = st.sampled_from(ZONES).map(zone)
moments = st.integers(1_300_000_000, 1_900_000_000).map(lambda s: s * NS)


@examples(60)
@given(zones, moments, st.integers(0, 900), st.integers(0, 10**18))
def test_local_day_is_that_of_the_zone(where: ZoneInfo, first: int, days: int, inside: int) -> None:
    last = first + days * DAY_NS
    at = first + inside % (last - first + 1)
    shift = [offset for since, offset in offsets(first, last, where) if since <= at][-1]
    name = day_name((at + shift) // DAY_NS)
    assert name == datetime.fromtimestamp(at // NS, where).date().isoformat()


@examples(100)
@given(zones, moments, st.sampled_from(get_args(Period)))
def test_periods_follow_one_another_without_gap_or_overlap(where: ZoneInfo, at: int, period: str) -> None:
    first, following = period_of(at, period, where)  # type: ignore[arg-type]
    assert following is not None
    assert first <= at < following
    assert period_of(following, period, where)[0] == following  # type: ignore[arg-type]
    assert period_of(following - NS, period, where) == (first, following)  # type: ignore[arg-type]
    begins = datetime.fromtimestamp(first // NS, where)
    assert begins.weekday() == 0 or period != "week"
    assert begins.day == 1 or period != "month"
    length = datetime.fromtimestamp(following // NS, where).replace(tzinfo=None) - begins.replace(tzinfo=None)
    assert length >= timedelta(days={"day": 0, "week": 6, "month": 28}[period])


def test_month_in_which_clocks_go_back_is_an_hour_longer() -> None:
    first, following = period_of(moment_of("2026-10-15", zone("UTC")), "month", zone("Europe/Berlin"))
    assert following is not None
    assert following - first == 31 * DAY_NS + 3600 * NS
    assert rfc3339(first) == "2026-09-30T22:00:00.000000Z"


def test_missing_period_spans_all_time() -> None:
    assert period_of(5, None, zone("UTC")) == (0, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("Europe/Berln", "Europe/Berlin"), ("berlin", "Europe/Berlin"), ("new york", "America/New_York")],
)
def test_unknown_time_zone_suggests_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(ValueError, match=near):
        zone(wrong)


@pytest.mark.parametrize(
    "wrong", ["", "tomorrow", "2026-02-30", "2026-01-01T00:00:00", "0001-01-01T00:00:00+23:00x"]
)
def test_invalid_moment_is_refused_with_an_example_of_the_format(wrong: str) -> None:
    with pytest.raises(ValueError, match="2026-01-31"):
        moment_of(wrong, zone("UTC"))


def test_date_is_read_as_its_first_moment_in_the_zone() -> None:
    assert rfc3339(moment_of("2026-07-01", zone("America/New_York"))) == "2026-07-01T04:00:00.000000Z"
    assert rfc3339(moment_of("2026-07-01T00:00:00+02:00", zone("UTC"))) == "2026-06-30T22:00:00.000000Z"


@given(zones, st.dates())
def test_every_date_can_be_read_in_every_zone(where: ZoneInfo, day: date) -> None:
    """This includes the first and last dates, for which a zone's offset leads out of the representable years."""
    for text in (day.isoformat(), f"{day}T00:00:00+14:00", f"{day}T23:59:59-12:00"):
        far_off_ns = moment_of(text, where) - (day.toordinal() - _EPOCH) * DAY_NS
        assert abs(far_off_ns) < 3 * DAY_NS


_EPOCH = date(1970, 1, 1).toordinal()
