"""The price catalogue: prices of machines in each region, read from CSV, each with its date and source."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import cached_property

from tuner.domain.listing import MARKETS, Listing, Market
from tuner.planning.catalogue_file import read_listings

FIELDS = ("cloud", "region", "zone", "instance_type", "accelerator")
OLD_AFTER_DAYS = 90
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

        With a market, listings without a price on that market are omitted. Without one, listings are ordered by their on-demand price,
        unknown prices last.
        """
        words = (cloud, region, zone, instance_type, accelerator)
        wanted = [
            (field, word.casefold()) for field, word in zip(FIELDS, words, strict=True) if word is not None
        ]
        found = [one for one in self.listings if all(_word(one, field) == word for field, word in wanted)]
        if market is not None:
            found = [one for one in found if one.price(market) is not None]
        return sorted(found, key=lambda one: _order(one, market or "on_demand"))

    def words(self, field: str) -> list[str]:
        """Return the sorted values of a field, which is one of FIELDS."""
        return self._words[field]

    def nearest(self, field: str, word: str) -> list[str]:
        """Return at most three values of the field that are spelled most like `word`, the most similar first. Used in error texts."""
        by_case = {known.casefold(): known for known in self._words[field]}
        near = difflib.get_close_matches(word.casefold(), by_case, n=3, cutoff=0.5)
        return [by_case[one] for one in near]

    def unknown(self, field: str, word: str) -> str | None:
        """Return an error text with the nearest known values if no listing has `word` in the field. Otherwise return None."""
        if word.casefold() in (known.casefold() for known in self._words[field]):
            return None
        words, named = self._words[field], field.replace("_", " ")
        near = self.nearest(field, word) or words[:FEW]
        # With so few values, name all of them. For "amazon", for example, the value with the most similar spelling is not the intended one.
        if len(words) <= FEW:
            near = sorted(words, key=lambda known: known not in near)
        if not near:
            return f"no {named} is known to the catalogue {self.name}"
        return f"{word!r} is no {named} of the catalogue {self.name}; the nearest: {', '.join(near)}"

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
        """Return the age of the prices in words."""
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
        return f"{' and '.join(parts)}: check them before you decide, and bring newer ones by `tuner prices --update FILE`"

    @cached_property
    def _dates(self) -> list[str]:
        return [found[0] for text in _dates(self.listings) if (found := DATE.match(text)) and day_of(text)]

    @cached_property
    def _words(self) -> dict[str, list[str]]:
        return {field: sorted({str(getattr(one, field)) for one in self.listings} - {""}) for field in FIELDS}


def read_catalogue(text: str, name: str) -> Catalogue:
    """Read a catalogue from CSV. `name` is used in messages.

    Raises:
        BadFile: The file is not valid. The text names the line, the column and the fix of each fault.
    """
    return Catalogue(read_listings(text, name), name)


def day_of(text: str) -> date | None:
    """Return the first day that a price's date can mean, such as 2026-07-01 for 2026-07. Return None if the text is not a date."""
    found = DATE.match(text)
    if found is None:
        return None
    try:
        return date(int(found[1]), int(found[2]), int(found[3] or 1))
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
    """Return the date of each known price."""
    return [one.date(market) for one in listings for market in MARKETS if one.price(market) is not None]


def _word(listing: Listing, field: str) -> str:
    return str(getattr(listing, field)).casefold()


def _order(listing: Listing, market: Market) -> tuple[bool, int, str, str, str, str]:
    price = listing.price(market)
    place = (listing.cloud, listing.region, listing.zone, listing.instance_type)
    return (price is None, price.micro_usd_per_hour if price else 0, *place)
