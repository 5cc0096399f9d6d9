"""The price catalogue: search, order, age and errors."""

import csv
import io
from datetime import date
from decimal import Decimal
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import examples
from tuner.domain.errors import BadFile
from tuner.domain.listing import MARKETS, Market
from tuner.domain.money import Price
from tuner.planning.catalogue import COLUMNS, Catalogue, day_of, read_catalogue

TEXT = (files("tuner.planning") / "data" / "prices.csv").read_text(encoding="utf-8")
SHIPPED = read_catalogue(TEXT, "shipped")
GOOD = {
    "cloud": "aws",
    "region": "us-east-1",
    "zone": "use1-az1",
    "instance_type": "p4d.24xlarge",
    "vcpus": "96",
    "memory_gib": "1152",
    "accelerator": "A100",
    "accelerator_count": "8",
    "gpu_memory_gib": "40",
    "on_demand_usd_h": "21.95",
    "spot_usd_h": "",
    "on_demand_date": "2026-07-20",
    "flags": "a;b",
}


def text_of(*rows: dict[str, str]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def refused(*changes: dict[str, str]) -> str:
    with pytest.raises(BadFile) as caught:
        read_catalogue(text_of(*({**GOOD, **change} for change in changes)), "mine.csv")
    return caught.value.detail


def test_shipped_prices_equal_the_file_to_the_micro_dollar() -> None:
    rows = list(csv.DictReader(io.StringIO(TEXT)))
    assert len(rows) == len(SHIPPED.listings) == 916
    for row, listing in zip(rows, SHIPPED.listings, strict=True):
        for market in MARKETS:
            written_price, price = row[f"{market}_usd_h"], listing.price(market)
            assert (price is None) == (written_price == "")
            if price is not None:
                assert price.micro_usd_per_hour == Decimal(written_price) * 10**6
                assert price.micro_usd_per_hour > 0
                assert listing.date(market)
                assert listing.source(market)


def test_catalogue_contains_published_prices() -> None:
    """p4d.24xlarge in us-east-1 on AWS's list of July 2026; Google's a2-highgpu-1g including its A100, not the host alone."""
    assert SHIPPED.find(region="us-east-1", instance_type="p4d.24xlarge")[0].on_demand == Price(21_957_642)
    matches = SHIPPED.find(region="us-central1", instance_type="A2-HighGPU-1g")
    assert [match.on_demand for match in matches] == [Price(3_673_390)]


def test_fractional_gpu_has_a_fraction_of_the_memory() -> None:
    fractional = SHIPPED.find(instance_type="Standard_NV6ads_A10_v5")[0]
    assert fractional.accelerators == 0.167
    assert fractional.gpu_memory_gib == 4.008


@examples(30)
@given(
    listing=st.sampled_from(SHIPPED.listings), market=st.sampled_from([None, *MARKETS]), upper=st.booleans()
)
def test_search_returns_all_matches_with_the_cheapest_first(
    listing, market: Market | None, upper: bool
) -> None:
    region = listing.region.upper() if upper else listing.region
    matches = SHIPPED.find(cloud=listing.cloud, region=region, market=market)
    wanted = {
        (each.cloud, each.region, each.zone, each.instance_type)
        for each in SHIPPED.listings
        if (each.cloud, each.region) == (listing.cloud, listing.region)
        and (market is None or each.price(market) is not None)
    }
    assert {(each.cloud, each.region, each.zone, each.instance_type) for each in matches} == wanted
    prices = [each.price(market or "on_demand") for each in matches]
    known = [price for price in prices if price is not None]
    assert known == sorted(known)
    assert prices[: len(known)] == known


def test_unknown_value_suggests_the_nearest() -> None:
    assert SHIPPED.unknown("instance_type", "P4D.24XLARGE") is None
    assert "p4d.24xlarge" in str(SHIPPED.unknown("instance_type", "p4d.24xlrge"))
    assert "us-east-1" in str(SHIPPED.unknown("region", "us-east1b"))
    assert "aws" in str(SHIPPED.unknown("cloud", "xyzzy"))
    assert "it has: lambda, aws, azure, gcp" in str(SHIPPED.unknown("cloud", "amazon"))
    assert SHIPPED.nearest("accelerator", "h100")[0] == "H100"


def test_ages_of_prices_are_reported() -> None:
    assert (SHIPPED.newest, SHIPPED.oldest) == ("2026-07-30", "2025-07-28")
    assert "the newest 11 days old; 164 have no date" in SHIPPED.age(date(2026, 8, 10))
    assert "3 months old" in SHIPPED.age(date(2026, 11, 22))
    fresh = SHIPPED.find(cloud="gcp")
    assert SHIPPED.warning(date(2026, 10, 28), fresh) is None
    assert "558 of 558 prices are older than 90 days" in str(SHIPPED.warning(date(2026, 10, 29), fresh))
    assert "8 of 16 prices" not in str(SHIPPED.warning(date(2026, 8, 1), SHIPPED.find(cloud="runpod")))
    assert "16 of 16 have no date" in str(SHIPPED.warning(date(2026, 8, 1), SHIPPED.find(cloud="runpod")))
    assert day_of("2026-13") is None
    assert day_of("undated (v8)") is None
    undated = read_catalogue(text_of({**GOOD, "on_demand_date": "undated"}), "mine")
    assert (undated.newest, undated.undated, undated.age_days(date(2026, 8, 1))) == (None, 1, None)


def test_file_with_only_required_columns_is_accepted() -> None:
    text = "cloud,region,instance_type,vcpus,on_demand_usd_h,on_demand_date\nmine,here,box,8,0.25,2026-07\n"
    read_listing = read_catalogue("\ufeff" + text, "mine").listings[0]
    assert (
        read_listing.on_demand,
        read_listing.spot,
        read_listing.accelerator,
        read_listing.accelerators,
    ) == (
        Price(250_000),
        None,
        "",
        0,
    )
    assert read_catalogue(text_of(GOOD), "mine").listings[0].flags == ("a", "b")


@pytest.mark.parametrize(
    ("change", "place", "fix"),
    [
        ({"on_demand_usd_h": ""}, "line 2, on_demand_usd_h", "the line has no price"),
        ({"on_demand_usd_h": "0"}, "line 2, on_demand_usd_h", "leave the cell empty"),
        ({"spot_usd_h": "0.00"}, "line 2, spot_usd_h", "leave the cell empty"),
        ({"on_demand_usd_h": "-3"}, "line 2, on_demand_usd_h", "not above zero"),
        ({"on_demand_usd_h": "€3.20"}, "line 2, on_demand_usd_h", "US dollars"),
        ({"on_demand_usd_h": "3.20 EUR"}, "line 2, on_demand_usd_h", "US dollars"),
        ({"on_demand_usd_h": "1,234.00"}, "line 2, on_demand_usd_h", "commas"),
        ({"on_demand_usd_h": "nan"}, "line 2, on_demand_usd_h", "US dollars"),
        ({"on_demand_usd_h": "inf"}, "line 2, on_demand_usd_h", "US dollars"),
        ({"on_demand_usd_h": "0.1234567"}, "line 2, on_demand_usd_h", "round"),
        ({"on_demand_usd_h": "1e6"}, "line 2, on_demand_usd_h", "more than"),
        ({"on_demand_usd_h": "1e400"}, "line 2, on_demand_usd_h", "larger"),
        ({"on_demand_usd_h": "=cmd|'/c touch x'!A1"}, "line 2, on_demand_usd_h", "US dollars"),
        ({"on_demand_date": ""}, "line 2, on_demand_date", "undated"),
        ({"region": " "}, "line 2, region", "is empty"),
        ({"vcpus": "many"}, "line 2, vcpus", "number above zero"),
        ({"memory_gib": "-1"}, "line 2, memory_gib", "number above zero"),
        ({"accelerator_count": ""}, "line 2, accelerator_count", "how many A100"),
        ({"accelerator": ""}, "line 2, accelerator", "which accelerators"),
    ],
)
def test_invalid_value_is_reported_with_line_column_and_fix(
    change: dict[str, str], place: str, fix: str
) -> None:
    refusal = refused(change)
    assert refusal.startswith("mine.csv: ")
    assert place in refusal
    assert fix in refusal


def test_duplicate_machine_and_conflicting_gpu_counts_are_refused() -> None:
    assert "line 3, instance_type: P4D.24xlarge in use1-az1 is already on line 2" in refused(
        {}, {"instance_type": "P4D.24xlarge"}
    )
    assert "line 3, accelerator_count: p4d.24xlarge has 12 accelerators here, but 8 on line 2" in refused(
        {}, {"zone": "use1-az2", "accelerator_count": "12"}
    )


def test_first_ten_faults_are_listed_and_the_rest_counted() -> None:
    refusal = refused(*({"zone": f"z{number}", "on_demand_usd_h": "0"} for number in range(14)))
    assert "line 11" in refusal
    assert "line 12" not in refusal
    assert refusal.endswith("and 4 more")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, cloud: the column is missing"),
        ("cloud,region,instance_type,vcpus,on_demand_usd_h,on_demand_date\n", "the file lists no machine"),
        ("cloud,on_demand_eur_h\n", r"US dollars\); the nearest: on_demand_usd_h"),
        ("cloud,cloud\n", "appears twice"),
    ],
)
def test_missing_unknown_and_duplicate_columns_are_refused(text: str, message: str) -> None:
    with pytest.raises(BadFile, match=message):
        read_catalogue(text, "mine.csv")


@examples(60)
@given(st.text(max_size=80))
def test_arbitrary_text_is_read_as_a_catalogue_or_refused(noise: str) -> None:
    for text in (
        noise,
        text_of(GOOD) + noise,
        text_of({**GOOD, "spot_usd_h": noise, "spot_date": "2026-07"}),
    ):
        try:
            catalogue = read_catalogue(text, "mine.csv")
        except BadFile:
            continue
        assert isinstance(catalogue, Catalogue)
        for listing in catalogue.listings:
            assert all(
                price is None or price.micro_usd_per_hour > 0 for price in (listing.on_demand, listing.spot)
            )
