"""Each rule finds its own problem and no other, and computes its dollars from the evidence."""

import re
from dataclasses import replace
from fractions import Fraction
from math import isclose
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planning.advising import (
    BIG,
    GIB,
    HOUR,
    OFFER,
    SMALL,
    TINY,
    curve,
    evidence,
    gpu_usage,
    listing,
    measured_attempt,
    price,
    spec,
    usd,
)
from tests.strategies import examples
from tuner.domain.budget import Budget
from tuner.domain.job import Algorithm, CheckpointPolicy, JobSpec, Resources, SamplerName, SchedulerName
from tuner.domain.money import Money
from tuner.domain.objective import Fidelity
from tuner.domain.records import SelfTestRow
from tuner.domain.time import NS, Instant
from tuner.domain.usage import Usage
from tuner.planning.advice import RULES, findings
from tuner.planning.advice.early_stopping import min_fidelity_misleads, pruned_too_late
from tuner.planning.advice.evidence import AdviceFinding, AdvisedChange, JobEvidence, JobRegions
from tuner.planning.advice.missing import not_measured
from tuner.planning.advice.overheads import (
    checkpoint_interval,
    data_apart,
    idle_expensive,
    interruptions_expensive,
    regions_apart,
    setup_expensive,
    spot_unused,
)
from tuner.planning.advice.resources import (
    cpu_underused,
    fp32_where_bf16,
    gpu_underused,
    input_bound,
    memory_unused,
    scaling_inefficient,
)
from tuner.planning.catalogue import Catalogue
from tuner.planning.measured_scaling import MeasuredSize
from tuner.planning.ranks import spearman
from tuner.tuning.rungs import rungs_of

quick = examples(40)


def made(answer: AdviceFinding | None) -> AdviceFinding:
    assert answer is not None
    return answer


def test_mostly_idle_gpu_is_advised_to_be_smaller() -> None:
    advice = made(gpu_underused(evidence(measured_attempt(train="8.00", usage=gpu_usage(20)))))
    assert advice.evidence["gpu_utilisation"] == Fraction(1, 5)
    # An L4 has 300/1555 of the bandwidth, and at least three quarters of that: 0.8 h + 0.2 h / 0.1447 for each hour, at $1.00.
    slower = Fraction(4, 5) + Fraction(1, 5) / (Fraction(300, 1555) * Fraction(3, 4))
    tiny = Fraction(4, 5) + Fraction(1, 5) / (min(Fraction(65, 312), Fraction(320, 1555)) * Fraction(3, 4))
    best = min(slower * 1, tiny * Fraction(1, 2))
    assert advice.change.setting == "resources.instance_type"
    assert advice.change.then == ("g.small" if slower < tiny / 2 else "g.tiny")
    assert advice.saves is not None
    assert isclose(advice.saves.usd, 8 - 2 * float(best), abs_tol=1e-5)
    # Half a GPU with all eight processors is not cheaper.
    assert [other.setting for other in advice.alternatives] == ["batch_size of the trainable"]


def test_time_on_an_h100_nvl_is_that_of_its_own_data_sheet() -> None:
    """Catalogues list it as an H100 with 94 GiB. Its peak is 835.5 of 989.5 TFLOP/s."""
    machines = (
        listing("p.h100", "8.00", gpu="H100", gpus=1, vram=80),
        listing("p.nvl", "2.00", gpu="H100", gpus=1, vram=94),
    )
    usage = gpu_usage(20, used=70 * GIB, gpu_memory_bytes=80 * GIB)
    attempt = measured_attempt(hourly="8.00", train="8.00", usage=usage)
    case = evidence(
        attempt,
        offer=replace(OFFER, instance_type="p.h100", price=price("8.00")),
        catalogue=Catalogue(machines, "made up"),
    )
    advice = made(gpu_underused(case))
    slower = Fraction(4, 5) + Fraction(1, 5) / (Fraction(8355, 9895) * Fraction(3, 4))
    assert advice.change.then == "p.nvl"
    assert advice.saves is not None
    assert isclose(advice.saves.usd, 8 - 2 * float(slower), abs_tol=1e-5)


def test_sharing_a_gpu_is_advised_if_two_trials_fit() -> None:
    usage = gpu_usage(40, used=15 * GIB, batch_size=64)
    advice = made(gpu_underused(evidence(measured_attempt(train="8.00", usage=usage), job=spec(cpus=4))))
    shared = next(c for c in (advice.change, *advice.alternatives) if c.setting == "resources.gpus")
    assert (shared.now, shared.then) == ("1", "0.5")
    assert any(c.then == "128" for c in advice.alternatives)
    full = gpu_usage(40, used=30 * GIB)
    machines = Catalogue((BIG, SMALL, TINY), "made up")
    alone = gpu_underused(
        evidence(measured_attempt(train="8.00", usage=full), job=spec(cpus=4), catalogue=machines)
    )
    assert alone is None  # neither two trials per GPU nor a smaller GPU


