"""Which price catalogue takes precedence."""

import os
from pathlib import Path

import pytest

from tuner.domain.errors import BadFile
from tuner.service.catalogue import SHIPPED, catalogue, fault_of_prices
from tuner.settings import Settings

HEAD = "cloud,region,instance_type,vcpus,on_demand_usd_h,on_demand_date\n"


def settings(tmp_path: Path, prices: str = "") -> Settings:
    return Settings.from_env({"TUNER_HOME": str(tmp_path / "home"), "TUNER_PRICES": prices})


def test_configured_prices_precede_prices_in_home_and_shipped_prices(tmp_path: Path) -> None:
    here = settings(tmp_path)
    assert catalogue(here).name == SHIPPED
    assert catalogue(here) is catalogue(here)
    here.make_home()
    here.prices_path.write_text(f"{HEAD}mine,here,box,8,0.25,2026-07\n")
    assert [listing.instance_type for listing in catalogue(here).listings] == ["box"]
    assert catalogue(here).name == str(here.prices_path)
    named = tmp_path / "named.csv"
    named.write_text(f"{HEAD}mine,here,bigger,8,0.25,2026-07\n")
    prices = catalogue(settings(tmp_path, str(named)))
    assert [listing.instance_type for listing in prices.listings] == ["bigger"]
    assert prices.name == f"TUNER_PRICES: {named}"


def test_changed_price_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(f"{HEAD}mine,here,box,8,0.25,2026-07\n")
    here = settings(tmp_path, str(file))
    assert catalogue(here) is catalogue(here)
    file.write_text(f"{HEAD}mine,here,box,8,0.35,2026-07\n")
    os.utime(file, ns=(1, 1))
    price = catalogue(here).listings[0].on_demand
    assert price is not None
    assert price.micro_usd_per_hour == 350_000


def test_missing_or_binary_price_file_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"TUNER_PRICES: .*nowhere.csv cannot be read: No such file"):
        catalogue(settings(tmp_path, str(tmp_path / "nowhere.csv")))
    with pytest.raises(BadFile, match="/dev/zero is not a file"):
        catalogue(settings(tmp_path, "/dev/zero"))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadFile, match=r"not text in UTF-8"):
        catalogue(settings(tmp_path, str(tmp_path / "binary.csv")))


def test_unusable_price_file_is_reported_at_startup(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    here = settings(tmp_path, str(file))
    assert "cannot be read" in str(fault_of_prices(here))
    file.write_text(f"{HEAD}mine,here,box,8,0,2026-07\n")
    assert "line 2, on_demand_usd_h: 0 is not above zero" in str(fault_of_prices(here))
    file.write_text(f"{HEAD}mine,here,box,8,1,2026-07\n")
    assert fault_of_prices(here) is None
