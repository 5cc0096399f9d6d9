"""One line of the price catalogue: a kind of machine at one place, and what it costs on each market."""

from dataclasses import dataclass
from typing import Literal

from tuner.domain.money import Price

Market = Literal["on_demand", "spot"]
MARKETS: tuple[Market, ...] = ("on_demand", "spot")


@dataclass(frozen=True, slots=True)
class Listing:
    """A whole machine, an hour of it, in US dollars without tax, disks and data transfer. A price of None is not known, never zero.

    `zone` is empty where prices are the region's. `accelerators` may be a part of one (0.5: half a GPU is passed through);
    `gpu_memory_gib` is what one of them has, or the part that is there. The dates are of the price list: 2026-07-20, 2026-07 or
    words such as `undated (v8)`. `flags` are the source's caveats, such as `spot_at_on_demand_cap`.
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
