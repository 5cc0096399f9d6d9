"""Test which shared budgets count a job, and which budgets are invalid."""

import pytest

from tuner.domain.money import Cost, Money
from tuner.domain.shared_budget import (
    MAX_TAGS,
    Alert,
    SharedBudget,
    applying,
    name_fault,
    parent_fault,
    tag_faults,
)
from tuner.domain.time import Instant, parse_rfc3339

ORG = SharedBudget("org", usd=Money(100))
TEAM = SharedBudget("team", usd=Money(50), match={"team": "vision"}, parent="org")
ANN = SharedBudget("ann", usd=Money(20), match={"owner": "ann"}, parent="team")
OTHER = SharedBudget("other", usd=Money(5), match={"team": "text"})


@pytest.mark.parametrize(
    ("tags", "names"),
    [
        ({}, ["org"]),
        ({"team": "vision"}, ["org", "team"]),
        ({"owner": "ann"}, ["ann", "org", "team"]),
        ({"owner": "ann", "team": "text"}, ["ann", "org", "other", "team"]),
    ],
)
def test_job_counts_in_matching_budgets_and_their_parents(tags: dict[str, str], names: list[str]) -> None:
    assert [budget.name for budget in applying([OTHER, ANN, TEAM, ORG], tags)] == names


@pytest.mark.parametrize(
    ("tags", "pointers"),
    [
        ({"team": "vision"}, []),
        (
            {"a:b": "x", "": "x", "team": "x" * 301, "o/n": "a\nb"},
            ["/tags/a:b", "/tags/", "/tags/team", "/tags/o~1n"],
        ),
        ({str(number): "" for number in range(MAX_TAGS + 1)}, ["/tags"]),
    ],
    ids=["valid", "invalid", "too_many"],
)
def test_faults_of_tags_name_the_tag(tags: dict[str, str], pointers: list[str]) -> None:
    assert [fault.pointer for fault in tag_faults(tags)] == pointers


def test_unknown_parent_and_parent_cycle_are_reported() -> None:
    known = {budget.name: budget for budget in (ORG, TEAM, ANN)}
    lost = parent_fault(SharedBudget("new", usd=Money(1), parent="taem"), known)
    assert lost is not None
    assert "use an existing one, such as team" in lost.detail
    for parent in ("org", "team", "ann"):
        round_again = parent_fault(SharedBudget("org", usd=Money(1), parent=parent), known)
        assert round_again is not None
        assert round_again.pointer == "/parent"
    assert parent_fault(ANN, known) is None


def test_share_is_that_of_the_limit_closest_to_exhaustion() -> None:
    budget = SharedBudget("both", usd=Money(1000), gpu_ms=100)
    assert budget.share_ppm(Cost(Money(499), 50)) == 500_000
    assert budget.share_ppm(Cost(Money(999), 50)) == 999_000


@pytest.mark.parametrize(
    ("budget", "pointer"),
    [
        (SharedBudget("b"), ""),
        (SharedBudget("b", usd=Money(0)), "/usd"),
        (SharedBudget("b", gpu_ms=-1), "/gpu_hours"),
        (SharedBudget("b", usd=Money(1), timezone="Mars/Base"), "/timezone"),
        (SharedBudget("b", usd=Money(1), alerts=(Alert(0, "https://a.example"),)), "/alerts/0/at"),
        (SharedBudget("b", usd=Money(1), alerts=(Alert(1_000_001, "https://a.example"),)), "/alerts/0/at"),
        (SharedBudget("b", usd=Money(1), alerts=(Alert(5, "ftp://a.example"),)), "/alerts/0/url"),
        (SharedBudget("b", usd=Money(1), alerts=(Alert(5, "https://u:p@a.example"),)), "/alerts/0/url"),
        (SharedBudget("b", usd=Money(1), alerts=(Alert(5, "https://a.example:99999"),)), "/alerts/0/url"),
        (SharedBudget("b", usd=Money(1), alerts=(Alert(5, "https://["),)), "/alerts/0/url"),
    ],
)
def test_invalid_budget_is_reported_with_its_field(budget: SharedBudget, pointer: str) -> None:
    assert [fault.pointer for fault in budget.faults()] == [pointer]


def test_budget_name_must_be_plain_ascii() -> None:
    assert name_fault("vision-2026.11_a") is None
    for name in ("", "-a", "a/b", "a" * 101, "ü"):
        assert name_fault(name) is not None


def test_parent_chain_depth_is_limited() -> None:
    chain = {f"b{n}": SharedBudget(f"b{n}", usd=Money(1), parent=f"b{n + 1}") for n in range(30)}
    deep = parent_fault(SharedBudget("new", usd=Money(1), parent="b0"), chain)
    assert deep is not None
    assert "at most 20 deep" in deep.detail
    alone = parent_fault(SharedBudget("new", usd=Money(1), parent="org"), {})
    assert alone is not None
    assert alone.detail == "the budget 'org' does not exist; create it first"
    assert parent_fault(ORG, {}) is None


def test_more_than_twenty_alerts_are_refused() -> None:
    alerts = (Alert(500_000, "https://a.example/hook"),) * 21
    assert [fault.pointer for fault in SharedBudget("b", usd=Money(1), alerts=alerts).faults()] == ["/alerts"]
    assert SharedBudget("b", usd=Money(1), alerts=alerts[:20]).faults() == []


def test_unlimited_amount_does_not_affect_the_share() -> None:
    assert SharedBudget("b", gpu_ms=10).share_ppm(Cost(Money(10**9), 5)) == 500_000
    assert SharedBudget("b", usd=Money(10)).share_ppm(Cost(Money(5), 10**9)) == 500_000
    assert Cost(Money(10**15), 10).fits(SharedBudget("b", gpu_ms=10).limit)


def test_period_follows_the_time_zone_of_the_budget() -> None:
    """In New York it is still Sunday and January when Monday and February have begun in UTC."""
    at, hour_ns = parse_rfc3339("2027-02-01T03:00:00Z"), 3600 * 10**9
    new_york = "America/New_York"
    monthly = SharedBudget("b", usd=Money(1), period="month", timezone=new_york)
    assert monthly.span(at)[1] == at + 2 * hour_ns
    weekly = SharedBudget("b", usd=Money(1), period="week", timezone=new_york)
    assert weekly.span(at)[1] == at + 2 * hour_ns
    assert SharedBudget("b", usd=Money(1), period="month").span(at)[0] == at - 3 * hour_ns
    assert SharedBudget("b", usd=Money(1)).span(at) == (Instant(0), None)
