"""Reader of price catalogues in CSV. Each fault is reported with its line, its column and how to fix it."""

import csv
import difflib
import io
import math
from collections.abc import Iterator, Mapping, Sequence

from tuner.domain.errors import BadFile
from tuner.domain.listing import Listing
from tuner.domain.money import Price

REQUIRED = ("cloud", "region", "instance_type", "vcpus", "on_demand_usd_h", "on_demand_date")
COLUMNS = (
    "cloud", "region", "zone", "instance_type", "vcpus", "memory_gib", "accelerator", "accelerator_count",
    "gpu_memory_gib", "on_demand_usd_h", "spot_usd_h", "on_demand_date", "spot_date", "on_demand_source",
    "spot_source", "flags",
)  # fmt: skip
SHOWN = 10  # an error names at most this many faults
MAX_USD_PER_HOUR = 100_000


class _Row:
    """The cells of one line of the CSV file. Methods that read a cell add its faults to `faults`."""

    def __init__(self, line: int, cells: Mapping[str | None, object], faults: list[str]) -> None:
        self.line = line
        self._cells = {
            name: value.strip() for name, value in cells.items() if name and isinstance(value, str)
        }
        self._faults = faults
        if None in cells:
            self.wrong(COLUMNS[-1], "there are more cells than columns: put quotes around text with commas")

    def wrong(self, column: str, fix: str) -> None:
        self._faults.append(f"line {self.line}, {column}: {fix}")

    def text(self, column: str) -> str:
        return self._cells.get(column, "")

    def needed(self, column: str) -> str:
        if not self.text(column):
            self.wrong(column, "is empty: write it")
        return self.text(column)

    def number(self, column: str, *, needed: bool = False) -> float | None:
        """Return the number in a cell. Return None if the cell is empty, or if it is not a number above zero."""
        text = self.needed(column) if needed else self.text(column)
        if not text:
            return None
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not 0 < found < math.inf:
            self.wrong(column, f"{text!r} is no number above zero")
            return None
        return found

    def price(self, market: str) -> Price | None:
        column = f"{market}_usd_h"
        text = self.text(column)
        if not text:
            return None
        try:
            found = Price.from_usd_per_hour(text)
        except ValueError as error:
            self.wrong(column, _no_price(text, str(error)))
            return None
        if found.micro_usd_per_hour <= 0:
            self.wrong(column, f"{text} is not above zero: leave it empty where the price is not known")
            return None
        if found.usd_per_hour > MAX_USD_PER_HOUR:
            self.wrong(column, f"{text} is more than {MAX_USD_PER_HOUR} dollars an hour")
            return None
        if not self.text(f"{market}_date"):
            self.wrong(f"{market}_date", "is empty: write the price's date, such as 2026-07-20, or `undated`")
        return found


def read_listings(text: str, name: str) -> tuple[Listing, ...]:
    """Read all listings of a CSV file.

    Raise BadFile if any line is not valid. The error names the line, the column and the fix of the first ten faults.
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
        faults.append("line 2: there is no price: write a line for each machine")
    if faults:
        more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise BadFile(f"{name}: {'; '.join(faults[:SHOWN])}{more}")
    return tuple(listings)


def _wrong_columns(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, n=1) or [", ".join(COLUMNS)]
            yield f"line 1, {name}: is no column of a catalogue, whose prices are in US dollars; the nearest: {near[0]}"
    for name in COLUMNS:
        if names.count(name) > 1:
            yield f"line 1, {name}: is there twice: keep one"
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
                f"{listing.instance_type} in {listing.zone or listing.region} is on line {lines[key]} already: keep one",
            )
        count, line = shapes.setdefault((key[0], key[3]), (listing.accelerators, row.line))
        if count != listing.accelerators:
            row.wrong(
                "accelerator_count",
                f"{listing.instance_type} has {listing.accelerators:g} accelerators here and {count:g} on line {line}",
            )
        yield listing


def _listing(row: _Row) -> Listing:
    on_demand, spot = row.price("on_demand"), row.price("spot")
    if not row.text("on_demand_usd_h") and not row.text("spot_usd_h"):
        row.wrong(
            "on_demand_usd_h", "there is no price: write one, here or in spot_usd_h, or take the line out"
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
    return f"{text!r} is no price: write US dollars an hour as a plain number, such as 0.8048, without a currency or commas"
