"""Estimates over REST: every figure computed again from what the answer says it was given, worked cases, and what is refused."""

import json
import math
import re
import shlex
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from typer.main import get_command
from typer.testing import CliRunner

from tests import fakes
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tuner.cli.job_yaml import JobYaml
from tuner.cli.main import app
from tuner.client import Client
from tuner.planning.accelerators import ACCELERATORS, accelerator
from tuner.schemas.estimates import EstimateRequest

service, client = fakes.fixtures("module")
GIB = 2**30


def ask(client: TestClient, **parts: Any) -> Any:
    answer = client.post("/v1/estimates", json=parts)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client: TestClient, **parts: Any) -> dict[str, str]:
    answer = client.post("/v1/estimates", json=parts)
    check_problem(answer, 422)
    return {one["pointer"]: one["detail"] for one in answer.json()["errors"]}


# Every figure from the stated inputs, by other code


def number(value: Any) -> Fraction:
    return Fraction(Decimal(str(value)))


def peak(name: str, memory: float, precision: str) -> tuple[Fraction, Fraction]:
    """Dense FLOP/s and bytes a second, of the data sheet."""
    sheet = accelerator(name, memory)
    assert sheet is not None
    tera = sheet.fp32_tflops if precision == "fp32" else sheet.half_tflops
    return tera * 10**12, Fraction(sheet.memory_gb_s) * 10**9


def rates(run: Mapping[str, Any], one: Mapping[str, Any]) -> list[Fraction]:
    """Least, counted on, most, of one GPU."""
    precision = run["model"]["precision"] if "model" in run else "bf16"
    name, memory = one["accelerator"], one["gpu_memory_gib"]
    if not run.get("throughput"):
        there, _ = peak(name, memory, one["fit"]["precision"] if one["fit"] else precision)
        shares = [run["utilisation"]] * 3 if "utilisation" in run else [0.21, 0.3, 0.46]
        return [there * number(share) for share in shares]
    (measured,) = run["throughput"]
    each = number(measured["per_second"]) / measured["gpus"]
    if accelerator(name, memory) is accelerator(measured["accelerator"]):
        assert one["basis"] == "measured"
        return [each] * 3
    assert one["basis"] == "catalogued"
    was = peak(measured["accelerator"], 0, precision)
    ratios = sorted(a / b for a, b in zip(peak(name, memory, precision), was, strict=True))
    least = ratios[0] * Fraction(3, 4)
    if ratios[0] >= 1:
        least = max(Fraction(1), least)
    if ratios == [1, 1]:
        least = Fraction(1)
    assert one["relative_speed"] == [round(float(x), 6) for x in (least, *ratios)]
    return [each * least, each * ratios[0], each * ratios[1]]


def efficiency(run: Mapping[str, Any], one: Mapping[str, Any], rate: Fraction) -> Fraction:
    measured = max((m["gpus"] for m in run.get("throughput", [])), default=1)
    k = one["gpus"]
    if k <= max(1, measured):
        return Fraction(1)
    if "scaling_efficiency" in run:
        return number(run["scaling_efficiency"])
    sheet, model = ACCELERATORS[one["accelerator"]], run["model"]
    both_ways, delay = (sheet.nvlink_gb_s, 5) if one["link"] == "nvlink" else (sheet.pcie_gb_s, 10)
    size = math.ceil(number(model["parameters"])) * (4 if model["precision"] == "fp32" else 2)
    talk = Fraction(2 * (k - 1), k) * size / (Fraction(both_ways, 2) * 10**9 * Fraction(7, 10))
    talk += 2 * (k - 1) * Fraction(delay, 10**6)
    step = model["batch"] / rate
    return step / (step + talk)


def paid_and_wall_s(run: Mapping[str, Any], train: Fraction) -> tuple[float, float, float]:
    """On spot: Daly 2006, eq. 20, and his interval."""
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


