"""The rules of the ledger as functions on values: hold, then post a part and release the rest.

The same rules stand in SQL (`tuner.store.ledger`), where a CHECK on the row has the last word; here they serve the
simulator and the tests that compare both.
"""

from dataclasses import dataclass, replace
from typing import Literal

from tuner.domain.cost import CostKind
from tuner.domain.errors import BudgetRefused
from tuner.domain.money import FREE, Cost

EntryType = Literal["hold", "post", "release", "correct"]


@dataclass(frozen=True, slots=True)
class Account:
    """A job's budget. Invariant: posted + held <= limit, each at least 0."""

    limit: Cost
    posted: Cost = FREE
    held: Cost = FREE

    @property
    def left(self) -> Cost:
        return self.limit - self.posted - self.held

    def hold(self, wanted: Cost) -> "Account":
        """Raises BudgetRefused where it does not fit."""
        if not wanted.fits(self.left):
            raise BudgetRefused(f"{wanted.usd} more does not fit: {self.left.usd} is left")
        return replace(self, held=self.held + wanted)

    def settle(self, *, held: Cost, used: Cost) -> "Account":
        """Posts `used` out of a hold of `held` and releases the rest. Raises ValueError where more was used than held."""
        if not used.fits(held):
            raise ValueError(f"{used} was used, but only {held} was held")
        return replace(self, posted=self.posted + used, held=self.held - held)

    def with_limit(self, limit: Cost) -> "Account":
        if not (self.posted + self.held).fits(limit):
            raise BudgetRefused(f"{(self.posted + self.held).usd} is already spent or held")
        return replace(self, limit=limit)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What may be held now, of a job's own budget and of those above it; the names of those above that leave less of dollars
    and of GPU time than its own."""

    left: Cost
    above_usd: str = ""
    above_gpus: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger. `id` is derived from job, trial, attempt and slice, so that a repeat changes nothing."""

    id: str
    entry: EntryType
    kind: CostKind | None
    trial: str
    attempt: int
    slice: int
    cost: Cost
    at: int
