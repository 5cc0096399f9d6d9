"""Yearly cost of repeated training, and the comparison of the cloud with owned hardware.

For owned hardware, the purchase price less the resale value, and the upkeep, are paid whether it is used or not. Power
is paid for the hours of use, and includes the building's share by its power usage effectiveness (PUE; 1.56 on average in
the Uptime Institute's survey of 2024). In the cloud, only the hours of use are paid. Costs of capital, taxes and staff
are not included unless the upkeep contains them.
"""

from dataclasses import dataclass
from fractions import Fraction

from tuner.domain.money import Money, Price
from tuner.planning.estimates.described import Owned

MONTHS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class YearlyCost:
    """The yearly cost of a repeated run."""

    name: str
    usd_per_run: Money
    runs_per_year: Fraction  #: Including the runs that repeat failed ones.
    usd_per_month: Money
    usd_per_year: Money
    #: Compared to the first way to run in the list. None for the first itself.
    saving_usd_per_year: Money | None = None


def yearly(name: str, per_run: Money, *, runs_per_month: Fraction, failed_share: Fraction) -> YearlyCost:
    """Compute the yearly cost of a repeated run.

    A failed run is paid in full and repeated until it succeeds, so each run takes 1/(1 − `failed_share`) runs on average.
    """
    a_month = runs_per_month / (1 - failed_share)
    return YearlyCost(
        name=name,
        usd_per_run=per_run,
        runs_per_year=a_month * MONTHS,
        usd_per_month=_rounded_up(per_run.micro_usd * a_month),
        usd_per_year=_rounded_up(per_run.micro_usd * a_month * MONTHS),
    )


def _rounded_up(micro_usd: Fraction | int) -> Money:
    return Money(int(-(-micro_usd // 1)))


HOURS_A_YEAR = 8760


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipComparison:
    """The costs over the machine's lifetime.

    The break-even figures are None if an hour in the cloud costs no more than the power, because owning never pays off then. If
    `break_even_utilisation` is above 1, owning does not pay off within this lifetime.
    """

    hours_used: Fraction
    fixed_usd: Money
    power_usd_per_hour: Price
    owned_usd: Money
    owned_usd_per_hour: Price
    cloud_usd_per_hour: Price
    cloud_usd: Money
    cheaper: str
    saving_usd: Money
    break_even_hours: Fraction | None
    break_even_utilisation: Fraction | None
    cloud_instance_type: str | None = None  #: The machine of the catalogue. None if its price was given.
    cloud_region: str | None = None


def compare(owned: Owned, cloud: Price) -> OwnershipComparison:
    """Compare an owned machine with as many hours of a similar machine in the cloud at this price."""
    life_hours = owned.lifetime_years * HOURS_A_YEAR
    used = life_hours * owned.utilisation
    fixed = (owned.purchase - owned.resale).micro_usd + owned.upkeep_per_year.micro_usd * owned.lifetime_years
    power = owned.watts * owned.pue / 1000 * owned.usd_per_kwh * 10**6
    rent = cloud.micro_usd_per_hour
    own_total, rent_total = _rounded_up(fixed + power * used), _rounded_up(rent * used)
    gain = rent - power
    even = fixed / gain if gain > 0 else None
    return OwnershipComparison(
        hours_used=used,
        fixed_usd=_rounded_up(fixed),
        power_usd_per_hour=Price(_rounded_up(power).micro_usd),
        owned_usd=own_total,
        owned_usd_per_hour=Price(_rounded_up((fixed + power * used) / used).micro_usd),
        cloud_usd_per_hour=cloud,
        cloud_usd=rent_total,
        cheaper="owned" if own_total < rent_total else "cloud",
        saving_usd=Money(abs((own_total - rent_total).micro_usd)),
        break_even_hours=even,
        break_even_utilisation=None if even is None else even / life_hours,
    )
