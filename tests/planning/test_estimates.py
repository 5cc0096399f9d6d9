"""The formulas of estimates, checked against published figures and general properties."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.domain.listing import Listing
from tuner.domain.money import Money, Price
from tuner.domain.time import NS
from tuner.domain.units import GIB
from tuner.planning.accelerators import ACCELERATORS
from tuner.planning.estimates import scaling, sections
from tuner.planning.estimates.candidates import interrupted
from tuner.planning.estimates.described import ModelShape, Owned, SpotAssumptions
from tuner.planning.estimates.memory import fit, fits, memory_of
from tuner.planning.estimates.sections import compare, yearly

HOUR = 3600 * NS
GPT = ModelShape(
    parameters=10**9,
    precision="bf16",
    batch=8,
    layers=24,
    hidden=2048,
    heads=16,
    sequence=1024,
)

models = st.builds(
    ModelShape,
    parameters=st.integers(1, 10**10),
    optimizer=st.sampled_from(["sgd", "momentum", "adam", "adamw", "adam_8bit", "adafactor"]),
    precision=st.sampled_from(["fp32", "bf16", "fp16"]),
    batch=st.integers(1, 512),
    activation_bytes=st.integers(1, 2**32),
    layers=st.integers(1, 100),
    gradient_checkpointing=st.booleans(),
)


def listing(instance_type: str, accelerator: str, count: float, usd: str, cloud: str = "aws") -> Listing:
    return Listing(
        cloud=cloud,
        region="here",
        zone="",
        instance_type=instance_type,
        vcpus=8,
        memory_gib=64,
        accelerator=accelerator,
        accelerators=count,
        gpu_memory_gib=80,
        on_demand=Price.from_usd_per_hour(usd),
        spot=None,
        on_demand_date="2026-07",
        spot_date="",
        on_demand_source="a test",
        spot_source="",
    )


# Memory


@pytest.mark.parametrize(
    ("optimizer", "precision", "each"),
    [
        ("adam", "fp16", 16),  # ZeRO, §3.1: 2 + 2 + 12
        ("adam", "fp32", 16),
        ("momentum", "bf16", 12),
        ("sgd", "fp32", 8),
        ("adam_8bit", "bf16", 10),
        ("adafactor", "fp32", 8),
    ],
)
def test_training_state_takes_the_published_bytes_per_parameter(
    optimizer: str, precision: str, each: int
) -> None:
    model = replace(GPT, optimizer=optimizer, precision=precision)
    memory = memory_of(model)
    assert memory.weights + memory.gradients + memory.optimizer == each * 10**9


def test_transformer_activations_match_korthikanti() -> None:
    s, b, h, a, layers = 1024, 8, 2048, 16, 24
    assert memory_of(GPT).activations == layers * (s * b * h * 34 + 5 * a * s * s * b)
    flash = replace(GPT, flash_attention=True)
    assert memory_of(flash).activations == layers * s * b * h * 34
    again = replace(flash, gradient_checkpointing=True, vocabulary=50_000)
    assert memory_of(again).activations == 2 * s * b * h * layers + s * b * h * 34 + 4 * s * b * 50_000
    wide = replace(GPT, precision="fp32")
    assert memory_of(wide).activations == layers * (s * b * h * 66 + 9 * a * s * s * b)


@given(models, st.integers(1, 200), st.booleans())
def test_suggested_fits_stay_within_memory_and_train_the_whole_batch(
    model: ModelShape, gib: int, bf16: bool
) -> None:
    for suggestion in fits(model, Fraction(gib), bf16=bf16):
        assert suggestion.memory.total <= gib * GIB
        assert (
            suggestion.micro_batch * suggestion.accumulation
            >= model.batch
            > suggestion.micro_batch * (suggestion.accumulation - 1)
        )
        assert bf16 or suggestion.precision != "bf16"
        assert suggestion.gradient_checkpointing >= model.gradient_checkpointing


@given(models, st.integers(1, 200), st.booleans())
def test_model_that_fits_also_fits_in_more_memory(model: ModelShape, gib: int, bf16: bool) -> None:
    small, large = (fit(model, Fraction(size), bf16=bf16) for size in (gib, gib + 40))
    if small is not None:
        assert large is not None
        assert large.memory.total <= (gib + 40) * GIB
        if not small.changes:
            assert not large.changes


def test_smallest_change_is_suggested_first() -> None:
    model = replace(GPT, precision="fp32", activation_bytes=2 * GIB, parameters=10**8, layers=16)
    offered = [suggestion.changes for suggestion in fits(model, Fraction(16), bf16=True)]
    assert offered == [
        ("accumulation",),
        ("bf16",),
        ("gradient_checkpointing",),
        ("bf16", "gradient_checkpointing"),
    ]
    twice = [suggestion.changes for suggestion in fits(replace(model, batch=16), Fraction(16), bf16=True)]
    assert ("bf16", "accumulation") in twice
    others = list(fits(replace(model, precision="bf16"), Fraction(16), bf16=False))
    assert others
    assert all("fp16" in suggestion.changes for suggestion in others)
    assert fit(replace(model, parameters=10**11), Fraction(80), bf16=True) is None


# Several GPUs


@given(
    st.integers(2, 512),
    st.sampled_from(scaling.LINKS),
    st.integers(4, 10**12),
    st.fractions(Fraction(1, 1000), 100),
    st.fractions(10**6, 10**12),
)
def test_efficiency_is_a_fraction_and_overlap_never_lowers_it(
    gpus: int, link: scaling.Link, size: int, step_s: Fraction, bytes_s: Fraction
) -> None:
    point = scaling.point(gpus=gpus, link=link, gradient_bytes=size, step_s=step_s, bytes_s=bytes_s)
    assert 0 < point.efficiency <= point.overlapped <= 1
    assert point.speedup == gpus * point.efficiency
    # Patarasu and Yuan prove this lower bound for a ring.
    assert point.allreduce_seconds * bytes_s >= Fraction(2 * (gpus - 1), gpus) * size


def test_link_bandwidths_and_links_of_known_machines() -> None:
    kind = ACCELERATORS["A100"]
    nvlink, pcie, ethernet = (scaling.bandwidth(kind, link, Fraction(100)) for link in scaling.LINKS)
    assert nvlink == Fraction(7, 10) * 300 * 10**9
    assert pcie == Fraction(7, 10) * 32 * 10**9
    assert ethernet == Fraction(7, 10) * 100 * 10**9 / 8
    assert scaling.bandwidth(ACCELERATORS["T4"], "nvlink", Fraction(1)) is None
    assert scaling.link_within(listing("p4d.24xlarge", "A100", 8, "21.957642")) == "nvlink"
    assert scaling.link_within(listing("Standard_NC96ads_A100_v4", "A100-80GB", 4, "14.69")) == "pcie"


def test_using_all_gpus_of_a_machine_is_cheaper_and_faster() -> None:
    points = scaling.table(
        ACCELERATORS["H100"],
        gpus=(1, 8, 16),
        gradient_bytes=2 * 10**9,
        step_s=Fraction(1, 2),
        gbit_s=Fraction(400),
    )
    listings = [listing("p5.48xlarge", "H100", 8, "55.04")]
    single, eight, sixteen = scaling.machines(points, listings, Fraction(100))
    assert (single.usd, single.pays) == (Money.from_usd(5504), "first")
    assert (eight.machines, eight.pays) == (1, "cheaper and faster")
    assert eight.usd < single.usd
    assert (sixteen.machines, sixteen.link, sixteen.pays) == (2, "ethernet", "faster, dearer")
    dearer = Fraction((sixteen.usd - eight.usd).micro_usd, 10**6)
    assert sixteen.usd_per_hour_saved == dearer / (eight.hours - sixteen.hours)


# Interruptions


@given(st.integers(1, 1000), st.integers(1, 100), st.integers(0, 600), st.integers(0, 3600))
def test_interruptions_never_save_time_and_rarer_ones_cost_less(
    hours: int, mean_h: int, save_s: int, restore_s: int
) -> None:
    def met(mean: int) -> int:
        terms = SpotAssumptions(mean_ns=mean * HOUR, checkpoint_ns=save_s * NS, restore_ns=restore_s * NS)
        run = interrupted(hours * HOUR, terms)
        return 2**62 if run is None else run.paid_ns

    assert hours * HOUR <= met(mean_h)
    assert met(2 * mean_h) <= met(mean_h) * 1.0001


def test_interruption_overhead_matches_the_formula_of_daly() -> None:
    """500 h of work, a loss every 24 h, saves of 5 min, restarts of 10 min.

    The overhead is, to first order, save/interval + half an interval/M.
    """
    terms = SpotAssumptions(mean_ns=24 * HOUR, checkpoint_ns=300 * NS, restore_ns=600 * NS, wait_ns=0)
    run = interrupted(500 * HOUR, terms)
    assert run is not None
    assert round(run.interval_ns / (60 * NS)) == 117
    assert run.overhead(500 * HOUR) == pytest.approx(5 / 117 + (117 / 2 + 5 + 10) / (24 * 60), abs=0.005)
    assert interrupted(HOUR, SpotAssumptions(mean_ns=60 * NS, restore_ns=24 * HOUR)) is None


# Size and tokens


def test_chinchilla_fits_match_their_papers() -> None:
    """Hoffmann et al., table A3: for Chinchilla's budget of 5.76e23 FLOPs, approach 3 gives some 40 billion parameters.

    Besiroglu et al.: the refit is consistent with twenty tokens per parameter, which gives the 70 billion that were trained.
    """
    refit, rule, published = sections.optima(5.76e23)
    assert published.parameters == pytest.approx(40e9, rel=0.25)
    assert rule.parameters == pytest.approx(69.3e9, rel=0.01)
    assert refit.parameters == pytest.approx(rule.parameters, rel=0.2)
    assert 15 < refit.tokens_per_parameter < 30


@given(st.floats(1e15, 1e27), st.floats(-0.5, 0.5))
def test_no_other_split_of_the_compute_has_a_lower_loss(flops: float, away: float) -> None:
    for law in (sections.BESIROGLU, sections.HOFFMANN):
        best = sections.optimum(law, flops)
        parameters = best.parameters * 10**away
        tokens = flops / 6 / parameters
        loss = law.e + law.a / parameters**law.alpha + law.b / tokens**law.beta
        assert best.loss is not None
        assert best.loss <= loss * (1 + 1e-9)


# A year of runs, and owned machines


def test_yearly_cost_counts_repeated_failed_runs() -> None:
    """A published example: $13,512 a run, four a month. 48 a year cost $648,576, and a failure share of a fifth adds a quarter."""
    price = Money.from_usd(13_512)
    assert yearly(
        "a", price, runs_per_month=Fraction(4), failed_share=Fraction(0)
    ).usd_per_year == Money.from_usd(648_576)
    failing = yearly("a", price, runs_per_month=Fraction(4), failed_share=Fraction(1, 5))
    assert failing.usd_per_year == Money.from_usd(648_576 * 5 // 4)
    assert failing.runs_per_year == 60


@given(
    st.integers(1, 10**6),
    st.integers(1, 10),
    st.integers(1, 20_000),
    st.integers(1, 100),
    st.integers(1, 200),
)
def test_owned_and_cloud_cost_the_same_at_break_even(
    purchase: int, years: int, watts: int, percent: int, rent: int
) -> None:
    owned = Owned(
        purchase=Money.from_usd(purchase),
        resale=Money(0),
        lifetime_years=Fraction(years),
        upkeep_per_year=Money.from_usd(100),
        watts=Fraction(watts),
        pue=Fraction(3, 2),
        usd_per_kwh=Fraction(15, 100),
        utilisation=Fraction(percent, 100),
    )
    comparison = compare(owned, Price.from_usd_per_hour(rent))
    assert comparison.hours_used == years * 8760 * Fraction(percent, 100)
    even = comparison.break_even_utilisation
    if even is None:
        assert comparison.cheaper == "cloud"
    elif even < owned.utilisation:
        assert comparison.owned_usd <= comparison.cloud_usd
    elif even > owned.utilisation:
        assert comparison.cloud_usd <= comparison.owned_usd
    if even is not None and 0 < even <= 1:
        there = compare(replace(owned, utilisation=even), Price.from_usd_per_hour(rent))
        assert there.saving_usd <= Money(1)
