"""The price of progress on each offer, learned from experience: the offer's price times the paid time per unit of progress."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from tuner.domain.money import Price
from tuner.domain.offer import Offer
from tuner.domain.time import NS, Instant

# The weight of the prior, which assumes that an unknown offer wastes nothing. Therefore an unknown offer is tried before one that
# is known to waste time, and a single unlucky machine does not rule an offer out. With spot at a third of the on-demand price, the
# policy leaves spot after an hour without progress.
PRIOR_NS = 30 * 60 * NS
# The time after which an observation has half its weight: frequent preemptions end at some time, and only a new attempt can show that.
HALF_LIFE_NS = 4 * 3600 * NS

Key = tuple[str, str, str | None, tuple[tuple[str, str], ...]]


def key_of(offer: Offer) -> Key:
    """Return the parts of an offer that stay the same when its price changes."""
    return offer.market, offer.instance_type, offer.region, offer.labels


@dataclass(frozen=True, slots=True)
class Record:
    """Paid time and the durable progress that it brought, as of `at`."""

    paid_ns: int
    gained_ns: int  #: Progress, as time on demand.
    at: Instant

    def faded(self, now: Instant) -> Self:
        weight = 0.5 ** (max(0, now - self.at) / HALF_LIFE_NS)
        return type(self)(round(self.paid_ns * weight), round(self.gained_ns * weight), now)


@dataclass(frozen=True, slots=True)
class Memory:
    """The past of a training, as far as placement depends on it. It has one record per offer, so it does not grow."""

    #: When the remaining work last fell, or when the machine was lost: the later of the two.
    progressed: Instant
    least_ns: int  #: The least remaining work so far.
    records: Mapping[Key, Record] = field(default_factory=dict)
    current_offer: Key | None = None  #: The offer that the training is on.
    left_at_start_ns: int = 0  #: The remaining work when the training came to that offer.

    def looked(self, now: Instant, *, at: Offer | None, left_ns: int) -> Self:
        """Return the memory after an observation of the training's machine and remaining work."""
        found = self
        if left_ns < self.least_ns:
            found = replace(found, progressed=now, least_ns=left_ns)
        place = key_of(at) if at is not None else None
        if place != self.current_offer:
            found = replace(found, current_offer=place, left_at_start_ns=left_ns)
        return found

    def waits(self, now: Instant) -> Self:
        """Return the memory after the machine was lost. The limit on waiting for spot (`Terms.patience_ns`) counts from now on."""
        return replace(self, progressed=now)

    def after(self, offer: Offer, *, now: Instant, paid_ns: int, gained_ns: int) -> Self:
        """Return the memory after more paid time on an offer, with the progress that it brought.

        Call this at each durable checkpoint, and when the training leaves or loses its machine.
        """
        before = self.records.get(key_of(offer), Record(0, 0, now)).faded(now)
        record = Record(before.paid_ns + paid_ns, before.gained_ns + gained_ns, now)
        return replace(self, records={**self.records, key_of(offer): record})

    def price(self, offer: Offer, now: Instant) -> Price:
        """Return the price of an hour of progress, rounded up."""
        record = self.records.get(key_of(offer), Record(0, 0, now)).faded(now)
        paid = offer.price.micro_usd_per_hour * (record.paid_ns + PRIOR_NS)
        return Price(-(-paid // (record.gained_ns + PRIOR_NS)))

    def cheapest(self, offers: Collection[Offer], now: Instant) -> Offer | None:
        """Return the offer with the lowest price of progress. Ties go to the first by name."""
        return min(offers, key=lambda offer: (self.price(offer, now), _name(offer)), default=None)


def _name(offer: Offer) -> tuple[str, str, str, tuple[tuple[str, str], ...]]:
    return offer.market, offer.instance_type, offer.region or "", offer.labels
