"""Find, query and replace the price catalogue in effect.

The catalogue in effect is the file that TUNER_PRICES names. Without that setting it is the imported file, and without
an imported file the catalogue that is shipped with tuner.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from stat import S_ISREG

from tuner.domain.errors import BadFile, Fault, Invalid
from tuner.domain.listing import Listing
from tuner.domain.listing import Market as Market
from tuner.domain.money import Money
from tuner.planning.catalogue import Catalogue as Catalogue
from tuner.planning.catalogue import DataRates, read_catalogue, read_data_rates
from tuner.settings import Settings

SHIPPED = "shipped with tuner"


def catalogue(settings: Settings) -> Catalogue:
    """Return the catalogue in effect: the file of TUNER_PRICES, otherwise `$TUNER_HOME/prices.csv`, otherwise the shipped one.

    A file is read again only if it has changed. Raise BadFile if the file cannot be used.
    """
    if settings.prices:
        return _of_file(Path(settings.prices), "TUNER_PRICES: ")
    if settings.prices_path.exists():
        return _of_file(settings.prices_path)
    return _shipped()


def fault_of_prices(settings: Settings) -> str | None:
    """Return why the catalogue in effect cannot be used, or None if it can. With an unusable catalogue every job is refused."""
    try:
        catalogue(settings)
    except BadFile as error:
        return error.detail
    return None


def _of_file(path: Path, prefix: str = "") -> Catalogue:
    try:
        stat = path.stat()
        if not S_ISREG(stat.st_mode):
            raise BadFile(f"{prefix}{path} is not a file")
        return _read(path, f"{prefix}{path}", stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise BadFile(f"{prefix}{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadFile(f"{prefix}{path} is not text in UTF-8") from error


@lru_cache(maxsize=8)
def _read(path: Path, name: str, mtime_ns: int, size: int) -> Catalogue:
    return read_catalogue(path.read_text(encoding="utf-8"), name)


@lru_cache(maxsize=1)
def _shipped() -> Catalogue:
    text = (files("tuner.planning") / "data" / "prices.csv").read_text(encoding="utf-8")
    return read_catalogue(text, SHIPPED)


@dataclass(frozen=True)
class PricesView:
    """The catalogue's listings that match a query."""

    catalogue: Catalogue
    listings: list[Listing]
    today: date
    warning: str | None  #: A warning about these listings, such as about their age; None if there is none.
    rates: tuple[DataRates, ...]  #: Prices of moving and storing data, by cloud.


def prices(
    settings: Settings, today: date, filters: Mapping[str, str | None], market: Market | None = None
) -> PricesView:
    """Return the catalogue's listings that match these values.

    Args:
        today: The date at which the age of the prices is judged.
        filters: The requested value of each field, such as `region`. None means any value.
        market: List only machines that have a price on this market. None means any market.

    Raises:
        Invalid: One of the values is in no listing of the catalogue. The error suggests the most similar known values.
    """
    here = catalogue(settings)
    given = {field: word for field, word in filters.items() if word is not None}
    wrong = {field: here.unknown(field, word) for field, word in given.items()}
    if faults := [Fault(field, detail) for field, detail in wrong.items() if detail is not None]:
        raise Invalid(*faults)
    listings = here.find(**given, market=market)
    return PricesView(here, listings, today, here.warning(today, listings), data_rates(settings))


def data_rates(settings: Settings) -> tuple[DataRates, ...]:
    """Return the prices of moving and storing data, one item for each cloud.

    If TUNER_EGRESS_USD_PER_GB or TUNER_STORAGE_USD_PER_GB_MONTH is set, it replaces the list prices of all clouds.
    """
    return tuple(_with_settings(rates, settings) for rates in _shipped_rates())


CLOUDS_OF_STORAGE = {
    "s3": "aws", "s3a": "aws", "gs": "gcp", "gcs": "gcp", "abfs": "azure", "abfss": "azure", "az": "azure", "adl": "azure"
}  # fmt: skip


