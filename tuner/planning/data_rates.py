"""Prices of data transfer and storage by cloud."""

import csv
import io
from dataclasses import dataclass

from tuner.domain.money import Money


@dataclass(frozen=True, slots=True)
class DataRates:
    """A cloud's list prices per GB, in the first tier that is not free. A price that is not known is None."""

    cloud: str
    internet: Money | None
    between_regions: Money | None
    storage: Money | None  #: Per month.
    date: str
    source: str


def read_data_rates(text: str) -> tuple[DataRates, ...]:
    return tuple(
        DataRates(
            row["cloud"],
            _money(row["internet_usd_per_gb"]),
            _money(row["between_regions_usd_per_gb"]),
            _money(row["storage_usd_per_gb_month"]),
            row["date"],
            row["source"],
        )
        for row in csv.DictReader(io.StringIO(text))
    )


def _money(text: str) -> Money | None:
    return Money.from_usd(text) if text else None
