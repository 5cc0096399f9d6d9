"""What is shown of the price catalogue."""

from tuner.schemas.base import Answer


class PriceListing(Answer):
    """A whole machine. A price of null is not known, never zero: a machine without a spot price cannot be used as spot."""

    cloud: str
    region: str
    zone: str
    instance_type: str
    vcpus: float
    memory_gib: float | None
    accelerator: str
    accelerators: float
    gpu_memory_gib: float | None
    on_demand_usd_per_hour: float | None
    spot_usd_per_hour: float | None
    on_demand_date: str
    spot_date: str
    on_demand_source: str
    spot_source: str
    flags: list[str]


class CatalogueAge(Answer):
    """`age_days` is that of the newest price, `undated` counts prices without a date, `age` says it all in words."""

    name: str
    listings: int
    newest: str | None
    oldest: str | None
    undated: int
    age_days: int | None
    age: str


class DataRate(Answer):
    """Dollars for a GB; `storage_usd_per_gb_month` for keeping it a month. null is not known."""

    cloud: str
    internet_usd_per_gb: float | None
    between_regions_usd_per_gb: float | None
    storage_usd_per_gb_month: float | None
    date: str
    source: str


class Prices(Answer):
    """`total` counts what matches, of which `items` are the first, the cheapest. `warning` says where prices are old."""

    items: list[PriceListing]
    total: int
    catalogue: CatalogueAge
    warning: str | None
    data_rates: list[DataRate]
