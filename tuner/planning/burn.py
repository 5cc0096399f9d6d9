"""Forecast of when a budget runs out, from the rate of recent spending."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt

from tuner.domain.calendar import DAY_NS
from tuner.domain.time import NS

SLOT_NS = 300 * NS
WINDOW_NS = DAY_NS
SLOTS = WINDOW_NS // SLOT_NS
FARTHEST_NS = 3650 * DAY_NS
# The square of the normal distribution's 90th percentile, 1.2816, as a fraction. 80 % of values lie within that many deviations.
Z2 = (16424, 10000)


@dataclass(frozen=True, slots=True)
class Burn:
    """The rate of spending, and the nanoseconds until the budget runs out. They are None if it does not at this rate."""

    per_hour: int  #: In the unit of the budget.
    in_ns: int | None  #: The expected time. The next two bound an 80 % interval.
    earliest_ns: int | None
    latest_ns: int | None


def burn(slots: Mapping[int, int], left: int) -> Burn:
    """Compute when the rest of a budget is spent.

    The rate is the mean of the slots, from the first one with any spending. The interval is based on the standard error of that mean, as if
    the slots were independent.

    Args:
        slots: The amounts spent in each five minutes of the last day. Slot 0 is the oldest.
        left: The amount that is left.
    """
    spent = {number: amount for number, amount in slots.items() if amount and 0 <= number < SLOTS}
    if not spent:
        return Burn(0, None, None, None)
    count, total = SLOTS - min(spent), sum(spent.values())
    squares = sum(amount * amount for amount in spent.values())
    margin = 0  # z times the standard error of the total, in integers
    if count > 1:
        margin = isqrt(max(0, count * squares - total * total) * Z2[0] // (Z2[1] * (count - 1)))
    return Burn(
        total * (3600 * NS // SLOT_NS) // count,
        _lasts_ns(left, total, count),
        _lasts_ns(left, total + margin, count),
        _lasts_ns(left, total - margin, count),
    )


def _lasts_ns(left: int, total: int, count: int) -> int | None:
    if total <= 0:
        return None
    lasts = max(0, left) * count * SLOT_NS // total
    return lasts if lasts <= FARTHEST_NS else None
