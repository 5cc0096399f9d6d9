"""Forecast of when a budget runs out, from the rate of recent spending."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt

from tuner.domain.time import DAY_NS, HOUR_NS, NS

SLOT_NS = 300 * NS
WINDOW_NS = DAY_NS
SLOTS = WINDOW_NS // SLOT_NS
FARTHEST_NS = 3650 * DAY_NS
# The square of 1.2816 as a fraction. 80 % of a normal distribution lie within 1.2816 standard deviations of its mean.
Z2 = (16424, 10000)


@dataclass(frozen=True, slots=True)
class Burn:
    """The rate at which a budget is spent, and the time in nanoseconds until it runs out.

    A time is None if it is longer than ten years, or if nothing was spent.
    """

    per_hour: int  #: In the unit of the budget.
    in_ns: int | None  #: The expected time. `earliest_ns` and `latest_ns` bound an 80 % interval.
    earliest_ns: int | None
    latest_ns: int | None


def burn(slots: Mapping[int, int], left: int) -> Burn:
    """Compute when the rest of a budget will be spent.

    The last day is divided into slots of five minutes. The rate is the mean over the slots since the first one with any spending. The
    earliest and the latest time follow from the standard error of that mean, as if the slots were independent.

    Args:
        slots: The amount spent in each slot, in the unit of the budget, by slot number. Slot 0 is the oldest. Slots without spending may
            be missing.
        left: The amount of the budget that is left.
    """
    spent = {number: amount for number, amount in slots.items() if amount and 0 <= number < SLOTS}
    if not spent:
        return Burn(0, None, None, None)
    count, total = SLOTS - min(spent), sum(spent.values())
    squares = sum(amount * amount for amount in spent.values())
    margin = 0  # half the width of the 80 % interval of `total`: 1.2816 standard errors, in whole units
    if count > 1:
        margin = isqrt(max(0, count * squares - total * total) * Z2[0] // (Z2[1] * (count - 1)))
    return Burn(
        total * (HOUR_NS // SLOT_NS) // count,
        _lasts_ns(left, total, count),
        _lasts_ns(left, total + margin, count),
        _lasts_ns(left, total - margin, count),
    )


def _lasts_ns(left: int, total: int, count: int) -> int | None:
    if total <= 0:
        return None
    lasts = max(0, left) * count * SLOT_NS // total
    return lasts if lasts <= FARTHEST_NS else None
