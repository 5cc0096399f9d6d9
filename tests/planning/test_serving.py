"""What predictions cost, recomputed in other ways: by counting replicas, and by playing out random requests."""

from random import Random

import pytest

from tuner.domain.money import Price
from tuner.planning.serving import ReplicaSpeed, pareto_front, serving_cost

FAST = ReplicaSpeed(latency_s=0.01, per_second=100.0, best_per_second=400.0)
A_DOLLAR = Price.from_usd_per_hour(1)


def test_one_replica_that_always_runs_costs_its_price_for_the_requests_of_an_hour() -> None:
    cost = serving_cost(FAST, A_DOLLAR, per_second=10, cold_start_s=5)
    assert (cost.replicas, cost.real_time) == (1, pytest.approx(1e6 / (10 * 3600)))


@pytest.mark.parametrize(("per_second", "replicas"), [(70, 1), (70.1, 2), (140, 2), (700, 10)])
def test_replicas_are_added_when_each_would_be_more_than_70_percent_busy(
    per_second: float, replicas: int
) -> None:
    cost = serving_cost(FAST, A_DOLLAR, per_second=per_second, cold_start_s=5)
    assert cost.replicas == replicas
    assert cost.real_time == pytest.approx(replicas * 1e6 / (per_second * 3600))
    assert (cost.scale_to_zero is None) == (replicas > 1)


def test_a_batch_costs_the_time_of_the_fastest_batch_size() -> None:
    cost = serving_cost(FAST, A_DOLLAR, per_second=1, cold_start_s=5)
    assert cost.batch == pytest.approx(1e6 / 400 / 3600)


@pytest.mark.parametrize("per_second", [0.02, 0.2, 5, 60])
def test_scaling_to_zero_costs_what_random_requests_cost(per_second: float) -> None:
    cold_s, random, paid_s, requests = 3.0, Random(7), 0.0, 200_000
    for _ in range(requests):
        gap = random.expovariate(per_second)
        paid_s += min(gap, FAST.latency_s)
        if gap > FAST.latency_s:  # nothing was left to answer, so the replica stopped
            paid_s += cold_s
    cost = serving_cost(FAST, A_DOLLAR, per_second=per_second, cold_start_s=cold_s)
    assert cost.scale_to_zero == pytest.approx(paid_s / requests / 3600 * 1e6, rel=0.02)


def test_at_the_break_even_rate_both_ways_cost_the_same() -> None:
    rate = serving_cost(FAST, A_DOLLAR, per_second=1, cold_start_s=4).break_even_per_second
    assert rate == 0.25
    costs = {r: serving_cost(FAST, A_DOLLAR, per_second=rate * r, cold_start_s=4) for r in (0.9, 1, 1.1)}
    assert costs[1].scale_to_zero == pytest.approx(costs[1].real_time)
    assert (costs[0.9].scale_to_zero or 0) < costs[0.9].real_time
    assert (costs[1.1].scale_to_zero or 0) > costs[1.1].real_time


def test_without_a_cold_start_scaling_to_zero_costs_less_at_every_rate_of_one_replica() -> None:
    assert serving_cost(FAST, A_DOLLAR, per_second=1, cold_start_s=0).break_even_per_second == 70


def test_a_free_machine_costs_nothing() -> None:
    cost = serving_cost(FAST, Price(0), per_second=1, cold_start_s=1)
    assert (cost.real_time, cost.batch, cost.scale_to_zero) == (0, 0, 0)


def test_the_front_has_each_point_that_is_better_than_all_cheaper_ones() -> None:
    points = {"a": (0.9, 3.0), "b": (0.8, 1.0), "c": (0.7, 2.0), "d": (0.9, 4.0), "e": (0.8, 1.0)}
    assert pareto_front(points, larger_is_better=True) == ["b", "a"]
    assert pareto_front(points, larger_is_better=False) == ["b", "c"]
    assert pareto_front({}, larger_is_better=True) == []
