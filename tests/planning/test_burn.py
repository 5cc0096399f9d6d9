"""Test when money runs out at the recent pace."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tuner.planning.burn import SLOT_NS, SLOTS, burn

spends = st.dictionaries(st.integers(0, SLOTS - 1), st.integers(0, 10**9), max_size=20)
amounts = st.integers(0, 10**12)


@given(spends, amounts)
def test_remaining_budget_lasts_as_long_as_the_mean_pace_allows(slots: dict[int, int], left: int) -> None:
    burn_rate = burn(slots, left)
    total = sum(slots.values())
    if total == 0:
        assert (burn_rate.per_hour, burn_rate.in_ns, burn_rate.earliest_ns, burn_rate.latest_ns) == (
            0,
            None,
            None,
            None,
        )
        return
    first = min(number for number, amount in slots.items() if amount)
    pace = Fraction(total, (SLOTS - first) * SLOT_NS)
    assert burn_rate.per_hour == int(pace * 3600 * 10**9)
    if burn_rate.in_ns is not None:
        assert left - pace < pace * burn_rate.in_ns <= left
        assert burn_rate.earliest_ns is not None
        assert burn_rate.earliest_ns <= burn_rate.in_ns
    if burn_rate.latest_ns is not None:
        assert burn_rate.in_ns is not None
        assert burn_rate.in_ns <= burn_rate.latest_ns


def test_even_pace_gives_an_exact_time_and_uneven_pace_a_range() -> None:
    even = burn(dict.fromkeys(range(SLOTS - 12, SLOTS), 100), 1200)
    assert even.in_ns == even.earliest_ns == even.latest_ns == 12 * SLOT_NS
    uneven = burn({SLOTS - 12: 600, SLOTS - 1: 600}, 1200)
    assert uneven.in_ns == 12 * SLOT_NS
    assert uneven.earliest_ns is not None
    assert uneven.earliest_ns < uneven.in_ns
    once = burn({SLOTS - 288: 600}, 1200)
    assert once.latest_ns is None


def test_exhausted_budget_has_zero_time_left_and_a_distant_end_is_none() -> None:
    assert burn({SLOTS - 1: 1}, 0).in_ns == 0
    assert burn({0: 1}, 10**15).in_ns is None
