"""When a budget runs out, at the pace at which it was spent of late."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt

from tuner.domain.calendar import DAY_NS
from tuner.domain.time import NS

SLOT_NS = 300 * NS
WINDOW_NS = DAY_NS
SLOTS = WINDOW_NS // SLOT_NS
FARTHEST_NS = 3650 * DAY_NS
# The square of the normal distribution's 90th percentile, 1.2816: 80 % lie between both sides.
Z2 = (16424, 10000)


@dataclass(frozen=True, slots=True)
class Burn:
    """`per_hour` in the unit of what was spent. Nanoseconds from now until it runs out, with an 80 % interval; None: not at this
    pace."""

    per_hour: int
    in_ns: int | None
    earliest_ns: int | None
    latest_ns: int | None


def burn(slots: Mapping[int, int], left: int) -> Burn:
    """`slots` has what was spent in each five minutes of the last day, numbered from 0 for the oldest. The pace is their mean since
    the first in which anything was; the interval takes them for independent draws (the standard error of their mean)."""
    spent = {number: amount for number, amount in slots.items() if amount and 0 <= number < SLOTS}
    if not spent:
        return Burn(0, None, None, None)
    count, total = SLOTS - min(spent), sum(spent.values())
    squares = sum(amount * amount for amount in spent.values())
    margin = 0
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
