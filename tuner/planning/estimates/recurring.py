"""The yearly cost of a training run that is repeated every month."""

from dataclasses import dataclass
from fractions import Fraction

from tuner.domain.money import Money

MONTHS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Yearly:
    """The yearly cost of a repeated run."""

    name: str
    usd_per_run: Money
    runs_per_year: Fraction  #: Including the runs that repeat failed ones.
    usd_per_month: Money
    usd_per_year: Money
    saving_usd_per_year: Money | None = (
        None  #: Compared to the first way to run in the list. None for the first itself.
    )


def yearly(name: str, per_run: Money, *, runs_per_month: Fraction, failed_share: Fraction) -> Yearly:
    """Compute the yearly cost of a repeated run.

    A failed run is paid in full and repeated until it succeeds, so each run takes 1/(1 − `failed_share`) runs on average.
    """
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