def test_trial_with_several_gpus_is_not_advised_to_share_them() -> None:
    usage = gpu_usage(40, used=15 * GIB, batch_size=64)
    attempt, machine = measured_attempt(train="8.00", usage=usage), replace(OFFER, cpus=64, gpus=8)
    advice = made(gpu_underused(evidence(attempt, job=spec(cpus=4, gpus=8), offer=machine)))
    assert "resources.gpus" not in {change.setting for change in (advice.change, *advice.alternatives)}


@pytest.mark.parametrize(
    "usage",
    [gpu_usage(50), gpu_usage(10, samples=29), Usage(), None],
    ids=["busy enough", "too few samples", "not measured", "nothing measured"],
)
def test_busy_or_unmeasured_gpu_gives_no_finding(usage: Usage | None) -> None:
    assert gpu_underused(evidence(measured_attempt(train="8.00", usage=usage))) is None


def test_unused_processors_are_advised_to_be_reduced() -> None:
    usage = Usage(wall_ns=100 * NS, cpu_ns=120 * NS)
    advice = made(
        cpu_underused(
            evidence(measured_attempt(train="6.00", setup="2.00", usage=usage), job=spec(cpus=8, gpus=0))
        )
    )
    assert (advice.change.now, advice.change.then) == ("8", "1.5")
    assert advice.saves == Money(8_000_000 * 13 // 16)
    shared = spec(cpus=8, gpus=0)
    shared = replace(shared, resources=replace(shared.resources, pack=4))
    assert cpu_underused(evidence(measured_attempt(train="8.00", usage=usage), job=shared)) is None
    # the GPU determines the price
    assert cpu_underused(evidence(measured_attempt(train="8.00", usage=usage))) is None
    busy = Usage(wall_ns=100 * NS, cpu_ns=400 * NS)
    assert (
        cpu_underused(evidence(measured_attempt(train="8.00", usage=busy), job=spec(cpus=8, gpus=0))) is None
    )


def test_unused_memory_leads_to_a_machine_with_less_memory() -> None:
    advice = made(
        memory_unused(evidence(measured_attempt(train="8.00", usage=Usage(memory_peak_bytes=10 * GIB))))
    )
    assert advice.change.then == "p.lean"
    assert advice.saves == usd("2.00")
    shared = replace(spec(), resources=replace(spec().resources, pack=2))
    usage = Usage(memory_peak_bytes=10 * GIB)
    assert memory_unused(evidence(measured_attempt(train="8.00", usage=usage), job=shared)) is None
    full = Usage(memory_peak_bytes=20 * GIB)
    assert memory_unused(evidence(measured_attempt(train="8.00", usage=full))) is None


@pytest.mark.parametrize(("wait", "saves"), [(30, "3.00"), (80, "2.00"), (20, None)])
def test_waiting_for_data_advises_loader_workers(wait: int, saves: str | None) -> None:
    usage = Usage(data_wait_ns=wait * NS, compute_ns=(100 - wait) * NS, facts={"loader_workers": 0})
    answer = input_bound(evidence(measured_attempt(train="10.00", usage=usage)))
    assert (answer.saves if answer else None) == (usd(saves) if saves else None)
    if answer:
        assert answer.change.setting == "num_workers of the DataLoader"
        assert (answer.change.now, answer.change.then) == ("0", "8")
        assert "efficient_loader" in answer.change.how


def test_busy_gpu_gives_no_finding_on_data_wait() -> None:
    known = gpu_usage(95)
    usage = Usage(known.wall_ns, gpu_samples=100, gpu_percent=9500, data_wait_ns=50 * NS, compute_ns=50 * NS)
    assert input_bound(evidence(measured_attempt(train="10.00", usage=usage))) is None


@pytest.mark.parametrize(
    ("facts", "is_found"),
    [
        ({"precision": "fp32", "gpu_capability": "8.0"}, True),
        ({"precision": "fp32", "gpu_capability": "7.5"}, False),
        ({"precision": "bf16", "gpu_capability": "8.0"}, False),
        ({"precision": "fp32"}, True),  # an A100, by the catalogue
    ],
)
def test_fp32_is_reported_only_on_gpus_with_bf16(facts: dict[str, Any], is_found: bool) -> None:
    answer = fp32_where_bf16(evidence(measured_attempt(train="8.00", usage=Usage(facts=facts))))
    assert (answer is not None) == is_found
    if answer:
        assert answer.saves is None
        assert answer.saves_note


def test_bf16_saves_half_of_the_busy_gpu_time() -> None:
    case = evidence(measured_attempt(train="8.00", usage=gpu_usage(60, precision="fp32")))
    assert made(fp32_where_bf16(case)).saves == Money(8_000_000 * 3 // 10)


def saved(saves: int, interval_s: int = 1, **bill: str) -> JobEvidence:
    fixed = spec(market="spot", interval_ns=interval_s * NS)
    return evidence(measured_attempt(market="spot", usage=Usage(saves=saves), **bill), job=fixed)


def on_gpus(gpus: int, efficiency: Fraction, **more: Any) -> MeasuredSize:
    size = Resources(cpus=gpus, gpus=gpus, **more)
    return MeasuredSize(size, 1 / (gpus * efficiency), efficiency, 0.01, 6, (f"job_{gpus}",))


SIZES = (on_gpus(1, Fraction(1)), on_gpus(2, Fraction(9, 10)), on_gpus(4, Fraction(61, 100)))


@pytest.mark.parametrize(
    ("smaller", "then", "saves"),
    [(SIZES[:2], "1", "3.90"), ((replace(SIZES[0], resources=Resources(cpus=8, gpus=1)), SIZES[1]), "2", "3.222222")],
    ids=["on one", "one with all processors"],
)  # fmt: skip
def test_inefficient_scaling_advises_fewer_gpus(
    smaller: tuple[MeasuredSize, ...], then: str, saves: str
) -> None:
    offer = replace(OFFER, cpus=8, gpus=4)
    job = replace(spec(cpus=4, gpus=4), resources=SIZES[2].resources)
    case = evidence(measured_attempt(train="10.00"), job=job, offer=offer, sizes=(*smaller, SIZES[2]))
    advice = made(scaling_inefficient(case))
    fewer = {"1": "1 GPU, 4 trials at once", "2": "2 GPUs, 2 trials at once"}[then]
    assert (
        advice.title
        == f"4 GPUs run at 61% efficiency: the same steps on {fewer}, would have cost {usd(saves)} less"
    )
    assert advice.saves == usd(saves)
    assert (advice.change.setting, advice.change.now, advice.change.then) == ("resources.gpus", "4", then)
    assert "scaling efficiency" not in {missing.what for missing in not_measured(case)}


def test_scaling_that_saves_nothing_gives_no_finding() -> None:
    job = replace(spec(), resources=SIZES[2].resources)
    attempt = measured_attempt(train="10.00")
    well = (*SIZES[:2], replace(SIZES[2], efficiency=Fraction(4, 5)))
    for sizes in ((), SIZES[:2], SIZES[2:], well, (SIZES[0], on_gpus(4, Fraction(61, 100), nodes=2))):
        assert scaling_inefficient(evidence(attempt, job=job, sizes=sizes)) is None
    assert "scaling efficiency" in {missing.what for missing in not_measured(evidence(attempt, job=job))}


def test_too_expensive_and_too_rare_checkpoints_are_reported() -> None:
    from tuner.domain.checkpointing import Hazard, InterruptionRisk

    exposures = {"spot": InterruptionRisk(preemption=Hazard.of_spot())}
    expensive = saved(1000, train="8.00", checkpoint="2.00")  # 7.2 s of training per stall of 1.8 s
    advice = made(checkpoint_interval(JobEvidence(**{**vars(expensive), "risks": exposures})))
    assert advice.kind == "checkpoints_expensive"
    assert re.match(r"A checkpoint every 7\.\d+ s of training, but \d+:\d\d min would be best$", advice.title)
    assert advice.change.setting == "checkpoint.interval"
    assert advice.saves is not None
    assert usd("1.00") < advice.saves <= usd("2.00")
    rare = saved(2, 3600, train="8.00", lost="1.00", checkpoint="0.01")
    advice = made(checkpoint_interval(JobEvidence(**{**vars(rare), "risks": exposures})))
    assert advice.kind == "checkpoints_too_rare"
    assert advice.change.setting == "checkpoint.interval"
    assert advice.saves is not None
    assert usd("0") < advice.saves <= usd("1.00")
    often = saved(100_000, train="8.00", checkpoint="2.00")
    advice = made(checkpoint_interval(JobEvidence(**{**vars(often), "risks": exposures})))
    assert advice.title.startswith("A checkpoint every 0.07")
    never = made(
        checkpoint_interval(JobEvidence(**{**vars(saved(0, train="8.00", lost="8.00")), "risks": exposures}))
    )
    assert "SpotSafe" in never.change.how
    fine = saved(20, train="8.00", lost="0.10", checkpoint="0.01")
    assert checkpoint_interval(JobEvidence(**{**vars(fine), "risks": exposures})) is None


def test_interval_is_not_advised_if_rungs_cause_the_saves() -> None:
    """Saves at rungs are frequent in spite of a long interval, also if the best interval is longer still."""
    from tuner.domain.checkpointing import Hazard, InterruptionRisk

    exposures = {"spot": InterruptionRisk(preemption=Hazard.of_spot())}
    often = saved(1000, 3600, train="8.00", checkpoint="2.00")
    advice = made(checkpoint_interval(JobEvidence(**{**vars(often), "risks": exposures})))
    assert (advice.kind, advice.change.setting) == ("checkpoints_expensive", "fidelity.min")
    whole = replace(often.spec, algorithm=Algorithm(scheduler="none"))
    assert checkpoint_interval(JobEvidence(**{**vars(often), "spec": whole, "risks": exposures})) is None
    # A save every 7.2 s, although the interval is 100 s. The best interval is 159 s.
    shorter = saved(1000, 100, train="8.00", checkpoint="2.00")
    advice = made(checkpoint_interval(JobEvidence(**{**vars(shorter), "risks": exposures})))
    assert (advice.kind, advice.change.setting) == ("checkpoints_expensive", "fidelity.min")


@pytest.mark.parametrize("interval_ns", [NS, 300 * NS, None])
def test_interval_is_not_advised_if_long_steps_make_saves_rare(interval_ns: int | None) -> None:
    """300 s is longer than the best interval, which is 251 s, but much shorter than the 4050 s between saves."""
    from tuner.domain.checkpointing import Hazard, InterruptionRisk

    rare = vars(saved(2, train="8.00", lost="1.00", checkpoint="0.01"))
    job = replace(rare["spec"], checkpoint=CheckpointPolicy(interval_ns=interval_ns))
    exposures = {"spot": InterruptionRisk(preemption=Hazard.of_spot())}
    assert checkpoint_interval(JobEvidence(**{**rare, "spec": job, "risks": exposures})) is None


def test_repeated_setup_is_reported() -> None:
    pieces = [measured_attempt(n, setup="0.30", train="1.00") for n in range(10)]
    advice = made(setup_expensive(evidence(*pieces, concurrency=2)))
    assert advice.saves == usd("2.40")
    assert "`prepare`" in advice.change.then
    assert (
        setup_expensive(evidence(*[measured_attempt(n, setup="0.10", train="1.00") for n in range(10)]))
        is None
    )


def test_budget_spent_mostly_on_setup_advises_a_larger_budget() -> None:
    pieces = measured_attempt(0, setup="0.30"), measured_attempt(1, setup="0.20")
    job = replace(spec(), budget=Budget(usd=usd("0.60")))
    advice = made(setup_expensive(evidence(*pieces, job=job, concurrency=2)))
    assert (advice.change.setting, advice.change.then, advice.saves) == ("budget.usd", "6", None)
    assert "100% of the money" in advice.title


def test_job_with_most_of_its_budget_left_is_not_advised_to_raise_it() -> None:
    job = replace(spec(), budget=Budget(usd=usd("2.00")))
    assert (
        setup_expensive(
            evidence(measured_attempt(0, setup="0.30"), measured_attempt(1, setup="0.20"), job=job)
        )
        is None
    )


def test_idle_machines_are_reported() -> None:
    assert made(idle_expensive(evidence(measured_attempt(idle="1.00", train="4.00")))).saves == usd("1.00")
    assert idle_expensive(evidence(measured_attempt(idle="0.40", train="4.00"))) is None


@pytest.mark.parametrize(
    ("scheduler", "sampler", "settings"),
    [
        ("none", "auto", ["algorithm.sampler"]),
        ("asha", "random", ["fidelity.min"]),
        ("asha", "qmc", ["fidelity.min"]),
        ("none", "grid", None),
    ],
)
def test_idle_machines_are_reported_with_changes_that_may_help(
    scheduler: SchedulerName, sampler: SamplerName, settings: list[str] | None
) -> None:
    idle = evidence(
        measured_attempt(idle="1.00", train="4.00"), job=spec(scheduler=scheduler, sampler=sampler)
    )
    advice = idle_expensive(idle)
    changes = [advice.change, *advice.alternatives] if advice else None
    assert (changes and [change.setting for change in changes]) == settings


@pytest.mark.parametrize(
    ("scheduler", "fidelity", "then"),
    [
        ("asha", Fidelity(min=1, max=9), "3"),
        ("asha", Fidelity(min=1, max=2), "2"),
        ("asha", Fidelity(min=4, max=4), None),
        ("asha", Fidelity(min=1), None),
        ("none", Fidelity(min=1, max=9), None),
        ("auto", Fidelity(min=1, max=120), "20"),  # its first rung is at step 10
    ],
)
def test_first_rung_is_raised_only_if_there_is_a_higher_one(
    scheduler: SchedulerName, fidelity: Fidelity, then: str | None
) -> None:
    job = spec(scheduler=scheduler, fidelity=fidelity)
    pieces = [measured_attempt(n, setup="0.50", idle="1.00", train="1.00") for n in range(10)]
    idle, setup = (made(rule(evidence(*pieces, job=job))) for rule in (idle_expensive, setup_expensive))
    for changes in ((idle.change, *idle.alternatives), setup.alternatives):
        advised = [change.then for change in changes if change.setting == "fidelity.min"]
        assert advised == ([] if then is None else [then])


def test_expensive_checkpoints_without_rungs_cause_no_advice_on_rungs() -> None:
    from tuner.domain.checkpointing import Hazard, InterruptionRisk

    expensive = vars(saved(1000, train="8.00", checkpoint="2.00"))
    exposures = {"spot": InterruptionRisk(preemption=Hazard.of_spot())}
    by_auto = replace(expensive["spec"], checkpoint=CheckpointPolicy())
    for scheduler, then in (("asha", "3"), ("none", None)):
        job = replace(by_auto, algorithm=Algorithm(scheduler=scheduler))
        advice = checkpoint_interval(JobEvidence(**{**expensive, "spec": job, "risks": exposures}))
        assert (advice and advice.change.then) == then


def test_budget_that_pays_for_enough_setups_is_not_advised() -> None:
    job = replace(spec(), budget=Budget(usd=usd("9.00")))
    setup = measured_attempt(0, setup="0.50"), measured_attempt(1, setup="4.50")
    assert made(setup_expensive(evidence(*setup, job=job))).change.then == "45"
    cheap = [measured_attempt(n, setup="0.25", train="0.20") for n in range(4)]
    small = replace(spec(), budget=Budget(usd=usd("3.00")))
    assert setup_expensive(evidence(*cheap, job=small)) is None


def self_test(*, passed: bool, reason: str = "") -> SelfTestRow:
    return SelfTestRow("m:f", "digest", passed, reason, "job_a", Instant(0))


def test_cheaper_spot_machines_are_advised() -> None:
    paid = evidence(measured_attempt(train="10.00"), spot=price("1.40"), self_test=self_test(passed=True))
    advice = made(spot_unused(paid))
    overhead = advice.evidence["interruption_overhead"]
    assert isinstance(overhead, Fraction)
    assert advice.saves is not None
    assert abs(advice.saves.usd - (10 - 3.5 * (1 + float(overhead)))) < 2e-6
    assert advice.confidence == "medium"
    assert (
        made(spot_unused(evidence(measured_attempt(train="10.00"), spot=price("1.40")))).confidence == "low"
    )
    failed = made(
        spot_unused(
            evidence(
                measured_attempt(train="10.00"),
                spot=price("1.40"),
                self_test=self_test(passed=False, reason="it forgets"),
            )
        )
    )
    assert "it forgets" in failed.change.how
    assert spot_unused(evidence(measured_attempt(train="10.00"))) is None  # the price is unknown
    assert spot_unused(evidence(measured_attempt(train="10.00"), spot=price("3.999"))) is None


def test_preemptions_costing_more_than_spot_saved_are_reported() -> None:
    first = measured_attempt(0, 1, hourly="3.00", market="spot", end="preempted", train="1.00", lost="3.00")
    again = measured_attempt(0, 2, hourly="3.00", market="spot", setup="1.00", train="1.00")
    advice = made(interruptions_expensive(evidence(first, again, job=spec(market="spot"))))
    assert advice.evidence["interruptions_usd"] == usd("4.00")
    assert advice.saves == Money(6_000_000 - 2 * -(-4_000_000 // 3))
    little = measured_attempt(0, 1, hourly="1.40", market="spot", end="preempted", train="5.00", lost="0.10")
    assert interruptions_expensive(evidence(little, job=spec(market="spot"))) is None


def test_traffic_between_regions_is_reported() -> None:
    usage = Usage(saved_bytes=50 * 10**9)
    apart = JobRegions("us-east-1", "eu-west-1", usd("0.02"), "a list")
    advice = made(regions_apart(evidence(measured_attempt(train="1.00", usage=usage), places=apart)))
    assert advice.saves == usd("1.00")
    unpriced = JobRegions("us-east-1", "eu-west-1")
    assert made(regions_apart(evidence(measured_attempt(usage=usage), places=unpriced))).saves is None
    for places in (
        JobRegions("us-east-1", "us-east-1"),
        JobRegions(None, "us-east-1"),
        JobRegions("us-east-1"),
    ):
        assert regions_apart(evidence(measured_attempt(usage=usage), places=places)) is None


def test_datasets_from_another_region_are_reported() -> None:
    usage = Usage(data_read_bytes=60 * 10**9, data_bucket_bytes=50 * 10**9)
    apart = JobRegions("us-east-1", data="eu-west-1", data_usd_per_gb=usd("0.02"))
    advice = made(data_apart(evidence(measured_attempt(train="1.00", usage=usage), places=apart)))
    assert (advice.saves, advice.change.then) == (usd("1.00"), "eu-west-1")
    unpriced = JobRegions("us-east-1", data="eu-west-1")
    assert made(data_apart(evidence(measured_attempt(usage=usage), places=unpriced))).saves is None
    for places in (
        JobRegions("us-east-1", data="US-east-1"),
        JobRegions(data="us-east-1"),
        JobRegions("us-east-1"),
    ):
        assert data_apart(evidence(measured_attempt(usage=usage), places=places)) is None
    unknown = not_measured(
        evidence(measured_attempt(usage=usage), places=JobRegions("us-east-1", "us-east-1"))
    )
    assert "datasets from another region" in {missing.what for missing in unknown}


def ranked(
    noise: float, steps: tuple[int, int, int] = (1, 3, 9), *, last: bool = True, trials: int = 40
) -> list[Any]:
    """Build trials whose metric at the first step predicts the one at the last only as well as the noise allows.

    Half as many are cut at the first step.
    """
    random, (early, between, final) = Random(3), steps
    curves = []
    for n in range(trials):
        end = random.random()
        first, middle = end + random.gauss(0, noise), end + random.gauss(0, 0.01)
        curves.append(
            curve({early: first, between: middle, final: end}, cut=False) if last else curve({early: first})
        )
        if n % 2:
            curves.append(curve({early: first}))
    return curves


def test_min_fidelity_that_does_not_predict_the_end_is_reported() -> None:
    advice = made(
        min_fidelity_misleads(evidence(measured_attempt(train="500.00"), curves=tuple(ranked(100.0))))
    )
    assert (advice.change.now, advice.change.then) == ("1", "3")
    assert advice.evidence["trials_cut"] == 20
    assert advice.saves is not None
    assert advice.saves <= usd("20")
    assert (
        min_fidelity_misleads(evidence(measured_attempt(train="500.00"), curves=tuple(ranked(0.01)))) is None
    )
    assert (
        min_fidelity_misleads(evidence(measured_attempt(train="500.00"), curves=tuple(ranked(100.0)[:9])))
        is None
    )


def test_first_rung_of_auto_that_does_not_predict_the_end_is_reported() -> None:
    """With `auto`, the first of 27 steps at which trials are compared is step 2, although `fidelity.min` is 1."""
    job = spec(scheduler="auto", fidelity=Fidelity(min=1, max=27))
    curves = tuple(ranked(100.0, (2, 4, 27)))
    advice = made(min_fidelity_misleads(evidence(measured_attempt(train="500.00"), job=job, curves=curves)))
    assert "at step 2 " in advice.title
    assert advice.change == replace(advice.change, setting="fidelity.min", now="1", then="4")
    assert advice.evidence["trials_cut"] == 20


@pytest.mark.parametrize(
    ("fidelity", "then"),
    [
        (Fidelity(min=8, max=27), "4"),
        (Fidelity(min=1, max=96), None),  # the first rung is at step 8 with every smaller `fidelity.min`
    ],
)
def test_earlier_rung_is_advised_only_if_auto_has_one_there(fidelity: Fidelity, then: str | None) -> None:
    job, last = spec(scheduler="auto", fidelity=fidelity), fidelity.max or 0
    curves = [*ranked(0.01, (4, 8, last)), *(curve({2: 0.1, 4: 0.1, 8: 0.1}) for _ in range(4))]
    advice = pruned_too_late(evidence(measured_attempt(train="500.00"), job=job, curves=tuple(curves)))
    assert (advice and advice.change.then) == then


def test_trials_stopped_later_than_necessary_are_reported() -> None:
    job = spec(fidelity=spec().fidelity.__class__(min=3, max=9))
    curves = [*ranked(0.01), *(curve({1: 0.1, 3: 0.1}) for _ in range(4))]
    advice = made(pruned_too_late(evidence(measured_attempt(train="500.00"), job=job, curves=tuple(curves))))
    assert (advice.change.setting, advice.change.then) == ("fidelity.min", "1")
    assert advice.saves == usd("8")
    assert (
        pruned_too_late(evidence(measured_attempt(train="500.00"), job=job, curves=tuple(ranked(100.0))))
        is None
    )
    whole = evidence(measured_attempt(train="500.00"), job=spec(scheduler="none"), curves=tuple(ranked(0.01)))
    advice = made(pruned_too_late(whole))
    assert advice.change.setting == "algorithm.scheduler"
    assert advice.saves == usd(str(26 * 8))  # 26 of 40 trials (all but the best 14) skip steps 2 to 9


@quick
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=30))
def test_rank_correlation_equals_that_of_scipy(pairs: list[tuple[int, int]]) -> None:
    from scipy.stats import spearmanr  # takes half a second

    advice, other = [float(a) for a, _ in pairs], [float(b) for _, b in pairs]
    ours = spearman(advice, other)
    if len(set(advice)) == 1 or len(set(other)) == 1:
        assert ours is None
    else:
        assert ours == pytest.approx(spearmanr(advice, other).statistic)


def with_change(job: JobSpec, change: AdvisedChange) -> JobSpec:
    """Return the job after a change of its rungs."""
    more = {name: int(step) for name, step in re.findall(r"fidelity\.(min|max): (\d+)", change.how)}
    if change.setting == "fidelity.min":
        more["min"] = int(change.then)
    scheduler: Any = change.then if change.setting == "algorithm.scheduler" else job.algorithm.scheduler
    fidelity = replace(job.fidelity, **more)
    return replace(job, fidelity=fidelity, algorithm=replace(job.algorithm, scheduler=scheduler))


@pytest.mark.parametrize("last", [9, None])
def test_scheduler_that_is_advised_to_a_job_without_rungs_has_rungs(last: int | None) -> None:
    job = spec(scheduler="none", fidelity=Fidelity(max=last))
    advice = made(
        pruned_too_late(evidence(measured_attempt(train="500.00"), job=job, curves=tuple(ranked(0.01))))
    )
    assert rungs_of(with_change(job, advice.change))[0] == 1


SECONDS = st.none() | st.sampled_from([0, NS, 60 * NS, 3600 * NS]) | st.integers(0, 10**13)
BYTES = st.none() | st.sampled_from([0, GIB, 10 * GIB]) | st.integers(0, 10**13)
FACTS = st.fixed_dictionaries(
    {"gpu_memory_bytes": st.just(40 * GIB)},
    optional={
        "precision": st.sampled_from(["fp32", "bf16"]),
        "gpu_capability": st.sampled_from(["7.0", "9.0", "x"]),
        "batch_size": st.integers(1, 64),
        "loader_workers": st.integers(0, 8),
    },
)
USAGES = st.builds(
    Usage,
    wall_ns=SECONDS,
    cpu_ns=SECONDS,
    memory_peak_bytes=BYTES,
    gpu_samples=st.none() | st.integers(0, 1000),
    gpu_percent=st.none() | st.integers(0, 10_000),
    gpu_memory_peak_bytes=BYTES,
    data_wait_ns=SECONDS,
    compute_ns=SECONDS,
    saves=st.none() | st.integers(0, 1000),
    saved_bytes=BYTES,
    facts=FACTS,
)
DOLLARS = st.integers(0, 10**7).map(lambda micro: str(Money(micro)).removeprefix("$"))
PIECES = st.builds(
    measured_attempt,
    st.integers(0, 3),
    st.integers(1, 3),
    market=st.sampled_from(["on_demand", "spot"]),
    hourly=st.sampled_from(["0", "0.5", "4.00"]),
    end=st.sampled_from(["completed", "preempted", "lost", None]),
    usage=st.none() | USAGES,
    setup=DOLLARS,
    restore=DOLLARS,
    train=DOLLARS,
    checkpoint=DOLLARS,
    lost=DOLLARS,
    idle=DOLLARS,
)
CURVES = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.booleans()), max_size=15).map(
    lambda rows: tuple(curve({1: a, 3: a, 9: b} if whole else {1: a}) for a, b, whole in rows)
)
JOBS = st.builds(
    spec,
    cpus=st.sampled_from([0.5, 1, 8]),
    gpus=st.sampled_from([0, 0.5, 1]),
    market=st.sampled_from(["on_demand", "spot_with_fallback"]),
    interval_ns=st.none() | st.just(60 * NS),
    scheduler=st.sampled_from(["asha", "auto", "none"]),
    sampler=st.sampled_from(["auto", "random", "grid"]),
)
CASES = st.builds(
    evidence,
    *[PIECES] * 3,
    job=JOBS,
    curves=CURVES,
    spot=st.none() | st.just(price("1.40")),
    demand=st.none() | st.just(price("4.00")),
    concurrency=st.integers(1, 4),
)


