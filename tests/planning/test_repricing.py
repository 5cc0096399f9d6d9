"""Costs on other machines: recomputed from price, relative time and overhead, with measured, published or assumed speeds."""

import math
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import examples
from tuner.domain.money import Price, Rate
from tuner.planning.repricing import (
    SAME,
    RelativeTime,
    Repricing,
    assumed_same,
    catalogued,
    measured,
)

FACTORS = st.integers(1, 5_000_000).map(lambda parts: Fraction(parts, 1_000_000))
NAMES = ("here", "there")


@examples(200)
@given(
    ns=st.lists(st.integers(0, 10**15), min_size=1, max_size=4),
    price=st.integers(0, 10**9),
    milli_gpus=st.sampled_from([0, 250, 1000, 8000]),
    factors=st.tuples(FACTORS, FACTORS, FACTORS).map(sorted),
    overhead=st.none() | FACTORS,
)
def test_cost_is_price_times_time_and_grows_with_time(
    ns: list[int], price: int, milli_gpus: int, factors: list[Fraction], overhead: Fraction | None
) -> None:
    low, expected, high = factors
    rate = Rate(Price(price), milli_gpus)
    repricing = Repricing(rate, RelativeTime(low, expected, high, "measured", ""), overhead)
    repriced = [repricing.of(here_ns) for here_ns in sorted(ns)]
    for train_ns, there in zip(sorted(ns), repriced, strict=True):
        duration = math.ceil(train_ns * expected * (1 + (overhead or 0)))
        assert there.duration_ns == duration
        assert there.cost.usd.micro_usd == math.ceil(Fraction(duration * price, 3600 * 10**9))
        assert there.cost.gpu_ms == math.ceil(Fraction(duration * milli_gpus, 10**9))
        assert there.low.usd <= there.cost.usd <= there.high.usd
    assert repriced == sorted(repriced, key=lambda estimate: (estimate.duration_ns, estimate.cost.usd))


def test_cost_on_the_same_machine_has_no_uncertainty() -> None:
    repriced = Repricing(Rate(Price(3_600_000_000)), SAME).of(1_500_000_000)
    assert (
        repriced.cost.usd.micro_usd == repriced.low.usd.micro_usd == repriced.high.usd.micro_usd == 1_500_000
    )


@examples(50)
@given(ratio=st.floats(0.05, 20), spread=st.floats(0.001, 0.5), seed=st.integers(0, 10**6))
def test_measured_ratio_lies_within_its_interval(ratio: float, spread: float, seed: int) -> None:
    rng = Random(seed)
    here = [math.exp(rng.gauss(0, spread)) for _ in range(20)]
    there = [ratio * math.exp(rng.gauss(0, spread)) for _ in range(20)]
    relative_time = measured(here, there, names=NAMES)
    assert relative_time is not None
    assert relative_time.low <= relative_time.expected <= relative_time.high
    assert float(relative_time.expected) == pytest.approx(ratio, rel=4 * spread + 1e-4)


def test_measured_intervals_cover_the_true_ratio_at_the_stated_rate() -> None:
    rng, hits = Random(7), 0
    for _ in range(1000):
        here = [math.exp(rng.gauss(0, 0.3)) for _ in range(15)]
        there = [2 * math.exp(rng.gauss(0, 0.3)) for _ in range(10)]
        relative_time = measured(here, there, names=NAMES)
        assert relative_time is not None
        hits += relative_time.low <= 2 <= relative_time.high
    assert 730 <= hits <= 870


@pytest.mark.parametrize(
    ("here", "there"), [([], []), ([1.0, 1.0, 1.0], [1.0, 1.0]), ([1.0, 0.0, 1.0], [1.0] * 3)]
)
def test_too_few_trials_give_no_measured_ratio(here: list[float], there: list[float]) -> None:
    assert measured(here, there, names=NAMES) is None


def test_faster_accelerator_takes_less_time_and_unknown_one_is_not_guessed() -> None:
    relative_time = catalogued("T4", "H100")
    assert relative_time is not None
    assert 0 < relative_time.low <= relative_time.expected <= relative_time.high <= 1
    assert catalogued("T4", "") is None


@pytest.mark.parametrize("on_gpus", [True, False])
def test_assumed_speed_has_a_symmetric_interval_and_a_note(on_gpus: bool) -> None:
    relative_time = assumed_same(on_gpus=on_gpus)
    assert relative_time.low * relative_time.high == 1
    assert relative_time.low < relative_time.expected == 1 < relative_time.high
    assert "the speed is not known" in relative_time.note


def test_widened_interval_covers_both_alternatives() -> None:
    wide = assumed_same(on_gpus=True).widened(SAME)
    assert (wide.low, wide.high) == (Fraction(1, 4), 4)
