"""Recompute every figure of an estimate with separate code from the inputs stated in the answer."""

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import fakes
from tests.api.test_estimates import ask
from tests.fakes import FakeService
from tests.strategies import examples
from tuner.planning.accelerators import ACCELERATORS, accelerator

service, client = fakes.fixtures("module")
GIB = 2**30


def number(value: Any) -> Fraction:
    return Fraction(Decimal(str(value)))


def peak(name: str, memory: float, precision: str) -> tuple[Fraction, Fraction]:
    """Return the data sheet's dense FLOP/s and memory bandwidth in bytes/s."""
    sheet = accelerator(name, memory)
    assert sheet is not None
    tera = sheet.fp32_tflops if precision == "fp32" else sheet.half_tflops
    return tera * 10**12, Fraction(sheet.memory_gb_s) * 10**9


def rates(run: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[Fraction]:
    """Return the lowest, expected and highest rate of one GPU."""
    precision = run["model"]["precision"] if "model" in run else "bf16"
    name, memory = candidate["accelerator"], candidate["gpu_memory_gib"]
    if not run.get("throughput"):
        there, _ = peak(name, memory, candidate["fit"]["precision"] if candidate["fit"] else precision)
        shares = [run["utilisation"]] * 3 if "utilisation" in run else [0.21, 0.3, 0.46]
        return [there * number(share) for share in shares]
    (measured,) = run["throughput"]
    each = number(measured["per_second"]) / measured["gpus"]
    if accelerator(name, memory) is accelerator(measured["accelerator"]):
        assert candidate["basis"] == "measured"
        return [each] * 3
    assert candidate["basis"] == "catalogued"
    was = peak(measured["accelerator"], 0, precision)
    ratios = sorted(a / b for a, b in zip(peak(name, memory, precision), was, strict=True))
    least = ratios[0] * Fraction(3, 4)
    if ratios[0] >= 1:
        least = max(Fraction(1), least)
    if ratios == [1, 1]:
        least = Fraction(1)
    assert candidate["relative_speed"] == [round(float(x), 6) for x in (least, *ratios)]
    return [each * least, each * ratios[0], each * ratios[1]]


def efficiency(run: Mapping[str, Any], candidate: Mapping[str, Any], rate: Fraction) -> Fraction:
    measured = max((m["gpus"] for m in run.get("throughput", [])), default=1)
    k = candidate["gpus"]
    if k <= max(1, measured):
        return Fraction(1)
    if "scaling_efficiency" in run:
        return number(run["scaling_efficiency"])
    sheet, model = ACCELERATORS[candidate["accelerator"]], run["model"]
    both_ways, delay = (sheet.nvlink_gb_s, 5) if candidate["link"] == "nvlink" else (sheet.pcie_gb_s, 10)
    size = math.ceil(number(model["parameters"])) * (4 if model["precision"] == "fp32" else 2)
    talk = Fraction(2 * (k - 1), k) * size / (Fraction(both_ways, 2) * 10**9 * Fraction(7, 10))
    talk += 2 * (k - 1) * Fraction(delay, 10**6)
    step = model["batch"] / rate
    return step / (step + talk)


def paid_and_wall_s(run: Mapping[str, Any], train: Fraction) -> tuple[float, float, float]:
    """Return the paid seconds, wall-clock seconds and checkpoint interval on spot (Daly 2006, eq. 20)."""
    terms = run["spot"]
    mean = 3600 / terms["interruptions_per_hour"]
    save, restart, wait = (float(terms[name].rstrip("s")) for name in ("checkpoint", "restore", "wait"))
    root = math.sqrt(save / (2 * mean))
    best = mean if save >= 2 * mean else 2 * mean * (root - 2 / 3 * root**2 + root**3 / 9)
    interval = max(1.0, min(float(train), best))
    paid = (
        mean * math.exp(restart / mean) * (math.exp((interval + save) / mean) - 1) * float(train) / interval
    )
    return paid, paid + paid / mean * wait, interval


def check_candidate(run: Mapping[str, Any], candidate: Mapping[str, Any]) -> None:
    rate = rates(run, candidate)
    there = efficiency(run, candidate, rate[1])
    slower = (
        Fraction(4, 3) if candidate["fit"] and "gradient_checkpointing" in candidate["fit"]["changes"] else 1
    )
    if not run.get("throughput") and candidate["fit"] and candidate["fit"]["gradient_checkpointing"]:
        slower = Fraction(4, 3)
    count = number(run.get("samples", run.get("flops"))) * number(run["epochs"] if "samples" in run else 1)
    times = [count / (each * candidate["gpus"] * there / slower) for each in reversed(rate)]
    assert candidate["train_hours"] == pytest.approx(float(times[1] / 3600), abs=1e-6, rel=1e-9)
    assert candidate["efficiency"] == round(float(there), 6)
    price = number(candidate["usd_per_hour"])
    paid: list[Any] = times
    walls: list[Any] = times
    if candidate["market"] == "spot":
        met = [paid_and_wall_s(run, train) for train in times]
        paid, walls = [m[0] for m in met], [m[1] for m in met]
        more = 1.2816 * math.sqrt(met[2][0] * run["spot"]["interruptions_per_hour"] / 3600)
        save, restart, wait = (float(run["spot"][n].rstrip("s")) for n in ("checkpoint", "restore", "wait"))
        paid[2] += more * (restart + (met[2][2] + save) / 2)
        walls[2] += more * (restart + (met[2][2] + save) / 2 + wait)
        assert candidate["spot"]["checkpoint_interval_seconds"] == pytest.approx(met[1][2], rel=1e-6)
        assert candidate["spot"]["overhead"] == pytest.approx(paid[1] / float(times[1]) - 1, abs=2e-6)
    usd = [(Decimal(str(float(price))) * Decimal(float(s)) / 3600) for s in paid]
    for shown, computed in zip(
        (candidate["usd_range"][0], candidate["usd"], candidate["usd_range"][1]), usd, strict=True
    ):
        rounded = computed.quantize(Decimal("0.000001"), ROUND_CEILING)
        assert abs(Decimal(str(shown)) - rounded) <= max(Decimal("0.000001"), rounded * Decimal("1e-9"))
    assert candidate["hours"] == pytest.approx(float(walls[1]) / 3600, abs=1e-6, rel=1e-9)
    both = [float(walls[0]) / 3600, float(walls[2]) / 3600]
    assert candidate["hours_range"] == pytest.approx(both, abs=1e-6, rel=1e-9)
    if "samples" in run:
        assert candidate["per_dollar"] == pytest.approx(float(count) / candidate["usd"], rel=1e-6, abs=1e-6)
    check_memory(run, candidate)


def check_memory(run: Mapping[str, Any], candidate: Mapping[str, Any]) -> None:
    if "model" not in run:
        assert candidate["fit"] is None
        return
    model, fit = run["model"], candidate["fit"]
    half = fit["precision"] != "fp32"
    states = {"sgd": 0, "momentum": 4, "adamw": 8}[model["optimizer"]] + (4 if half else 0)
    each = math.ceil(number(model["activation_mib_per_sample"]) * 2**20)
    if half and model["precision"] == "fp32":
        each = math.ceil(each / 2)
    if fit["gradient_checkpointing"] and model["layers"] >= 4:
        cuts = math.isqrt(model["layers"])
        each = math.ceil(Fraction(each, cuts) + Fraction(each * cuts, model["layers"]))
    parameters = math.ceil(number(model["parameters"]))
    inside = parameters * (2 * (2 if half else 4) + states) + each * fit["micro_batch"]
    total = inside + GIB + math.ceil(inside / 10)
    assert fit["memory_gib"]["total"] == pytest.approx(total / GIB, abs=1e-6)
    assert total <= number(candidate["gpu_memory_gib"]) * GIB
    assert fit["accumulation"] == math.ceil(model["batch"] / fit["micro_batch"])
    changed = set()
    if fit["precision"] != model["precision"]:
        changed.add(fit["precision"])
    if fit["accumulation"] > 1:
        changed.add("accumulation")
    if fit["gradient_checkpointing"] and not model["gradient_checkpointing"]:
        changed.add("gradient_checkpointing")
    assert set(fit["changes"]) == changed


runs = st.fixed_dictionaries(
    {
        "samples": st.floats(1e3, 1e9),
        "epochs": st.floats(1, 100),
        "gpus": st.sampled_from([1, 1, 2, 4, 8, "all"]),
        "spot": st.fixed_dictionaries(
            {
                "interruptions_per_hour": st.floats(0.01, 3),
                "checkpoint": st.just("8s"),
                "restore": st.just("95.5s"),
                "wait": st.just("400s"),
            }
        ),
        "limit": st.just(300),
    },
    optional={
        "throughput": st.fixed_dictionaries(
            {
                "per_second": st.floats(10, 1e5),
                "accelerator": st.sampled_from(["A10G", "A100", "T4", "H100"]),
                "gpus": st.sampled_from([1, 4]),
            }
        ).map(lambda throughput: [throughput]),
        "utilisation": st.floats(0.05, 0.9),
        "scaling_efficiency": st.floats(0.5, 1),
        "model": st.fixed_dictionaries(
            {
                "parameters": st.floats(1e6, 5e9),
                "optimizer": st.sampled_from(["sgd", "momentum", "adamw"]),
                "precision": st.sampled_from(["fp32", "bf16", "fp16"]),
                "batch": st.integers(1, 256),
                "activation_mib_per_sample": st.floats(1, 2000),
                "layers": st.sampled_from([1, 12, 48]),
                "gradient_checkpointing": st.booleans(),
            }
        ),
    },
)


@given(runs, st.data())
@examples(20)
def test_every_figure_follows_from_the_inputs_stated_in_the_answer(
    run: dict[str, Any], data: st.DataObject
) -> None:
    if "throughput" not in run:
        run = {**{name: value for name, value in run.items() if name != "samples"}, "flops": 3e18}
    if run["gpus"] != 1 and "model" not in run:
        run = {**run, "scaling_efficiency": 0.8}
    if "flops" in run and run["gpus"] != 1:
        run = {**run, "scaling_efficiency": 0.8}  # without samples, the size of a step is unknown
    with fakes.client_of(_service()) as client:
        estimate = ask(client, run=run)
    given, answer = estimate["given"]["run"], estimate["run"]
    every = [*answer["candidates"], *answer["with_changes"]]
    assert len(every) == min(300, answer["count"]) + min(300, answer["with_changes_count"])
    if every:
        for candidate in data.draw(st.lists(st.sampled_from(every), min_size=1, max_size=30)):
            check_candidate(given, candidate)
    costs = [priced_candidate["usd"] for priced_candidate in answer["candidates"]]
    assert costs == sorted(costs)
    if costs:
        assert answer["cheapest"]["usd"] == min(costs)
        assert answer["fastest"]["hours"] <= min(
            timed_candidate["hours"] for timed_candidate in answer["candidates"]
        )


_KEPT: list[FakeService] = []


def _service() -> FakeService:
    return _KEPT[0]


@pytest.fixture(autouse=True)
def _keep(service: FakeService) -> None:
    _KEPT[:] = [service]