@examples(150, gate=60)
@given(CASES)
def test_findings_never_save_more_than_was_spent_and_have_evidence_and_text(case: JobEvidence) -> None:
    answers = findings(case)
    for advice in answers:
        assert advice.saves is None or Money(0) <= advice.saves <= case.spent
        amounts = [
            value
            for name, value in advice.evidence.items()
            if name.endswith("_usd") and isinstance(value, Money)
        ]
        assert (
            advice.saves is None
            or advice.saves <= max([*amounts, Money(0)])
            or advice.kind == "pruned_too_late"
        )
        assert any(value is not None for value in advice.evidence.values())
        assert advice.title
        for change in (advice.change, *advice.alternatives):
            assert change.setting
            assert change.then
            assert change.now != change.then
        assert advice.saves_note
        assert advice.verify
    known = [advice.saves for advice in answers if advice.saves is not None]
    assert known == sorted(known, reverse=True)
    assert [advice.saves is None for advice in answers] == sorted(advice.saves is None for advice in answers)


@examples(150, gate=60)
@given(
    CASES,
    st.sampled_from([0.01, 100.0]),
    st.sampled_from(
        [Fidelity(max=9), Fidelity(min=3, max=9), Fidelity(max=27), Fidelity(max=9, proxies={"size": (1, 2)})]
    ),
)
def test_job_is_valid_after_each_advised_change_of_its_rungs(
    case: JobEvidence, noise: float, fidelity: Fidelity
) -> None:
    job = replace(case.spec, fidelity=fidelity)
    assert not job.faults()
    last = fidelity.max or 0
    for advice in findings(replace(case, spec=job, curves=tuple(ranked(noise, (1, 3, last))))):
        for change in (advice.change, *advice.alternatives):
            if change.setting in ("fidelity.min", "algorithm.scheduler"):
                assert not with_change(job, change).faults()


