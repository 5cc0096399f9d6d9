"""Cloud against hardware of one's own: what an hour of use costs on either, and from how much use owning pays.

Owned: purchase less resale, and upkeep, are paid whether it works or not; power is paid for what it works, the building's share
by its power usage effectiveness (PUE; 1.56 on average in the Uptime Institute's survey of 2024). Rented: nothing but the hours used.
Cost of capital, tax and people are left out unless they are in the upkeep.
"""

from dataclasses import dataclass
from fractions import Fraction

from tuner.domain.money import Money, Price

HOURS_A_YEAR = 8760
PUE = Fraction(156, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """One machine. `watts` under load. `utilisation` is the share of all hours in which it works."""

    purchase: Money
    resale: Money
    lifetime_years: Fraction
    upkeep_per_year: Money
    watts: Fraction
    pue: Fraction
    usd_per_kwh: Fraction
    utilisation: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Over the machine's lifetime. Break-even figures are None where an hour in the cloud costs no more than the power: owning
    never pays. `break_even_utilisation` above 1: not within this lifetime."""

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


def compare(owned: Owned, cloud: Price) -> Comparison:
    """Against as many hours of a like machine at this price."""
    life_hours = owned.lifetime_years * HOURS_A_YEAR
    used = life_hours * owned.utilisation
    fixed = (owned.purchase - owned.resale).micro_usd + owned.upkeep_per_year.micro_usd * owned.lifetime_years
    power = owned.watts * owned.pue / 1000 * owned.usd_per_kwh * 10**6
    rent = cloud.micro_usd_per_hour
    own_total, rent_total = _up(fixed + power * used), _up(rent * used)
    gain = rent - power
    even = fixed / gain if gain > 0 else None
    return Comparison(
        hours_used=used,
        fixed_usd=_up(fixed),
        power_usd_per_hour=Price(_up(power).micro_usd),
        owned_usd=own_total,
        owned_usd_per_hour=Price(_up((fixed + power * used) / used).micro_usd),
        cloud_usd_per_hour=cloud,
        cloud_usd=rent_total,
        cheaper="owned" if own_total < rent_total else "cloud",
        saving_usd=Money(abs((own_total - rent_total).micro_usd)),
        break_even_hours=even,
        break_even_utilisation=None if even is None else even / life_hours,
    )


def _up(micro_usd: Fraction | int) -> Money:
    return Money(int(-(-micro_usd // 1)))