def check_candidate(run: Mapping[str, Any], one: Mapping[str, Any]) -> None:
    rate = rates(run, one)
    there = efficiency(run, one, rate[1])
    slower = Fraction(4, 3) if one["fit"] and "gradient_checkpointing" in one["fit"]["changes"] else 1
    if not run.get("throughput") and one["fit"] and one["fit"]["gradient_checkpointing"]:
        slower = Fraction(4, 3)
    count = number(run.get("samples", run.get("flops"))) * number(run["epochs"] if "samples" in run else 1)
    times = [count / (each * one["gpus"] * there / slower) for each in reversed(rate)]
    assert one["train_hours"] == pytest.approx(float(times[1] / 3600), abs=1e-6, rel=1e-9)
    assert one["efficiency"] == round(float(there), 6)
    price = number(one["usd_per_hour"])
    paid: list[Any] = times
    walls: list[Any] = times
    if one["market"] == "spot":
        met = [paid_and_wall_s(run, train) for train in times]
        paid, walls = [m[0] for m in met], [m[1] for m in met]
        more = 1.2816 * math.sqrt(met[2][0] * run["spot"]["interruptions_per_hour"] / 3600)
        save, restart, wait = (float(run["spot"][n].rstrip("s")) for n in ("checkpoint", "restore", "wait"))
        paid[2] += more * (restart + (met[2][2] + save) / 2)
        walls[2] += more * (restart + (met[2][2] + save) / 2 + wait)
        assert one["spot"]["checkpoint_interval_seconds"] == pytest.approx(met[1][2], rel=1e-6)
        assert one["spot"]["overhead"] == pytest.approx(paid[1] / float(times[1]) - 1, abs=2e-6)
    usd = [(Decimal(str(float(price))) * Decimal(float(s)) / 3600) for s in paid]
    for shown, computed in zip((one["usd_range"][0], one["usd"], one["usd_range"][1]), usd, strict=True):
        rounded = computed.quantize(Decimal("0.000001"), ROUND_CEILING)
        assert abs(Decimal(str(shown)) - rounded) <= max(Decimal("0.000001"), rounded * Decimal("1e-9"))
    assert one["hours"] == pytest.approx(float(walls[1]) / 3600, abs=1e-6, rel=1e-9)
    both = [float(walls[0]) / 3600, float(walls[2]) / 3600]
    assert one["hours_range"] == pytest.approx(both, abs=1e-6, rel=1e-9)
    if "samples" in run:
        assert one["per_dollar"] == pytest.approx(float(count) / one["usd"], rel=1e-6, abs=1e-6)
    check_memory(run, one)


def check_memory(run: Mapping[str, Any], one: Mapping[str, Any]) -> None:
    if "model" not in run:
        assert one["fit"] is None
        return
    model, fit = run["model"], one["fit"]
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
    assert total <= number(one["gpu_memory_gib"]) * GIB
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
        ).map(lambda one: [one]),
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
@settings(max_examples=20, deadline=None)
def test_every_figure_follows_from_what_the_answer_says_it_was_given(
    run: dict[str, Any], data: st.DataObject
) -> None:
    if "throughput" not in run:
        run = {**{name: value for name, value in run.items() if name != "samples"}, "flops": 3e18}
    if run["gpus"] != 1 and "model" not in run:
        run = {**run, "scaling_efficiency": 0.8}
    if "flops" in run and run["gpus"] != 1:
        run = {**run, "scaling_efficiency": 0.8}  # without samples nothing says what a step is
    with fakes.client_of(_service()) as client:
        found = ask(client, run=run)
    given, answer = found["given"]["run"], found["run"]
    every = [*answer["candidates"], *answer["with_changes"]]
    assert len(every) == min(300, answer["count"]) + min(300, answer["with_changes_count"])
    if every:
        for one in data.draw(st.lists(st.sampled_from(every), min_size=1, max_size=30)):
            check_candidate(given, one)
    costs = [one["usd"] for one in answer["candidates"]]
    assert costs == sorted(costs)
    if costs:
        assert answer["cheapest"]["usd"] == min(costs)
        assert answer["fastest"]["hours"] <= min(one["hours"] for one in answer["candidates"])


_KEPT: list[FakeService] = []


def _service() -> FakeService:
    return _KEPT[0]


@pytest.fixture(autouse=True)
def _keep(service: FakeService) -> None:
    _KEPT[:] = [service]