def storage_price(settings: Settings) -> Money | None:
    """Return the price, in dollars per month, of keeping a GB (10^9 bytes) in the job storage.

    TUNER_STORAGE_USD_PER_GB_MONTH is used if it is set, otherwise the list price of the storage's cloud. Return None if
    neither is known. A local directory has no list price.
    """
    if settings.storage_usd_per_gb_month is not None:
        return Money.from_usd(settings.storage_usd_per_gb_month)
    rates = _rates_of_storage(settings)
    return None if rates is None else rates.storage


def transfer_price(settings: Settings) -> Money | None:
    """Return the price, in dollars, of moving a GB (10^9 bytes) between the job storage and another region.

    TUNER_EGRESS_USD_PER_GB is used if it is set, otherwise the list price of the storage's cloud. Return None if neither
    is known. A local directory has no list price.
    """
    return _between_regions(settings, _rates_of_storage(settings))


def data_transfer_price(settings: Settings) -> Money | None:
    """Return the price, in dollars, of moving a GB (10^9 bytes) from the region of the datasets to another region.

    TUNER_EGRESS_USD_PER_GB is used if it is set, otherwise the list price of the cloud of the datasets' region. Return None
    if neither is known, for example because the catalogue does not list the region.
    """
    return _between_regions(settings, rates_of_region(settings, settings.data_region))


def _between_regions(settings: Settings, rates: DataRates | None) -> Money | None:
    if settings.egress_usd_per_gb is not None:  # the setting applies even if the cloud is not known
        return Money.from_usd(settings.egress_usd_per_gb)
    return None if rates is None else rates.between_regions


def rates_of_region(settings: Settings, region: str | None) -> DataRates | None:
    """Return the prices of moving and storing data in a region's cloud, or None if the catalogue does not list the region."""
    listed = catalogue(settings).find(region=region) if region else []
    return next((rates for rates in data_rates(settings) if listed and rates.cloud == listed[0].cloud), None)


def _rates_of_storage(settings: Settings) -> DataRates | None:
    scheme, is_url, _ = settings.storage.partition("://")
    cloud = CLOUDS_OF_STORAGE.get(scheme) if is_url else None
    return next((rates for rates in data_rates(settings) if rates.cloud == cloud), None)


def update(settings: Settings, file: Path) -> Catalogue:
    """Check a catalogue file completely, then copy it over `$TUNER_HOME/prices.csv`. Return the new catalogue.

    Raises:
        BadFile: The file cannot be used.
    """
    _of_file(file)
    settings.make_home()
    draft = settings.prices_path.with_name(f".prices.{os.getpid()}.csv")
    try:
        draft.write_bytes(file.read_bytes())
        _of_file(draft)
        os.replace(draft, settings.prices_path)
    except OSError as error:
        raise BadFile(f"{file} cannot be copied to {settings.prices_path}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    return _of_file(settings.prices_path)


def _with_settings(rates: DataRates, settings: Settings) -> DataRates:
    egress, storage = settings.egress_usd_per_gb, settings.storage_usd_per_gb_month
    named = [
        name
        for name, setting in (
            ("TUNER_EGRESS_USD_PER_GB", egress),
            ("TUNER_STORAGE_USD_PER_GB_MONTH", storage),
        )
        if setting is not None
    ]
    return replace(
        rates,
        internet=rates.internet if egress is None else Money.from_usd(egress),
        between_regions=rates.between_regions if egress is None else Money.from_usd(egress),
        storage=rates.storage if storage is None else Money.from_usd(storage),
        source="; ".join([*named, rates.source]),
    )


@lru_cache(maxsize=1)
def _shipped_rates() -> tuple[DataRates, ...]:
    return read_data_rates((files("tuner.planning") / "data" / "data_rates.csv").read_text(encoding="utf-8"))
