"""An entry of the price catalogue: a machine type in one place, and its price on each market."""

from dataclasses import dataclass
from typing import Literal

from tuner.domain.money import Price

Market = Literal["on_demand", "spot"]
MARKETS: tuple[Market, ...] = ("on_demand", "spot")
# How messages for users say that a machine is of a market.
MARKET_WORDS = {"on_demand": "on demand", "spot": "on spot"}


@dataclass(frozen=True, slots=True)
class Listing:
    """A machine type with its prices.

    Prices are in US dollars per hour of the whole machine, without tax, disks and data transfer. None means that a price is
    unknown, never zero.

    `zone` is empty if the prices apply to the whole region. `accelerators` may be a fraction (0.5 if half a GPU is passed
    through), and `gpu_memory_gib` is the memory of one accelerator, or of that fraction. Dates are those of the price list:
    2026-07-20, 2026-07 or text such as `undated (v8)`. `flags` are the source's caveats, such as `spot_at_on_demand_cap`.
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
    on_demand: Price | None
    spot: Price | None
    on_demand_date: str
    spot_date: str
    on_demand_source: str
    spot_source: str
    flags: tuple[str, ...] = ()

    def price(self, market: Market) -> Price | None:
        return self.spot if market == "spot" else self.on_demand

    def date(self, market: Market) -> str:
        return self.spot_date if market == "spot" else self.on_demand_date

    def source(self, market: Market) -> str:
        return self.spot_source if market == "spot" else self.on_demand_source
