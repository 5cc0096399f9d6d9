"""The price catalogue over REST and on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tests import fakes
from tests.fakes import FakeService
from tuner.cli.main import app
from tuner.client import Client

service, client = fakes.fixtures("module")
HEAD = "cloud,region,instance_type,vcpus,on_demand_usd_h,on_demand_date\n"


def get(client: TestClient, **query: Any) -> Any:
    answer = client.get("/v1/prices", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_prices_are_listed_cheapest_first_with_date_and_source(client: TestClient) -> None:
    listing = get(client, accelerator="a100", market="spot")
    prices = [machine_price["spot_usd_per_hour"] for machine_price in listing["items"]]
    assert prices == sorted(prices)
    assert all(
        machine_price["spot_date"] and machine_price["spot_source"] for machine_price in listing["items"]
    )
    assert listing["catalogue"]["name"] == "shipped with tuner"
    assert listing["catalogue"]["newest"] == "2026-07-30"
    price = get(client, region="us-east-1", instance_type="P4D.24xlarge", zone="use1-az2")["items"][0]
    assert price["on_demand_usd_per_hour"] == 21.957642


def test_limit_bounds_the_listing_and_total_counts_all(client: TestClient) -> None:
    listing = get(client, cloud="aws", limit=3)
    assert (len(listing["items"]), listing["total"]) == (3, 350)


def test_an_unknown_price_is_null(client: TestClient) -> None:
    listed = get(client, cloud="lambda")["items"]
    assert {price["spot_usd_per_hour"] for price in listed} == {None}
    assert get(client, cloud="lambda", market="spot")["total"] == 0


def test_unknown_filter_value_is_refused_with_a_suggestion(client: TestClient) -> None:
    answer = client.get("/v1/prices", params={"region": "us-eest-1", "cloud": "awss"})
    assert answer.status_code == 422
    errors = {error["pointer"]: error["detail"] for error in answer.json()["errors"]}
    assert "us-east-1" in errors["region"]
    assert "aws" in errors["cloud"]
    assert "on_demand" in client.get("/v1/prices", params={"market": "spt"}).text


def test_outdated_and_undated_prices_cause_a_warning(service: FakeService, client: TestClient) -> None:
    assert "older than 90 days" in str(get(client, cloud="azure", market="on_demand")["warning"]) or (
        service.now() < 1_789_000_000 * 10**9
    )
    assert "have no date" in get(client, cloud="runpod")["warning"]


def test_data_rates_have_date_and_source(client: TestClient) -> None:
    rates = {rate["cloud"]: rate for rate in get(client)["data_rates"]}
    assert rates["aws"]["internet_usd_per_gb"] == 0.09
    assert all(rate["date"] and rate["source"] for rate in rates.values())


@pytest.fixture
def tuner(client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(
        "tuner.client.Client", lambda: Client("http://tuner", fakes.KEY, transport=client._transport)
    )
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    return lambda *words: CliRunner().invoke(app, ["prices", *words])


def test_prices_command_prints_the_rest_answer(tuner: Any, client: TestClient) -> None:
    result = tuner("--cloud", "gcp", "--market", "spot", "--limit", "5", "--json")
    assert json.loads(result.stdout) == get(client, cloud="gcp", market="spot", limit=5)
    shown = tuner("--instance-type", "a2-highgpu-1g", "--limit", "1").stdout
    assert "1 A100 of 40 GiB" in shown
    assert "1 of " in shown
    refused = tuner("--region", "us-eest-1")
    assert refused.exit_code == 1
    assert "us-east-1" in refused.stderr


def test_price_update_is_applied_completely_or_not_at_all(tuner: Any, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text(f"{HEAD}mine,here,box,8,0.25,2026-07\n")
    bad.write_text(f"{HEAD}mine,here,box,8,0,2026-07\nmine,here,bigger,8,-1,2026-07\n")
    assert json.loads(tuner("--update", str(good), "--json").stdout)["listings"] == 1
    kept = (tmp_path / "home" / "prices.csv").read_text()
    refused = tuner("--update", str(bad))
    assert refused.exit_code == 1
    assert "line 2, on_demand_usd_h" in refused.stderr
    assert "line 3, on_demand_usd_h" in refused.stderr
    assert (tmp_path / "home" / "prices.csv").read_text() == kept == good.read_text()
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["prices.csv"]
    assert tuner("--update", str(good), "--cloud", "aws").exit_code == 2


def test_settings_override_the_data_rates_of_every_cloud(tmp_path: Path) -> None:
    from tuner.service.catalogue import data_rates
    from tuner.settings import Settings

    here = {"TUNER_HOME": str(tmp_path)}
    rates = data_rates(Settings.from_env({**here, "TUNER_EGRESS_USD_PER_GB": "0.05"}))
    assert {rate.between_regions.micro_usd for rate in rates if rate.between_regions} == {50_000}
    assert all(rate.source.startswith("TUNER_EGRESS_USD_PER_GB; ") for rate in rates)
    for wrong in ("-1", "nan", "inf", "1e9", "9 cents", "0.0000001"):
        with pytest.raises(ValueError, match="TUNER_STORAGE_USD_PER_GB_MONTH"):
            Settings.from_env({**here, "TUNER_STORAGE_USD_PER_GB_MONTH": wrong})
