"""Answers about the price catalogue."""

from datetime import date

from tuner.domain.listing import Listing
from tuner.domain.money import Money, Price
from tuner.schemas import prices as show
from tuner.service.catalogue import Catalogue, DataRates, PricesView


def prices_of(view: PricesView, limit: int) -> show.Prices:
    return show.Prices(
        items=[listing_of(one) for one in view.found[:limit]],
        total=len(view.found),
        catalogue=age_of(view.catalogue, view.today),
        warning=view.warning,
        data_rates=[_rates_of(one) for one in view.rates],
    )


def age_of(catalogue: Catalogue, today: date) -> show.CatalogueAge:
    return show.CatalogueAge(
        name=catalogue.name,
        listings=len(catalogue.listings),
        newest=catalogue.newest,
        oldest=catalogue.oldest,
        undated=catalogue.undated,
        age_days=catalogue.age_days(today),
        age=catalogue.age(today),
    )


def listing_of(one: Listing) -> show.PriceListing:
    return show.PriceListing(
        cloud=one.cloud,
        region=one.region,
        zone=one.zone,
        instance_type=one.instance_type,
        vcpus=one.vcpus,
        memory_gib=one.memory_gib,
        accelerator=one.accelerator,
        accelerators=one.accelerators,
        gpu_memory_gib=one.gpu_memory_gib,
        on_demand_usd_per_hour=_hourly(one.on_demand),
        spot_usd_per_hour=_hourly(one.spot),
        on_demand_date=one.on_demand_date,
        spot_date=one.spot_date,
        on_demand_source=one.on_demand_source,
        spot_source=one.spot_source,
        flags=list(one.flags),
    )


def _rates_of(one: DataRates) -> show.DataRate:
    return show.DataRate(
        cloud=one.cloud,
        internet_usd_per_gb=_usd(one.internet),
        between_regions_usd_per_gb=_usd(one.between_regions),
        storage_usd_per_gb_month=_usd(one.storage),
        date=one.date,
        source=one.source,
    )


def _hourly(price: Price | None) -> float | None:
    return None if price is None else price.usd_per_hour


def _usd(money: Money | None) -> float | None:
    return None if money is None else money.usd
