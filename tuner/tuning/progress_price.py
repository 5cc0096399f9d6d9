"""What progress cost so far, by offer: an offer's price for a trial, times the time that was paid for a unit of time of progress."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from tuner.domain.money import Price
from tuner.domain.offer import Offer
from tuner.domain.time import NS, Instant

# An offer of which nothing is known is thought to waste nothing, with the weight of so much time: it is tried before one that is
# known to waste some, and one unlucky machine does not condemn it. With spot at a third of the price on demand, it takes an hour
# that brings nothing to back off.
PRIOR_NS = 30 * 60 * NS
HALF_LIFE_NS = 4 * 3600 * NS  # of what was seen: a storm is over at some time, and only trying finds out

Key = tuple[str, str, str | None, tuple[tuple[str, str], ...]]


def key_of(offer: Offer) -> Key:
    """What stays the same of an offer when its price changes."""
    return offer.market, offer.instance_type, offer.region, offer.labels


@dataclass(frozen=True, slots=True)
class Record:
    """Time that was paid, and the progress that it brought and that is durable, in time on demand; as of `at`."""

    paid_ns: int
    gained_ns: int
    at: Instant

    def faded(self, now: Instant) -> Self:
        weight = 0.5 ** (max(0, now - self.at) / HALF_LIFE_NS)
        return type(self)(round(self.paid_ns * weight), round(self.gained_ns * weight), now)


@dataclass(frozen=True, slots=True)
class Memory:
    """All that a choice may depend on beside what is seen. One record an offer, so that it does not grow.

    `progressed`: when the work that is left fell last, to `least_ns`, or when its machine was lost after that. `landed_ns`: what
    was left when the training came to where it is, `landed`.
    """

    progressed: Instant
    least_ns: int
    records: Mapping[Key, Record] = field(default_factory=dict)
    landed: Key | None = None
    landed_ns: int = 0

    def looked(self, now: Instant, *, at: Offer | None, left_ns: int) -> Self:
        """With what there is to see of the training itself."""
        found = self
        if left_ns < self.least_ns:
            found = replace(found, progressed=now, least_ns=left_ns)
        place = key_of(at) if at is not None else None
        if place != self.landed:
            found = replace(found, landed=place, landed_ns=left_ns)
        return found

    def waits(self, now: Instant) -> Self:
        """With the training's machine gone: its patience begins now, however long ago its newest checkpoint was."""
        return replace(self, progressed=now)

    def after(self, offer: Offer, *, now: Instant, paid_ns: int, gained_ns: int) -> Self:
        """With more time paid for on an offer, and what it brought; told at each durable checkpoint and at the machine's end."""
        before = self.records.get(key_of(offer), Record(0, 0, now)).faded(now)
        record = Record(before.paid_ns + paid_ns, before.gained_ns + gained_ns, now)
        return replace(self, records={**self.records, key_of(offer): record})

    def price(self, offer: Offer, now: Instant) -> Price:
        """Of an hour of progress, rounded up."""
        record = self.records.get(key_of(offer), Record(0, 0, now)).faded(now)
        paid = offer.price.micro_usd_per_hour * (record.paid_ns + PRIOR_NS)
        return Price(-(-paid // (record.gained_ns + PRIOR_NS)))

    def cheapest(self, offers: Collection[Offer], now: Instant) -> Offer | None:
        """By the price of progress; where that is equal, the one that is first by name."""
        return min(offers, key=lambda offer: (self.price(offer, now), _name(offer)), default=None)


def _name(offer: Offer) -> tuple[str, str, str, tuple[tuple[str, str], ...]]:
    return offer.market, offer.instance_type, offer.region or "", offer.labels
