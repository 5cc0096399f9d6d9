"""Test that money never drifts, and is never rounded against the budget."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.domain.cost import KINDS, CostKind, Meter, slice_costs, total
from tuner.domain.money import Cost, Money, Price, Rate, amounts, dollars, gpu_ms_at_most, plain, trial_rate
from tuner.domain.time import HOUR_NS

prices = st.integers(0, 10**9).map(Price)
rates = st.builds(Rate, prices, st.integers(0, 8000))
times = st.integers(0, 10**15)


@given(prices, times)
def test_affordable_time_costs_at_most_the_given_money(price: Price, ns: int) -> None:
    money = price.of(ns)
    assert price.affords_ns(money) >= ns
    assert price.of(price.affords_ns(Money(money.micro_usd))) <= money


@given(rates, st.lists(st.dictionaries(st.sampled_from(KINDS), st.integers(0, 10**12)), max_size=8))
def test_slice_costs_add_up_to_exactly_the_total(rate: Rate, slices: list[dict[str, int]]) -> None:
    paid, elapsed = Cost(), 0
    for added in slices:
        costs = slice_costs(rate, elapsed, added)  # type: ignore[arg-type]
        assert all(cost.usd >= Money(0) and cost.gpu_ms >= 0 for cost in costs.values())
        paid, elapsed = paid + total(costs), elapsed + sum(added.values())
    assert paid == rate.cost(elapsed)


def test_kinds_of_many_short_attempts_cost_their_shares_of_the_whole() -> None:
    """Each attempt costs two or three micro-dollars. Its setup would cost a quarter of one, and its wait a seventh."""
    rate, random, times, costs = Rate(Price(50_400)), Random(0), Counter[str](), Counter[str]()
    for _ in range(2_000):
        added: dict[CostKind, int] = {
            "setup": random.randint(15_000_000, 20_000_000),
            "train": random.randint(100_000_000, 150_000_000),
            "idle": random.randint(5_000_000, 15_000_000),
        }
        times.update(added)
        costs.update({kind: cost.usd.micro_usd for kind, cost in slice_costs(rate, 0, added).items()})
    for kind in times:
        assert costs[kind] / costs.total() == pytest.approx(times[kind] / times.total(), abs=0.01)


@given(rates, st.builds(Cost, st.integers(0, 10**12).map(Money), st.integers(0, 10**12)))
def test_affordable_time_of_a_rate_fits_both_limits(rate: Rate, left: Cost) -> None:
    assert rate.cost(min(rate.affords_ns(left), 2**60)).fits(left)


@pytest.mark.parametrize("bad", ["nan", "inf", "1e308", "0.0000001", "ten", float("nan"), float("inf")])
def test_invalid_amount_of_dollars_is_refused(bad: str | float) -> None:
    with pytest.raises(ValueError):
        Money.from_usd(bad)


@given(st.integers(-(10**14), 10**14))
def test_micro_dollars_round_trip_through_dollars(micro: int) -> None:
    assert Money.from_usd(Money(micro).usd) == Money(micro)


def test_trial_pays_the_larger_of_its_cpu_and_gpu_shares() -> None:
    price = Price.from_usd_per_hour(8)
    assert trial_rate(node_price=price, node_cpus=8, node_gpus=0, cpus=2, gpus=0).price.usd_per_hour == 2
    assert trial_rate(node_price=price, node_cpus=8, node_gpus=4, cpus=1, gpus=2).price.usd_per_hour == 4
    assert trial_rate(node_price=price, node_cpus=8, node_gpus=4, cpus=8, gpus=0.5).milli_gpus == 500
    on_three = trial_rate(node_price=price, node_cpus=8, node_gpus=4, cpus=1, gpus=2, nodes=3)
    assert (on_three.price.usd_per_hour, on_three.milli_gpus) == (12, 6000)


def test_decreasing_meter_is_refused() -> None:
    with pytest.raises(ValueError, match="decreased"):
        Meter({"train": 5}).minus(Meter({"train": 6}))


def test_nanosecond_beyond_ten_thousand_hours_is_charged() -> None:
    """A float could not represent the extra nanosecond."""
    hours = 10_000 * HOUR_NS
    assert Price(1).of(hours) == Money(10_000)
    assert Price(1).of(hours + 1) == Money(10_001)


@pytest.mark.parametrize(
    ("usd", "message"),
    [
        ("1000000000.01", "billion"),
        ("0.0000001", "six decimals"),
        ("-inf", "finite"),
        ("1,5", "not an amount"),
    ],
)
def test_refused_amount_is_reported_with_the_reason(usd: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Money.from_usd(usd)


def test_amounts_are_shown_exactly() -> None:
    assert [str(Money(micro)) for micro in (1, 1_500_000, -250_000)] == ["$0.000001", "$1.50", "-$0.25"]
    assert Cost(gpu_ms=1_800_000).gpu_hours == 0.5
    assert -Cost(Money(3), 4) + Cost(Money(5), 5) == Cost(Money(2), 1)
    assert Cost(Money(3), 9).at_most(Cost(Money(5), 4)) == Cost(Money(3), 4)


def test_zero_price_affords_unlimited_time_and_debt_affords_none() -> None:
    assert Price(0).affords_ns(Money(0)) > 10**18
    assert Price(1).affords_ns(Money(-1)) == 0
    assert Rate(Price(0), 1000).affords_ns(Cost(gpu_ms=7)) == 7_000_000
    assert Rate(Price(0)).affords_ns(Cost()) > 10**18


def test_trial_on_a_node_without_cpus_pays_its_gpu_share() -> None:
    rate = trial_rate(node_price=Price(100), node_cpus=0, node_gpus=4, cpus=1, gpus=1)
    assert rate == Rate(Price(25), 1000)


def test_valid_meter_is_read_and_invalid_meter_is_refused() -> None:
    meter = Meter.of({"train": 5, "idle": 2, "lost": 0})
    assert (meter.ns, meter.total_ns, meter.busy_ns) == ({"train": 5, "idle": 2}, 7, 5)
    for bad in ({"train": -1}, {"sleep": 3}):
        with pytest.raises(ValueError, match="negative time or an unknown cost kind"):
            Meter.of(bad)


@given(st.integers(0, 10**12))
def test_amount_as_text_has_all_digits_and_no_exponent(micro_usd: int) -> None:
    amount = micro_usd / 10**6
    assert float(plain(amount)) == float(dollars(amount).removeprefix("$")) == amount
    assert dollars(-amount) == ("-" if amount else "") + dollars(amount)
    assert not set(plain(amount) + dollars(amount)) - set("$.0123456789")


@pytest.mark.parametrize(("usd", "micro_usd"), [(0.29, 290_000), (1.1, 1_100_000), (0.0000019, 1), (0.0, 0)])
def test_limit_in_dollars_is_rounded_down_to_whole_micro_dollars(usd: float, micro_usd: int) -> None:
    """0.29 times a million is slightly less than 290,000 as a float."""
    assert Money.at_most_usd(usd) == Money(micro_usd)


def test_limit_in_gpu_hours_is_rounded_down_to_whole_milliseconds() -> None:
    assert gpu_ms_at_most(0.5) == 1_800_000
    assert gpu_ms_at_most(1.9 / 3_600_000) == 1


@pytest.mark.parametrize(
    ("usd", "gpu_hours", "text"),
    [
        (0.5, 1.5, "$0.50 and 1.5 GPU-hours"),
        (None, 1.5, "1.5 GPU-hours"),
        (0.5, None, "$0.50"),
        (0.0, None, "$0.00"),
        (None, None, "nothing"),
    ],
)
def test_amounts_that_are_none_are_not_shown(usd: float | None, gpu_hours: float | None, text: str) -> None:
    assert amounts(usd, gpu_hours) == text
