"""The price catalogue: prices of machines in each region, read from CSV, each with its date and source."""

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property

from tuner.domain.errors import BadFile
from tuner.domain.listing import MARKETS, Listing, Market
from tuner.domain.money import Money, Price
from tuner.domain.text import nearest, suggested


@dataclass(frozen=True, slots=True)
class DataRates:
    """A cloud's list prices of data transfer and storage, per GB, in the first tier that is not free. A price that is not known is None."""

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


REQUIRED = ("cloud", "region", "instance_type", "vcpus", "on_demand_usd_h", "on_demand_date")
COLUMNS = (
    "cloud", "region", "zone", "instance_type", "vcpus", "memory_gib", "accelerator", "accelerator_count",
    "gpu_memory_gib", "on_demand_usd_h", "spot_usd_h", "on_demand_date", "spot_date", "on_demand_source",
    "spot_source", "flags",
)  # fmt: skip
SHOWN = 10  # an error names at most this many faults
MAX_USD_PER_HOUR = 100_000  # a higher price is refused as a mistake


class _Row:
    """The cells of one line of the CSV file. A method that reads an invalid cell adds a message to `faults`."""

    def __init__(self, line: int, cells: Mapping[str | None, object], faults: list[str]) -> None:
        self.line = line
        self._cells = {
            name: value.strip() for name, value in cells.items() if name and isinstance(value, str)
        }
        self._faults = faults
        if None in cells:
            self.wrong(
                COLUMNS[-1], "the line has more cells than the header: put quotes around text with commas"
            )

    def wrong(self, column: str, fix: str) -> None:
        self._faults.append(f"line {self.line}, {column}: {fix}")

    def text(self, column: str) -> str:
        return self._cells.get(column, "")

    def needed(self, column: str) -> str:
        if not self.text(column):
            self.wrong(column, "is empty: write a value")
        return self.text(column)

    def number(self, column: str, *, needed: bool = False) -> float | None:
        """Return the number in a cell. Return None if the cell is empty or is not a number above zero.

        A cell that is not a number above zero is a fault. An empty cell is a fault only if `needed` is true.
        """
        text = self.needed(column) if needed else self.text(column)
        if not text:
            return None
        try:
            parsed_number = float(text)
        except ValueError:
            parsed_number = math.nan
        if not 0 < parsed_number < math.inf:
            self.wrong(column, f"{text!r} is not a number above zero")
            return None
        return parsed_number

    def price(self, market: str) -> Price | None:
        column = f"{market}_usd_h"
        text = self.text(column)
        if not text:
            return None
        try:
            parsed_price = Price.from_usd_per_hour(text)
        except ValueError as error:
            self.wrong(column, _no_price(text, str(error)))
            return None
        if parsed_price.micro_usd_per_hour <= 0:
            self.wrong(column, f"{text} is not above zero: leave the cell empty if the price is not known")
            return None
        if parsed_price.usd_per_hour > MAX_USD_PER_HOUR:
            self.wrong(column, f"{text} is more than the maximum of {MAX_USD_PER_HOUR} dollars an hour")
            return None
        if not self.text(f"{market}_date"):
            self.wrong(f"{market}_date", "is empty: write the price's date, such as 2026-07-20, or `undated`")
        return parsed_price


def read_listings(text: str, name: str) -> tuple[Listing, ...]:
    """Read all listings from the text of a CSV file. `name` is the name of the file in error messages.

    Raises:
        BadFile: A line is not valid. The message gives the line, the column and the fix of the first ten faults.
    """
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=None), strict=True)
    faults: list[str] = []
    listings: list[Listing] = []
    try:
        faults += _wrong_columns(reader.fieldnames or ())
        if not faults:
            listings += _listings(reader, faults)
    except csv.Error as error:
        faults.append(f"line {reader.line_num}: {error}")
    if not listings and not faults:
        faults.append("line 2: the file lists no machine: write a line with a price for each machine")
    if faults:
        more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise BadFile(f"{name}: {'; '.join(faults[:SHOWN])}{more}")
    return tuple(listings)


