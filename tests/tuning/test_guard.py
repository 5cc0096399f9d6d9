"""Test how long a lease may be."""

from hypothesis import example, given
from hypothesis import strategies as st

from tuner.domain.money import Cost, Money, Price, Rate
from tuner.tuning.guard import MIN_SLICE_NS, fits_deadline, lease_ns

NS = 10**9
RATES = st.builds(Rate, st.integers(1, 10**8).map(Price), st.sampled_from([0, 250, 1000]))
LEFT = st.builds(Cost, st.integers(-10, 10**6).map(Money), st.integers(-10, 10**7))
NEEDS, SLICES = st.integers(0, 100 * NS), st.integers(MIN_SLICE_NS, 100 * NS)
SECOND = Rate(Price(3600))  # one micro-dollar per second


def left(seconds: int) -> Cost:
    return Cost(Money(seconds))


@given(left=LEFT, rate=RATES, need_ns=NEEDS, active=st.integers(0, 20), slice_ns=SLICES)
@example(left=Cost(Money(1), -1), rate=Rate(Price(1)), need_ns=0, active=0, slice_ns=MIN_SLICE_NS)
def test_lease_is_long_enough_and_affordable_or_zero(
    left: Cost, rate: Rate, need_ns: int, active: int, slice_ns: int
) -> None:
    granted_ns, need_ns = (
        lease_ns(left, rate, need_ns=need_ns, active=active, slice_ns=slice_ns),
        max(need_ns, MIN_SLICE_NS),
    )
    if rate.affords_ns(left) < need_ns:
        assert granted_ns == 0
    else:
        assert need_ns <= granted_ns <= max(need_ns, slice_ns)
        assert rate.cost(granted_ns).fits(left)


def test_remaining_money_is_shared_among_active_trials() -> None:
    shares = [
        lease_ns(left(100), SECOND, need_ns=NS, active=active, slice_ns=60 * NS) for active in (1, 2, 5)
    ]
    assert shares == [50 * NS, 25 * NS, 10 * NS]
    assert lease_ns(left(2), SECOND, need_ns=2 * NS, active=5, slice_ns=60 * NS) == 2 * NS
    assert lease_ns(left(3), SECOND, need_ns=2 * NS, active=5, slice_ns=60 * NS) == 3 * NS, (
        "1 s buys nobody anything"
    )


@given(wanted=st.integers(0, 100), need=st.integers(0, 100), time=st.none() | st.integers(-5, 100))
def test_lease_does_not_exceed_the_remaining_time(wanted: int, need: int, time: int | None) -> None:
    granted_ns = fits_deadline(wanted, need_ns=need, left_ns=time)
    if time is None or wanted <= time:
        assert granted_ns == wanted
    else:
        assert granted_ns == (time if time >= need else 0)
