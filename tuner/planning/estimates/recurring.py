"""What a training that comes back every month costs in a year."""

from dataclasses import dataclass
from fractions import Fraction

from tuner.domain.money import Money

MONTHS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Yearly:
    """`runs_per_year` counts those that are repeated because they failed. `saving` against the first of a list; None: it is it."""

    name: str
    usd_per_run: Money
    runs_per_year: Fraction
    usd_per_month: Money
    usd_per_year: Money
    saving_usd_per_year: Money | None = None


def yearly(name: str, per_run: Money, *, runs_per_month: Fraction, failed_share: Fraction) -> Yearly:
    """A share of failed runs, each paid for whole, and run again until it succeeds: 1/(1 − share) runs for one."""
    a_month = runs_per_month / (1 - failed_share)
    return Yearly(
        name=name,
        usd_per_run=per_run,
        runs_per_year=a_month * MONTHS,
        usd_per_month=_up(per_run.micro_usd * a_month),
        usd_per_year=_up(per_run.micro_usd * a_month * MONTHS),
    )


def _up(micro_usd: Fraction) -> Money:
    return Money(int(-(-micro_usd // 1)))
