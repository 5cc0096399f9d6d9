"""Models of the price catalogue."""

from pydantic import Field

from tuner.schemas.base import Answer, Usd


class PriceListing(Answer):
    """A whole machine and its prices. A price that is null is not known; it never means zero. A machine without a spot price cannot be
    used as spot.
    """

    cloud: str
    region: str
    zone: str
    instance_type: str
    vcpus: float
    memory_gib: float | None
    accelerator: str
    accelerators: float
    gpu_memory_gib: float | None
    on_demand_usd_per_hour: Usd | None = Field(validation_alias="on_demand")
    spot_usd_per_hour: Usd | None = Field(validation_alias="spot")
    on_demand_date: str
    spot_date: str
    on_demand_source: str
    spot_source: str
    flags: list[str]


class CatalogueAge(Answer):
    """The age of the catalogue. `age_days` is the age of the newest price, `undated` counts prices without a date, and `age` is a
    summary in words.
    """

    name: str
    listings: int
    newest: str | None
    oldest: str | None
    undated: int
    age_days: int | None
    age: str


class DataRate(Answer):
    """Prices of data transfer per GB, and `storage_usd_per_gb_month` for storing one GB for a month. Null means not known."""

    cloud: str
    internet_usd_per_gb: Usd | None = Field(validation_alias="internet")
    between_regions_usd_per_gb: Usd | None = Field(validation_alias="between_regions")
    storage_usd_per_gb_month: Usd | None = Field(validation_alias="storage")
    date: str
    source: str


class Prices(Answer):
    """Machines of the catalogue that match a request. `total` counts all matches; `items` are the cheapest of them. `warning` is set if
    prices are old.
    """

    items: list[PriceListing]
    total: int
    catalogue: CatalogueAge
    warning: str | None
    data_rates: list[DataRate]
