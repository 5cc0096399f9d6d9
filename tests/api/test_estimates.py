"""Estimates over REST: worked examples and refused requests."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient
from typer.main import get_command
from typer.testing import CliRunner

from tests import fakes
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tuner.cli.job_yaml import JobYaml
from tuner.cli.main import app
from tuner.client import Client
from tuner.domain.money import Price
from tuner.planning.serving import ReplicaSpeed, serving_cost
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
    return {error["pointer"]: error["detail"] for error in answer.json()["errors"]}


# Worked examples

HEAD = "cloud,region,instance_type,vcpus,accelerator,accelerator_count,gpu_memory_gib,on_demand_usd_h,on_demand_date\n"


def test_cheaper_machine_wins_unless_it_misses_the_deadline(
    service: FakeService, client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare $4.00 x 1 h with $1.40 x 2.2 h, with and without a deadline of 2 h."""
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


def test_run_of_known_hours_costs_hours_times_the_machine_price(
    service: FakeService, client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(
        f"{HEAD}aws,here,eight,96,A100,8,40,21.95764,2026-07\naws,here,one,8,A100,1,40,4.00,2026-07\n"
    )
    monkeypatch.setattr(service.settings.__class__, "prices_path", property(lambda _: file))
    run = {"hours": 72, "gpus": 8, "accelerators": ["A100"], "markets": ["on_demand"]}
    (candidate,) = ask(client, run=run)["run"]["candidates"]
    assert (candidate["instance_type"], candidate["hours"]) == ("eight", 72)
    assert candidate["usd"] == pytest.approx(72 * 21.95764, abs=1e-6)
    assert (candidate["gpu_hours"], candidate["basis"]) == (576, "measured")
    by_speed = {"samples": 259_200, "throughput": [{"per_second": 1, "accelerator": "A100", "gpus": 8}]}
    del run["hours"]
    assert ask(client, run={**run, **by_speed})["run"]["candidates"][0]["usd"] == candidate["usd"]
    on_one = {"hours": 72, "instance_types": ["eight"], "markets": ["on_demand"]}
    assert ask(client, run=on_one)["run"]["cheapest"]["usd"] == candidate["usd"], "whole machines are billed"


def test_choice_between_options_of_known_price_and_duration_respects_deadline(client: TestClient) -> None:
    options = [
        {"name": "fast", "usd_per_hour": 4, "duration": "1h"},
        {"name": "slow", "usd_per_hour": 1.4, "duration": "2.2h"},
    ]
    free = ask(client, choices={"options": options})["choices"]
    assert [(option["name"], option["usd"]) for option in free["options"]] == [("slow", 3.08), ("fast", 4.0)]
    assert free["cheapest_in_time"] == "slow"
    late = ask(client, choices={"options": options, "deadline": "2h"})["choices"]
    assert (late["cheapest"], late["cheapest_in_time"]) == ("slow", "fast")


def test_serving_costs_what_a_share_of_each_machine_costs(
    service: FakeService, client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of 2 ms on one of four CPUs for $0.40: below the break-even rate of 1 / 12 s it scales to zero."""
    file = tmp_path / "prices.csv"
    file.write_text(
        f"{HEAD}aws,here,four,4,,,,0.40,2026-07\naws,here,big,16,,,,3.20,2026-07\naws,here,gpu,8,T4,1,16,0.80,2026-07\n"
    )
    monkeypatch.setattr(service.settings.__class__, "prices_path", property(lambda _: file))
    model = {"latency_ms": 2, "batch_per_second": 4000, "bytes": 125_000_000, "load_ms": 1000}
    for rate, cheaper in ((0.08, "scale_to_zero"), (0.09, "real_time"), (2000, "real_time")):
        serving = ask(client, serving={**model, "requests_per_second": rate, "markets": ["on_demand"]})[
            "serving"
        ]
        assert (serving["count"], serving["cold_start_seconds"], serving["per_second"]) == (2, 12, 500)
        best, _ = serving["candidates"]
        cost = serving_cost(
            ReplicaSpeed(0.002, 500, 4000), Price.from_usd_per_hour(0.1), per_second=rate, cold_start_s=12
        )
        assert (best["instance_type"], best["usd_per_hour"], best["cheaper"]) == ("four", 0.1, cheaper)
        assert best["real_time_usd_per_million"] == pytest.approx(cost.real_time, abs=1e-6)
        assert best["batch_usd_per_million"] == pytest.approx(cost.batch, abs=1e-6)
        assert best["break_even_per_second"] == pytest.approx(1 / 12, abs=1e-6)
        assert best["replicas"] == cost.replicas
        assert best["usd_per_month"] == pytest.approx(
            best["usd_per_million"] * rate * 730 * 3600 / 1e6, rel=1e-4
        )
        assert serving["cheapest_batch"] == serving["cheapest_real_time"] == best
        assert serving["cheapest_scale_to_zero"] == (None if rate == 2000 else best)
    assert serving["left_out"][0]["instance_types"] == ["gpu"]
    on_gpu = ask(client, serving={"per_second": 900, "gpus": 1, "accelerators": ["T4"]})["serving"]
    assert [
        (candidate["instance_type"], candidate["usd_per_hour"]) for candidate in on_gpu["candidates"]
    ] == [("gpu", 0.8)]
    too_large = ask(client, serving={**model, "gpus": 1, "accelerators": ["T4"], "bytes": 17 * GIB})[
        "serving"
    ]
    assert too_large["candidates"] == []
    assert "larger than the memory of the machine" in too_large["left_out"][0]["reason"]


def test_runs_that_fit_only_with_changes_are_listed_separately(client: TestClient) -> None:
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
    estimate = ask(client, run=run)["run"]
    need = estimate["memory_gib"]["total"]
    assert {candidate["gpu_memory_gib"] < need for candidate in estimate["candidates"]} == {False}
    assert {candidate["gpu_memory_gib"] < need for candidate in estimate["with_changes"]} == {True}
    assert any(candidate["fit"]["changes"] == ["accumulation"] for candidate in estimate["with_changes"])
    assert any("does not fit into 16 GiB" in left["reason"] for left in estimate["left_out"])
    smaller = ask(
        client, run={**run, "model": {**model, "precision": "bf16", "activation_mib_per_sample": 750}}
    )["run"]
    assert smaller["count"] > estimate["count"]


def test_spot_saving_includes_overhead_and_is_negative_at_the_on_demand_price(client: TestClient) -> None:
    run = {
        "samples": 1e7,
        "throughput": [{"per_second": 500, "instance_type": "p5.48xlarge", "gpus": 8}],
        "gpus": 8,
        "instance_types": ["p5.48xlarge"],
        "clouds": ["aws"],
        "limit": 5000,
    }
    estimate = ask(client, run=run)["run"]
    spot = [candidate for candidate in estimate["candidates"] if candidate["market"] == "spot"]
    assert all(candidate["hours"] > candidate["train_hours"] for candidate in spot)
    capped = [candidate for candidate in spot if "spot_at_on_demand_cap" in candidate["flags"]]
    assert capped
    assert all(candidate["spot"]["saving_usd"] < 0 for candidate in capped), "the same price, and interrupted"
    free = [
        candidate["spot"]["saving_usd"] for candidate in spot if candidate["spot"]["saving_usd"] is not None
    ]
    assert max(free) > 0


def test_machine_without_gpus_needs_a_measurement_on_it(client: TestClient) -> None:
    run = {
        "samples": 3600,
        "throughput": [{"per_second": 1, "instance_type": "t3.medium", "gpus": 0}],
        "gpus": 0,
    }
    estimate = ask(client, run=run)["run"]
    assert {candidate["instance_type"] for candidate in estimate["candidates"]} == {"t3.medium"}
    assert estimate["cheapest_on_demand"]["usd"] == pytest.approx(0.0416)
    assert any("speed is not known" in left["reason"] for left in estimate["left_out"])


def test_yearly_cost_follows_from_the_run_in_the_same_request(client: TestClient) -> None:
    run = {"tokens": 1e9, "model": {"parameters": 1e8, "precision": "bf16", "activation_mib_per_sample": 10}}
    estimate = ask(client, run=run, recurring={"runs_per_month": 4})
    by_name = {recurring_cost["name"]: recurring_cost for recurring_cost in estimate["recurring"]}
    for name, yearly_cost in by_name.items():
        assert yearly_cost["usd_per_run"] == estimate["run"][name]["usd"]
        assert yearly_cost["usd_per_year"] == pytest.approx(48 * yearly_cost["usd_per_run"], abs=1e-6)
    first = by_name["cheapest_on_demand"]
    assert first["saving_usd_per_year"] is None
    saved = first["usd_per_year"] - by_name["cheapest"]["usd_per_year"]
    assert by_name["cheapest"]["saving_usd_per_year"] == pytest.approx(saved, abs=1e-6)


def test_compute_optimal_budget_buys_whole_machine_hours(client: TestClient) -> None:
    estimate = ask(client, compute_optimal={"usd": 50_000, "accelerator": "A100", "utilisation": 0.4})[
        "compute_optimal"
    ]
    bought = estimate["bought"]
    assert bought["hours"] == pytest.approx(50_000 / bought["usd_per_hour"], abs=1e-6)
    flops = 50_000 / bought["usd_per_hour"] * 3600 * bought["accelerators"] * 312e12 * 0.4
    assert estimate["flops"] == pytest.approx(flops)
    best = estimate["optima"][0]
    assert 6 * best["parameters"] * best["tokens"] == pytest.approx(flops, rel=1e-6)
    assert "Besiroglu" in best["law"]
    assert estimate["caveats"]


def test_examples_in_the_docs_are_answered(client: TestClient) -> None:
    page = (Path(__file__).parents[2] / "docs/estimates.md").read_text()
    shown: dict[str, Any] = {}
    for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        shown |= yaml.load(block, JobYaml)  # noqa: S506  a SafeLoader
    assert set(ask(client, **shown)) >= set(EstimateRequest.model_fields) == set(shown)
    (console,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    command = get_command(app).commands["estimate"]  # type: ignore[attr-defined]
    for line in console.splitlines():
        assert command.make_context("estimate", shlex.split(line)[2:])


def test_deadline_is_met_only_if_the_slowest_estimate_meets_it(client: TestClient) -> None:
    """A machine expected to take 10 h may take longer if only a data sheet is known or interruptions occur."""
    run = {"samples": 3.6e6, "throughput": [{"per_second": 100, "accelerator": "A10G"}], "limit": 5000}
    estimate = ask(client, run={**run, "deadline": "10.5h"})["run"]
    for candidate in estimate["candidates"]:
        assert candidate["meets_deadline"] == (candidate["hours_range"][1] <= 10.5)
        assert candidate["meets_deadline_on_average"] == (candidate["hours"] <= 10.5)
    assert estimate["cheapest_in_time"]["meets_deadline"]
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
def test_extreme_inputs_get_finite_figures(client: TestClient, number: int) -> None:
    json.dumps(ask(client, run=EXTREMES[number]), allow_nan=False)


# Refused requests

RUN = {"samples": 1e6, "throughput": [{"per_second": 100, "accelerator": "A10G"}]}
OWNED = {"purchase_usd": 1000, "watts": 300, "usd_per_kwh": 0.2, "utilisation": 0.5}
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "nothing": ({}, "", "at least one of run"),
    "accelerator": ({"run": {**RUN, "accelerators": ["A10", "H1000"]}}, "/run/accelerators/1", "H100"),
    "instance": ({"run": {**RUN, "instance_types": ["g5.xlarg"]}}, "/run/instance_types/0", "g5.xlarge"),
    "region": ({"run": {**RUN, "regions": ["us-eest-1"]}}, "/run/regions/0", "us-east-1"),
    "cloud": ({"run": {**RUN, "clouds": ["gpc"]}}, "/run/clouds/0", "gcp"),
    "nowhere": ({"run": {**RUN, "clouds": ["lambda"], "regions": ["us-east-2"]}}, "/run", "clouds lambda, regions us-east-2"),
    "hours of any machine": ({"run": {"hours": 72}}, "/run/hours", "name one machine"),
    "hours of two machines": (
        {"run": {"hours": 72, "accelerators": ["A100", "A10G"]}},
        "/run/hours",
        "name one machine",
    ),
    "hours and samples": (
        {"run": {"hours": 72, "accelerators": ["A100"], "samples": 1}},
        "/run/hours",
        "give hours, or samples, not both",
    ),
    "hours on all": (
        {"run": {"hours": 72, "accelerators": ["A100"], "gpus": "all"}},
        "/run/gpus",
        "number of GPUs",
    ),
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
        "g5.xlarge has at most 1 GPUs",
    ),
    "deadline": ({"run": {**RUN, "deadline": "0s"}}, "/run/deadline", "longer than 0"),
    "past": ({"run": {**RUN, "deadline": "2001-01-01T00:00:00Z"}}, "/run/deadline", "has passed"),
    "negative deadline": ({"run": {**RUN, "deadline": -5}}, "/run/deadline", "has passed"),
    "word with a t": ({"run": {**RUN, "deadline": "tomorrow"}}, "/run/deadline", "must be a duration"),
    "no such month": ({"run": {**RUN, "deadline": "2026-13-01T00:00Z"}}, "/run/deadline", "give a time with"),
    "no time": ({"run": {**RUN, "deadline": "soon"}}, "/run/deadline", "90s"),
    "resale": (
        {"ownership": {**OWNED, "resale_usd": 2000, "cloud_usd_per_hour": 1}},
        "/ownership/resale_usd",
        "at most purchase_usd",
    ),
    "no cloud price": ({"ownership": OWNED}, "/ownership/cloud_usd_per_hour", "accelerator"),
    "gpus of owned": (
        {"ownership": {**OWNED, "accelerator": "A100", "gpus": 17}},
        "/ownership/gpus",
        "has 17 accelerators",
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
    "no latency": ({"serving": {"bytes": 5}}, "/serving", "latency_ms"),
    "batch": (
        {"serving": {"per_second": 5, "batch_per_second": 4}},
        "/serving/batch_per_second",
        "must be at least 5, the rate",
    ),
    "which gpu": ({"serving": {"per_second": 5, "gpus": 1}}, "/serving/accelerators", "name the GPU"),
    "served where": ({"serving": {"per_second": 5, "regions": ["us-eest-1"]}}, "/serving/regions/0", "us-east-1"),
    "measured and given": (
        {"serving": {"latency_ms": 5, "measured": {"job": "j", "export": "e", "variant": "v"}}},
        "/serving/measured",
        "give measured, or latency_ms",
    ),
    "measured in no job": (
        {"serving": {"measured": {"job": "job_1", "export": "e", "variant": "v"}}},
        "/serving/measured",
        "job_1",
    ),
    "no start": ({"serving": {"latency_ms": 5, "start": "soon"}}, "/serving/start", "90s"),
    "no price": (
        {"compute_optimal": {"usd": 5, "accelerator": "A6000", "market": "spot"}},
        "/compute_optimal/accelerator",
        "no price",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_invalid_estimate_is_refused_with_a_pointer_and_a_fix(client: TestClient, name: str) -> None:
    parts, pointer, says = BAD[name]
    faults = refused(client, **parts)
    assert says in faults[pointer]


# The command line


def tuner(client: TestClient, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    made = Client("http://tuner", fakes.KEY, transport=client._transport)
    monkeypatch.setattr("tuner.client.Client", lambda: made)
    result = CliRunner().invoke(app, ["estimate", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_estimate_command_prints_the_rest_answer(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    parts = {
        "run": RUN,
        "choices": {"options": [{"name": "a", "usd_per_hour": 1, "duration": "1h"}]},
        "scaling": {"accelerator": "H100", "parameters": 1e9, "step_seconds": 0.5, "hours_on_one": 10},
        "compute_optimal": {"flops": 1e20},
        "recurring": {"runs_per_month": 2},
        "serving": {"latency_ms": 5},
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
    for word in (
        "cheapest",
        "nvlink",
        "Besiroglu",
        "a year",
        "owning is cheaper",
        "assumed",
        "scaling to zero",
    ):
        assert word in shown
    words = ("--samples", "1e6", "--throughput", "100@A10G", "--deadline", "10h", "--gpus", "1", "--json")
    assert json.loads(tuner(client, monkeypatch, *words)) == ask(
        client, run={**RUN, "gpus": 1, "deadline": "10h"}
    )
    words = ("--latency-ms", "5", "--requests-per-second", "200", "--region", "us-east-1", "--json")
    serving = {"latency_ms": 5, "requests_per_second": 200, "regions": ["us-east-1"]}
    assert json.loads(tuner(client, monkeypatch, *words)) == ask(client, serving=serving)
    file.write_text("serving: {latency_ms: 5}")
    of_file = tuner(client, monkeypatch, str(file), "--region", "us-east-1", "--json")
    assert json.loads(of_file) == ask(client, serving={"latency_ms": 5, "regions": ["us-east-1"]})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--throughput", "850"], "850@A10G"),
        (["--throughput", "fast@A10G"], "850@A10G"),
        (["--throughput", "850@"], "850@A10G"),
        (["--measured", "job_1/onnx"], "JOB/EXPORT/VARIANT"),
        (["--latency-ms", "5", "--hours", "3"], "or of serving"),
    ],
)
def test_invalid_option_is_a_usage_error(words: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["estimate", *words])
    assert result.exit_code == 2
    assert says in result.output
