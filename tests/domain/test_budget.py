"""Test what a job may use, and which budgets are invalid."""

from fractions import Fraction

import pytest

from tuner.domain.budget import Budget, spent_share
from tuner.domain.money import Cost, Money

MUCH = 10**15


@pytest.mark.parametrize(
    ("budget", "pointer"),
    [
        (Budget(), "/budget"),
        (Budget(usd=Money(0)), "/budget/usd"),
        (Budget(gpu_ms=0), "/budget/gpu_hours"),
        (Budget(usd=Money(1), wall_clock_ns=0), "/budget/wall_clock"),
        (Budget(usd=Money(1), trials=0), "/budget/trials"),
        (Budget(usd=Money(1), trials=1_000_001), "/budget/trials"),
    ],
)
def test_invalid_budget_is_reported_with_its_field(budget: Budget, pointer: str) -> None:
    assert [fault.pointer for fault in budget.faults()] == [pointer]


def test_each_given_limit_applies_and_a_missing_limit_does_not() -> None:
    assert Budget(usd=Money(5), gpu_ms=6).limit == Cost(Money(5), 6)
    assert not Cost(Money(6)).fits(Budget(usd=Money(5)).limit)
    assert Cost(Money(5), MUCH).fits(Budget(usd=Money(5)).limit)
    assert Cost(Money(MUCH), 6).fits(Budget(gpu_ms=6).limit)
    assert Budget(usd=Money(1), gpu_ms=1, wall_clock_ns=1, trials=1_000_000).faults() == []


def test_spent_share_is_the_largest_of_the_given_limits() -> None:
    spent = Cost(Money(4), 50)
    assert spent_share(Money(10), 100, spent) == Fraction(1, 2)
    assert spent_share(Money(10), None, spent) == Fraction(2, 5)
    assert spent_share(None, 150, spent) == Fraction(1, 3)
    assert spent_share(None, None, spent) == 0


def test_budget_of_only_gpu_hours_is_recognised() -> None:
    assert Budget(gpu_ms=1).bound_by_gpus_alone
    for more in (Budget(usd=Money(1)), Budget(gpu_ms=1, trials=1), Budget(gpu_ms=1, wall_clock_ns=1)):
        assert not more.bound_by_gpus_alone
