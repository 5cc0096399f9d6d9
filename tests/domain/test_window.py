"""Test when windows are open, against a walk through the minutes on the clocks of each zone."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tuner.domain.calendar import Window
from tuner.domain.time import NS, Instant

MINUTE = 60 * NS
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",  # clocks change by half an hour
    "Asia/Kathmandu",  # an offset with a quarter of an hour
    "Pacific/Apia",  # skipped 2011-12-30
    "Africa/Casablanca",  # set back during one month
    "America/Santiago",  # changes at midnight
)
times = st.tuples(st.integers(0, 23), st.integers(0, 59)).map(lambda t: f"{t[0]:02}:{t[1]:02}")
windows = st.builds(Window, times, times, st.sampled_from(ZONES)).filter(lambda w: w.start != w.end)
FORWARD = datetime(2026, 3, 29, tzinfo=UTC)
BACK = datetime(2026, 10, 25, tzinfo=UTC)
CHANGES = (FORWARD, BACK, datetime(2011, 12, 29, 10, tzinfo=UTC), datetime(2026, 3, 8, tzinfo=UTC))
moments = st.one_of(
    st.builds(
        lambda change, minutes: change + timedelta(minutes=minutes),
        st.sampled_from(CHANGES),
        st.integers(-1500, 1500),
    ),
    st.datetimes(datetime(2000, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC)),
)


def instant(moment: datetime) -> Instant:
    return Instant(int(moment.timestamp()) * NS)


def shows(window: Window, at: int) -> bool:
    """Return whether the window is open according to the local time as text."""
    clock = datetime.fromtimestamp(at // NS, UTC).astimezone(ZoneInfo(window.timezone)).strftime("%H:%M")
    if window.start < window.end:
        return window.start <= clock < window.end
    return clock >= window.start or clock < window.end


def walked(window: Window, at: Instant, *, open: bool) -> Instant:
    """Walk from `at`, minute by minute, to the first minute in which the window is open, or closed."""
    if shows(window, at) is open:
        return at
    minute = Instant(at - at % MINUTE)
    while shows(window, minute) is not open:
        minute = Instant(minute + MINUTE)
    return minute


@given(windows, moments, st.integers(0, 60 * NS - 1))
@example(Window("02:15", "02:45", "Europe/Berlin"), FORWARD, 0)
@example(Window("02:30", "03:30", "Europe/Berlin"), BACK, 1)
@example(Window("22:00", "06:00", "Europe/Berlin"), BACK, 2)
@example(Window("12:00", "11:59", "Pacific/Apia"), CHANGES[2], 3)
def test_openings_and_closings_match_the_local_clock(window: Window, moment: datetime, ns: int) -> None:
    at = Instant(instant(moment) + ns)
    assert window.is_open(at) is shows(window, at)
    assert window.opening(at) == walked(window, at, open=True)
    assert window.closing(at) == walked(window, at, open=False)
    assert window.left_ns(at) == (window.closing(at) - at if shows(window, at) else 0)


@pytest.mark.parametrize(
    ("start", "end", "forward", "plain", "back"),
    [
        ("22:00", "06:00", 7, 8, 9),
        ("02:00", "03:00", 0, 1, 2),
        ("01:30", "02:30", 0.5, 1, 1.5),
        ("02:30", "03:30", 0.5, 1, 1.5),
    ],
)
def test_night_in_which_clocks_change_is_an_hour_shorter_or_longer(
    start: str, end: str, forward: float, plain: float, back: float
) -> None:
    window = Window(start, end, "Europe/Berlin")
    evenings = [day - timedelta(hours=4) for day in (FORWARD, datetime(2026, 6, 10, tzinfo=UTC), BACK)]
    open_hours = [
        sum(window.is_open(Instant(instant(evening) + n * MINUTE)) for n in range(12 * 60)) / 60
        for evening in evenings
    ]
    assert open_hours == [forward, plain, back]
    ends = [Instant(instant(evening) + 12 * 60 * MINUTE) for evening in evenings]
    spans = [window.open_ns(instant(evening), end) for evening, end in zip(evenings, ends, strict=True)]
    assert spans == [hours * 60 * MINUTE for hours in open_hours]


@pytest.mark.parametrize(
    ("window", "pointer", "words"),
    [
        (Window("22", "06:00"), "/window/start", "HH:MM"),
        (Window("22:00", "24:00"), "/window/end", "23:59"),
        (Window("22:00", "６:００"), "/window/end", "HH:MM"),
        (Window("22:00", "22:00"), "/window/end", "never opens"),
        (Window("22:00", "06:00", "Europe/Berln"), "/window/timezone", "Europe/Berlin"),
        (Window("22:00", "06:00", "berlin"), "/window/timezone", "Europe/Berlin"),
        (Window("22:00", "06:00", "new york"), "/window/timezone", "America/New_York"),
        (Window("22:00", "06:00", "europe/berlin"), "/window/timezone", "Europe/Berlin"),
        (Window("22:00", "06:00", "Europe"), "/window/timezone", "is unknown"),
        (Window("22:00", "06:00", "../../etc/passwd"), "/window/timezone", "is unknown"),
        (Window("22:00", "06:00", ""), "/window/timezone", "UTC"),
        (Window("22:00", "06:00", "a\0b"), "/window/timezone", "is unknown"),
    ],
)
def test_invalid_window_is_reported_with_its_field_and_a_hint(
    window: Window, pointer: str, words: str
) -> None:
    (fault,) = window.faults()
    assert fault.pointer == pointer
    assert words in fault.detail


@given(windows)
def test_every_generated_window_is_valid(window: Window) -> None:
    assert window.faults() == []