# Worked cases

HEAD = "cloud,region,instance_type,vcpus,accelerator,accelerator_count,gpu_memory_gib,on_demand_usd_h,on_demand_date\n"


def test_the_cheap_machine_wins_unless_it_is_too_late(
    service: FakeService, client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """$4.00 x 1 h against $1.40 x 2.2 h, with and without a deadline of 2 h."""
    file = tmp_path / "prices.csv"
    file.write_text(f"{HEAD}aws,here,fast,8,A100,1,40,4.00,2026-07\naws,here,slow,8,A10G,1,24,1.40,2026-07\n")
    monkeypatch.setattr(service.settings.__class__, "prices_path", property(lambda _: file))
    measured = [
        {"accelerator": "A100", "per_second": 1000},
        {"accelerator": "A10G", "per_second": 1000 / 2.2},
    ]
    run = {"samples": 3_600_000, "throughput": measured}
    free = ask(client, run=run)["run"]
    assert (free["cheapest"]["instance_type"], free["cheapest"]["usd"]) == ("slow", 3.080001)
    assert free["cheapest"]["hours"] == 2.2
    late = ask(client, run={**run, "deadline": "2h"})["run"]
    assert (late["cheapest_in_time"]["instance_type"], late["cheapest_in_time"]["usd"]) == ("fast", 4.0)
    assert late["cheapest"]["meets_deadline"] is False
    assert ask(client, run={**run, "deadline": "30m"})["run"]["cheapest_in_time"] is None


def test_the_same_choice_where_prices_and_times_are_known(client: TestClient) -> None:
    options = [
        {"name": "fast", "usd_per_hour": 4, "duration": "1h"},
        {"name": "slow", "usd_per_hour": 1.4, "duration": "2.2h"},
    ]
    free = ask(client, choices={"options": options})["choices"]
    assert [(one["name"], one["usd"]) for one in free["options"]] == [("slow", 3.08), ("fast", 4.0)]
    assert free["cheapest_in_time"] == "slow"
    late = ask(client, choices={"options": options, "deadline": "2h"})["choices"]
    assert (late["cheapest"], late["cheapest_in_time"]) == ("slow", "fast")


def test_eight_a100_for_72_hours_are_one_machine(client: TestClient) -> None:
    """At the list price of one p4d.24xlarge with its eight A100, not eight times that."""
    run = {
        "samples": 72 * 3600,
        "throughput": [{"per_second": 1, "accelerator": "A100", "gpus": 8}],
        "gpus": 8,
        "instance_types": ["p4d.24xlarge"],
        "regions": ["us-east-1"],
        "markets": ["on_demand"],
    }
    found = ask(client, run=run)["run"]
    (one,) = found["candidates"]
    assert (one["usd_per_hour"], one["hours"], one["gpu_hours"]) == (21.957642, 72, 576)
    assert one["usd"] == 1580.950224
    assert one["basis"] == "measured"
    single = ask(client, run={**run, "gpus": 1})["run"]["cheapest"]
    assert single["hours"] == 8 * 72
    assert single["usd"] == 8 * one["usd"]


def test_what_would_not_fit_is_left_out_and_what_would_with_changes_is_offered(client: TestClient) -> None:
    model = {
        "parameters": 1.3e9,
        "precision": "fp32",
        "batch": 16,
        "activation_mib_per_sample": 1500,
        "layers": 24,
    }
    run = {
        "samples": 1e6,
        "throughput": [{"per_second": 20, "accelerator": "A100"}],
        "model": model,
        "limit": 5000,
    }
    found = ask(client, run=run)["run"]
    need = found["memory_gib"]["total"]
    assert {one["gpu_memory_gib"] < need for one in found["candidates"]} == {False}
    assert {one["gpu_memory_gib"] < need for one in found["with_changes"]} == {True}
    assert any(one["fit"]["changes"] == ["accumulation"] for one in found["with_changes"])
    assert any("does not fit into 16 GiB" in left["reason"] for left in found["left_out"])
    smaller = ask(
        client, run={**run, "model": {**model, "precision": "bf16", "activation_mib_per_sample": 750}}
    )["run"]
    assert smaller["count"] > found["count"]


def test_spot_says_what_is_saved_with_its_overhead_and_what_its_price_is_worth(client: TestClient) -> None:
    run = {
        "samples": 1e7,
        "throughput": [{"per_second": 500, "instance_type": "p5.48xlarge", "gpus": 8}],
        "gpus": 8,
        "instance_types": ["p5.48xlarge"],
        "clouds": ["aws"],
        "limit": 5000,
    }
    found = ask(client, run=run)["run"]
    spot = [one for one in found["candidates"] if one["market"] == "spot"]
    assert all(one["hours"] > one["train_hours"] for one in spot)
    capped = [one for one in spot if "spot_at_on_demand_cap" in one["flags"]]
    assert capped
    assert all(one["spot"]["saving_usd"] < 0 for one in capped), "the same price, and interrupted"
    free = [one["spot"]["saving_usd"] for one in spot if one["spot"]["saving_usd"] is not None]
    assert max(free) > 0


def test_a_machine_without_gpus_is_timed_by_what_was_measured_on_it(client: TestClient) -> None:
    run = {
        "samples": 3600,
        "throughput": [{"per_second": 1, "instance_type": "t3.medium", "gpus": 0}],
        "gpus": 0,
    }
    found = ask(client, run=run)["run"]
    assert {one["instance_type"] for one in found["candidates"]} == {"t3.medium"}
    assert found["cheapest_on_demand"]["usd"] == pytest.approx(0.0416)
    assert any("no measurement" in left["reason"] for left in found["left_out"])


def test_a_year_of_the_run_that_is_described_beside_it(client: TestClient) -> None:
    run = {"tokens": 1e9, "model": {"parameters": 1e8, "precision": "bf16", "activation_mib_per_sample": 10}}
    found = ask(client, run=run, recurring={"runs_per_month": 4})
    by_name = {one["name"]: one for one in found["recurring"]}
    for name, one in by_name.items():
        assert one["usd_per_run"] == found["run"][name]["usd"]
        assert one["usd_per_year"] == pytest.approx(48 * one["usd_per_run"], abs=1e-6)
    first = by_name["cheapest_on_demand"]
    assert first["saving_usd_per_year"] is None
    saved = first["usd_per_year"] - by_name["cheapest"]["usd_per_year"]
    assert by_name["cheapest"]["saving_usd_per_year"] == pytest.approx(saved, abs=1e-6)


def test_dollars_buy_machine_hours_and_each_of_these_all_its_gpus(client: TestClient) -> None:
    found = ask(client, compute_optimal={"usd": 50_000, "accelerator": "A100", "utilisation": 0.4})[
        "compute_optimal"
    ]
    bought = found["bought"]
    assert bought["hours"] == pytest.approx(50_000 / bought["usd_per_hour"], abs=1e-6)
    flops = 50_000 / bought["usd_per_hour"] * 3600 * bought["accelerators"] * 312e12 * 0.4
    assert found["flops"] == pytest.approx(flops)
    best = found["optima"][0]
    assert 6 * best["parameters"] * best["tokens"] == pytest.approx(flops, rel=1e-6)
    assert "Besiroglu" in best["law"]
    assert found["caveats"]


def test_what_the_page_shows_is_answered(client: TestClient) -> None:
    page = (Path(__file__).parents[2] / "docs/estimates.md").read_text()
    shown: dict[str, Any] = {}
    for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        shown |= yaml.load(block, JobYaml)  # noqa: S506  a SafeLoader
    assert set(ask(client, **shown)) >= set(EstimateRequest.model_fields) == set(shown)
    (console,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    command = get_command(app).commands["estimate"]  # type: ignore[attr-defined]
    for line in console.splitlines():
        assert command.make_context("estimate", shlex.split(line)[2:])


def test_a_deadline_is_met_where_it_surely_is(client: TestClient) -> None:
    """What is counted on at 10 h may, from a data sheet alone and with interruptions, take longer."""
    run = {"samples": 3.6e6, "throughput": [{"per_second": 100, "accelerator": "A10G"}], "limit": 5000}
    found = ask(client, run={**run, "deadline": "10.5h"})["run"]
    for one in found["candidates"]:
        assert one["meets_deadline"] == (one["hours_range"][1] <= 10.5)
        assert one["meets_deadline_on_average"] == (one["hours"] <= 10.5)
    assert found["cheapest_in_time"]["meets_deadline"]
    on_spot = {"accelerators": ["A10G"], "markets": ["spot"], "deadline": "11.5h"}
    late = ask(client, run={**run, **on_spot})["run"]
    assert late["cheapest_in_time"] is None
    assert late["cheapest"]["meets_deadline_on_average"]
    assert "on average" in str(late["warnings"])


EXTREMES: list[dict[str, Any]] = [
    {"samples": 1e30, "throughput": [{"per_second": 1e-300, "accelerator": "A10G"}]},
    {"samples": 1e-300, "throughput": [{"per_second": 1e30, "accelerator": "A10G"}]},
    {**{"samples": 1e9, "throughput": [{"per_second": 10, "accelerator": "A10G"}]}, "spot": {"interruptions_per_hour": 60, "checkpoint": "30d", "restore": "30d"}},
    {**{"samples": 1e9, "throughput": [{"per_second": 10, "accelerator": "A10G"}]}, "spot": {"interruptions_per_hour": 1e-6, "checkpoint": 0, "restore": 0}},
    {"flops": 1e30, "utilisation": 1e-4, "gpus": "all"},
    {"tokens": 1e30, "model": {"parameters": 1e15, "batch": 10**9, "layers": 10**9, "hidden": 10**9, "heads": 10**9, "sequence": 10**9}},
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(EXTREMES)))
def test_extremes_are_answered_or_left_out(client: TestClient, number: int) -> None:
    json.dumps(ask(client, run=EXTREMES[number]), allow_nan=False)


# What is refused

RUN = {"samples": 1e6, "throughput": [{"per_second": 100, "accelerator": "A10G"}]}
OWNED = {"purchase_usd": 1000, "watts": 300, "usd_per_kwh": 0.2, "utilisation": 0.5}
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "nothing": ({}, "", "at least one of run"),
    "accelerator": ({"run": {**RUN, "accelerators": ["A10", "H1000"]}}, "/run/accelerators/1", "H100"),
    "instance": ({"run": {**RUN, "instance_types": ["g5.xlarg"]}}, "/run/instance_types/0", "g5.xlarge"),
    "region": ({"run": {**RUN, "regions": ["us-eest-1"]}}, "/run/regions/0", "us-east-1"),
    "cloud": ({"run": {**RUN, "clouds": ["gpc"]}}, "/run/clouds/0", "gcp"),
    "nowhere": ({"run": {**RUN, "clouds": ["lambda"], "regions": ["us-east-2"]}}, "", ""),
    "measured on": (
        {"run": {"samples": 1, "throughput": [{"per_second": 1, "accelerator": "A10Q"}]}},
        "/run/throughput/0/accelerator",
        "A10G",
    ),
    "measured nowhere": ({"run": {"samples": 1, "throughput": [{"per_second": 1}]}}, "/run/throughput/0", "name"),
    "gpus of one": ({"run": {**RUN, "gpus": 9, "instance_types": ["p4d.24xlarge"]}}, "/run/gpus", "p4d.24xlarge has 8"),
    "gpus of all": ({"run": {**RUN, "gpus": 17}}, "/run/gpus", "8, 16"),
    "measured gpus": (
        {"run": {"samples": 1, "throughput": [{"per_second": 1, "instance_type": "g5.xlarge", "gpus": 4}]}},
        "/run/throughput/0/gpus",
        "g5.xlarge has 1",
    ),
    "deadline": ({"run": {**RUN, "deadline": "0s"}}, "/run/deadline", "longer than 0"),
    "past": ({"run": {**RUN, "deadline": "2001-01-01T00:00:00Z"}}, "/run/deadline", "has passed"),
    "negative deadline": ({"run": {**RUN, "deadline": -5}}, "/run/deadline", "has passed"),
    "no time": ({"run": {**RUN, "deadline": "soon"}}, "/run/deadline", "90s"),
    "resale": (
        {"ownership": {**OWNED, "resale_usd": 2000, "cloud_usd_per_hour": 1}},
        "/ownership/resale_usd",
        "more than",
    ),
    "negative": ({"run": {**RUN, "samples": -1}}, "/run/samples", "greater than 0"),
    "no market": ({"run": {**RUN, "markets": []}}, "/run/markets", "on_demand"),
    "no work": ({"run": {"throughput": RUN["throughput"]}}, "/run", "samples"),
    "no speed": ({"run": {"samples": 5}}, "/run/throughput", "throughput"),
    "no activations": ({"run": {**RUN, "model": {"parameters": 1e6}}}, "/run/model", "activation_mib_per_sample"),
    "negative size": (
        {"run": {**RUN, "model": {"parameters": -1}}},
        "/run/model/parameters",
        "greater than or equal to 1",
    ),
    "scaling": ({"scaling": {"accelerator": "H10", "parameters": 1, "step_seconds": 1}}, "/scaling/accelerator", "H100"),
    "compute": ({"compute_optimal": {}}, "/compute_optimal", "flops"),
    "recurring": ({"recurring": {"runs_per_month": 1}}, "/recurring", "costs"),
    "choice": (
        {"choices": {"options": [{"name": "a", "usd_per_hour": 1, "duration": "0h"}]}},
        "/choices/options/0/duration",
        "longer than 0",
    ),
    "no price": (
        {"compute_optimal": {"usd": 5, "accelerator": "A6000", "market": "spot"}},
        "/compute_optimal/accelerator",
        "no price",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named_with_the_mend(client: TestClient, name: str) -> None:
    parts, pointer, says = BAD[name]
    faults = refused(client, **parts)
    if name == "nowhere":
        assert "lambda" in str(faults)
        return
    assert says in faults[pointer]


def test_owning_more_gpus_than_any_machine_has_is_refused(client: TestClient) -> None:
    assert "cloud_usd_per_hour" in str(refused(client, ownership=OWNED))
    assert (
        "no machine has 17"
        in refused(client, ownership={**OWNED, "accelerator": "A100", "gpus": 17})["/ownership/gpus"]
    )


# The command line


def tuner(client: TestClient, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    made = Client("http://tuner", fakes.KEY, transport=client._transport)
    monkeypatch.setattr("tuner.cli.estimate.Client", lambda: made)
    result = CliRunner().invoke(app, ["estimate", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_prints_what_rest_answers(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    parts = {
        "run": RUN,
        "choices": {"options": [{"name": "a", "usd_per_hour": 1, "duration": "1h"}]},
        "scaling": {"accelerator": "H100", "parameters": 1e9, "step_seconds": 0.5, "hours_on_one": 10},
        "compute_optimal": {"flops": 1e20},
        "recurring": {"runs_per_month": 2},
        "ownership": {
            "purchase_usd": 30_000,
            "watts": 700,
            "usd_per_kwh": 0.2,
            "utilisation": 0.5,
            "cloud_usd_per_hour": 3,
        },
    }
    file.write_text(yaml.safe_dump(parts))
    assert json.loads(tuner(client, monkeypatch, str(file), "--json")) == ask(client, **parts)
    shown = tuner(client, monkeypatch, str(file))
    for word in ("cheapest", "nvlink", "Besiroglu", "a year", "owning pays", "assumed"):
        assert word in shown
    words = ("--samples", "1e6", "--throughput", "100@A10G", "--deadline", "10h", "--gpus", "1", "--json")
    assert json.loads(tuner(client, monkeypatch, *words)) == ask(
        client, run={**RUN, "gpus": 1, "deadline": "10h"}
    )


@pytest.mark.parametrize("text", ["850", "fast@A10G", "850@"])
def test_a_speed_that_is_none_is_wrong_usage(text: str) -> None:
    result = CliRunner().invoke(app, ["estimate", "--throughput", text])
    assert result.exit_code == 2
    assert "850@A10G" in result.output