def _wrong_columns(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if name not in COLUMNS:
            near = nearest(name, COLUMNS, 1)
            known = f"the nearest: {near[0]}" if near else f"the columns are {', '.join(COLUMNS)}"
            yield f"line 1, {name}: is not a column of a price catalogue (prices are in US dollars); {known}"
    for name in COLUMNS:
        if names.count(name) > 1:
            yield f"line 1, {name}: appears twice: keep one"
        if name in REQUIRED and name not in names:
            yield f"line 1, {name}: the column is missing: add it"


def _listings(reader: "csv.DictReader[str]", faults: list[str]) -> Iterator[Listing]:
    lines: dict[tuple[str, ...], int] = {}
    shapes: dict[tuple[str, str], tuple[float, int]] = {}
    for cells in reader:
        row = _Row(reader.line_num, cells, faults)
        listing = _listing(row)
        key = tuple(
            word.casefold() for word in (listing.cloud, listing.region, listing.zone, listing.instance_type)
        )
        if lines.setdefault(key, row.line) != row.line:
            row.wrong(
                "instance_type",
                f"{listing.instance_type} in {listing.zone or listing.region} is already on line {lines[key]}: keep one of the lines",
            )
        count, line = shapes.setdefault((key[0], key[3]), (listing.accelerators, row.line))
        if count != listing.accelerators:
            row.wrong(
                "accelerator_count",
                f"{listing.instance_type} has {listing.accelerators:g} accelerators here, but {count:g} on line {line}: correct one of the lines",
            )
        yield listing


def _listing(row: _Row) -> Listing:
    on_demand, spot = row.price("on_demand"), row.price("spot")
    if not row.text("on_demand_usd_h") and not row.text("spot_usd_h"):
        row.wrong(
            "on_demand_usd_h", "the line has no price: write one here or in spot_usd_h, or remove the line"
        )
    accelerator, count = row.text("accelerator"), row.number("accelerator_count") or 0.0
    memory = row.number("gpu_memory_gib")
    if accelerator and not count:
        row.wrong("accelerator_count", f"is empty: write how many {accelerator} the machine has")
    if count and not accelerator:
        row.wrong("accelerator", "is empty: write which accelerators the machine has")
    return Listing(
        cloud=row.needed("cloud"),
        region=row.needed("region"),
        zone=row.text("zone"),
        instance_type=row.needed("instance_type"),
        vcpus=row.number("vcpus", needed=True) or 0.0,
        memory_gib=row.number("memory_gib"),
        accelerator=accelerator,
        accelerators=count,
        gpu_memory_gib=memory if memory is None else round(memory * min(1.0, count or 1.0), 3),
        on_demand=on_demand,
        spot=spot,
        on_demand_date=row.text("on_demand_date"),
        spot_date=row.text("spot_date"),
        on_demand_source=row.text("on_demand_source"),
        spot_source=row.text("spot_source"),
        flags=tuple(flag for flag in row.text("flags").split(";") if flag),
    )


def _no_price(text: str, why: str) -> str:
    if "decimals" in why:
        return f"{text} {why}: round it"
    if "larger" in why:
        return f"{text} {why}"
    return f"{text!r} is not a price: write US dollars an hour as a plain number, such as 0.8048, without a currency or commas"


# The fields by which listings can be selected.
FIELDS = ("cloud", "region", "zone", "instance_type", "accelerator")
OLD_AFTER_DAYS = 90  # older prices are reported as old
FEW = 10  # if a field has at most this many known values, an error names all of them
DATE = re.compile(r"(\d{4})-(\d{2})(?:-(\d{2}))?")


@dataclass(frozen=True)
class Catalogue:
    """All known prices."""

    listings: tuple[Listing, ...]
    name: str  #: The source of the catalogue, for messages.

    def find(
        self,
        *,
        cloud: str | None = None,
        region: str | None = None,
        zone: str | None = None,
        instance_type: str | None = None,
        accelerator: str | None = None,
        market: Market | None = None,
    ) -> list[Listing]:
        """Return the listings that match all given values, ignoring case, the cheapest first.

        If `market` is given, listings without a price on that market are omitted. Otherwise, listings are ordered by their on-demand
        price, and those without an on-demand price come last.
        """
        words = (cloud, region, zone, instance_type, accelerator)
        wanted = [
            (field, word.casefold()) for field, word in zip(FIELDS, words, strict=True) if word is not None
        ]
        matching_listings = [
            listing
            for listing in self.listings
            if all(_word(listing, field) == word for field, word in wanted)
        ]
        if market is not None:
            matching_listings = [
                listing for listing in matching_listings if listing.price(market) is not None
            ]
        return sorted(matching_listings, key=lambda listing: _order(listing, market or "on_demand"))

    def values_of(self, field: str) -> list[str]:
        """Return the sorted values of a field, which is one of FIELDS."""
        return self._words[field]

    def nearest(self, field: str, word: str) -> list[str]:
        """Return at most three values of the field that are spelled most like `word`, the most similar first. Used in error texts."""
        return nearest(word, self._words[field], cutoff=0.5)

    def unknown(self, field: str, word: str) -> str | None:
        """Return an error text with the nearest known values if no listing has `word` in the field. Otherwise return None."""
        if word.casefold() in (known.casefold() for known in self._words[field]):
            return None
        words, named = self._words[field], field.replace("_", " ")
        if not words:
            return f"the catalogue {self.name} has no {named}"
        near = self.nearest(field, word)
        # If there are only a few values, name all of them, because the most similar spelling may not be the intended value. For the word
        # "amazon", for example, it is not "aws".
        if len(words) <= FEW:
            known = f"it has: {', '.join(sorted(words, key=lambda known: known not in near))}"
        else:
            known = suggested(near, words[:3])
        return f"the {named} {word!r} is not in the catalogue {self.name}; {known}"

    @property
    def newest(self) -> str | None:
        """The newest date of a price, such as 2026-07-30 or 2026-07. None if no price has a date."""
        return max(self._dates, default=None)

    @property
    def oldest(self) -> str | None:
        return min(self._dates, default=None)

    @property
    def undated(self) -> int:
        """The number of prices without a date."""
        return sum(day_of(text) is None for text in _dates(self.listings))

    def age_days(self, today: date) -> int | None:
        """Return the age of the newest price in days. Return None if no price has a date."""
        return _days(self.newest, today)

    def age(self, today: date) -> str:
        """Return a text with the dates of the oldest and the newest price and the age of the newest."""
        if self.newest is None or self.oldest is None:
            return "no price has a date"
        span = f"prices of {self.newest}"
        if self.oldest != self.newest:
            span = f"prices from {self.oldest} to {self.newest}"
        undated = f"; {self.undated} have no date" if self.undated else ""
        return f"{span}, the newest {days_in_words(_days(self.newest, today) or 0)} old{undated}"

    def warning(self, today: date, listings: Iterable[Listing] | None = None) -> str | None:
        """Return a warning if prices are older than 90 days or of unknown age. Otherwise return None.

        If `listings` is given, only these listings are checked.
        """
        dates = _dates(self.listings if listings is None else listings)
        ages = [_days(text, today) for text in dates]
        old = sum(age is not None and age > OLD_AFTER_DAYS for age in ages)
        undated = sum(age is None for age in ages)
        if not old and not undated:
            return None
        parts = [f"{old} of {len(ages)} prices are older than {OLD_AFTER_DAYS} days"] if old else []
        parts += [f"{undated} of {len(ages)} have no date"] if undated else []
        return f"{' and '.join(parts)}: check them before you decide, and install newer ones with `tuner prices --update FILE`"

    @cached_property
    def _dates(self) -> list[str]:
        return [match[0] for text in _dates(self.listings) if (match := DATE.match(text)) and day_of(text)]

    @cached_property
    def _words(self) -> dict[str, list[str]]:
        return {
            field: sorted({str(getattr(listing, field)) for listing in self.listings} - {""})
            for field in FIELDS
        }


def read_catalogue(text: str, name: str) -> Catalogue:
    """Read a catalogue from the text of a CSV file. `name` is the name of the catalogue in messages.

    Raises:
        BadFile: A line is not valid. The message gives the line, the column and the fix of the first ten faults.
    """
    return Catalogue(read_listings(text, name), name)


def day_of(text: str) -> date | None:
    """Return the first day that a price's date can mean, such as 2026-07-01 for 2026-07. Return None if the text is not a date."""
    match = DATE.match(text)
    if match is None:
        return None
    try:
        return date(int(match[1]), int(match[2]), int(match[3] or 1))
    except ValueError:
        return None


def days_in_words(days: int) -> str:
    if days < 60:
        return f"{days} day{'' if days == 1 else 's'}"
    return f"{days // 30} months" if days < 730 else f"{days // 365} years"


def _days(text: str | None, today: date) -> int | None:
    day = day_of(text or "")
    return None if day is None else max(0, (today - day).days)


def _dates(listings: Iterable[Listing]) -> list[str]:
    """Return the date of each known price, as the listing gives it. Prices of both markets are included."""
    return [
        listing.date(market)
        for listing in listings
        for market in MARKETS
        if listing.price(market) is not None
    ]


def _word(listing: Listing, field: str) -> str:
    return str(getattr(listing, field)).casefold()


def _order(listing: Listing, market: Market) -> tuple[bool, int, str, str, str, str]:
    price = listing.price(market)
    place = (listing.cloud, listing.region, listing.zone, listing.instance_type)
    return (price is None, price.micro_usd_per_hour if price else 0, *place)