@quick
@given(JOBS)
def test_job_without_measurements_gives_no_findings_but_lists_missing_data(job: Any) -> None:
    nothing = evidence(job=job)
    assert [rule(nothing) for rule in RULES] == [None] * len(RULES)
    what = {missing.what for missing in not_measured(nothing)}
    assert {"processor use", "waiting for data", "checkpoint interval", "data between regions"} <= what
    assert ("GPU utilisation" in what) == bool(job.resources.gpus)


def test_ranking_at_the_first_rung_is_not_missed_in_jobs_with_proxies() -> None:
    """Such jobs get no advice on `fidelity.min`, so measuring more trials would not lead to a finding."""
    with_proxies = spec(fidelity=Fidelity(min=1, max=9, proxies={"size": (16, 32)}))
    assert not with_proxies.faults()
    ranking = "whether fidelity.min predicts the final ranking"
    for job, is_missed in ((spec(), True), (with_proxies, False)):
        what = {missing.what for missing in not_measured(evidence(job=job))}
        assert (ranking in what) == is_missed


@quick
@given(st.integers(0, 40), st.integers(0, 9))
def test_saving_grows_with_gpu_idleness(percent: int, more: int) -> None:
    def saves(busy: int) -> Money:
        answer = gpu_underused(evidence(measured_attempt(train="8.00", usage=gpu_usage(busy))))
        return answer.saves or Money(0) if answer else Money(0)

    assert saves(percent) >= saves(percent + more)


@quick
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_saving_grows_with_idle_spend(micro: int, more: int) -> None:
    def saves(idled: int) -> Money:
        answer = idle_expensive(
            evidence(measured_attempt(train="1.00", idle=str(Money(idled)).removeprefix("$")))
        )
        return answer.saves or Money(0) if answer else Money(0)

    assert saves(micro) <= saves(micro + more)


def test_piece_duration_is_its_cost_divided_by_its_price() -> None:
    assert measured_attempt(train="4.00").ns("train") == HOUR
    assert measured_attempt(train="4.00", hourly="0").ns("train") == 0
