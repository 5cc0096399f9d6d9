"""Decide whether a training runs on a spot machine, runs on demand, or waits for a spot machine.

With a deadline, the rules are those of Uniform Progress for one training (Wu et al., Can't Be Late, NSDI 2024, §3.3 and §5.2).
The code names each rule where it applies it. The paper's symbols: C(t) is the remaining work, as time on demand. R(t) is the
remaining time. d is the changeover delay: the time from the order to move until training continues, plus the largest progress
that the move may lose.

- Thrifty: a training without remaining work uses no machine.
- Safety net: an idle training with R(t) < C(t) + 2d goes on demand, and stays there to its end.
- Exploitation: a training on spot stays there until it is preempted.
- Taking risks: an idle training takes spot if it is available, whether it is late or not.
- Uniform progress: an idle training that is behind the line goes on demand. The line rises evenly from no work at the start to all
  work at the deadline.
- Hysteresis: a training on demand stays there until it has done the work that the line requires 2d from now.

Three rules are our own:

- While there is much time to spare, C(t) < 0.7 R(t), a training cannot be behind the line. The paper, too, switches its
  rules off in this case (§A.8).
- A training leaves spot, against Exploitation, once R(t) < C(t) + d. The paper assumes progress at full speed on spot, so that
  R(t) - C(t) cannot fall. Saving, a slower machine and a slow start lower it, and there must be time left for one move.
- A training on demand stays there if so little work is left that a move would cost more than it saves.

With these rules, the deadline is met whenever going on demand at once would meet it, provided that a machine on demand is always
available and a changeover takes at most d.

Without a deadline, `spot_wait_ns` limits the wait for spot. A training that finds no spot machine goes on demand when it has made no
progress for this time. After 2d of work on demand, it moves back to spot as soon as a spot machine is available.

**Choice of the offer**: the offer whose progress has been cheapest so far. `PlacementMemory` learns the cost of progress on each offer: the
offer's price times the paid time per unit of progress. Paid time that was lost in preemptions raises the cost. If progress on a spot
offer costs more than on demand, the offer counts as unavailable until old observations have lost enough weight.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal, Self

from tuner.domain.job import MarketPolicy, markets_of
from tuner.domain.money import Price
from tuner.domain.offer import Offer
from tuner.domain.time import NS, Instant

# The weight of the prior, which assumes that an unknown offer wastes nothing. Therefore an unknown offer is tried before one that
# is known to waste time, and a single unlucky machine does not rule an offer out. With spot at a third of the on-demand price, the
# policy leaves spot after an hour without progress.
PRIOR_NS = 30 * 60 * NS
# The time after which an observation has half its weight. Frequent preemptions stop at some time, and only a new attempt on the offer
# can show that they have stopped.
HALF_LIFE_NS = 4 * 3600 * NS

Key = tuple[str, str, str | None, tuple[tuple[str, str], ...]]


def key_of(offer: Offer) -> Key:
    """Return the parts of an offer that stay the same when its price changes."""
    return offer.market, offer.instance_type, offer.region, offer.labels


@dataclass(frozen=True, slots=True)
class OfferRecord:
    """The time that was paid for on an offer, and the durable progress made in that time.

    Older observations have less weight. `at` is the instant for which the weights were computed.
    """

    paid_ns: int
    gained_ns: int  #: Progress, as the time that the same work takes on an on-demand machine.
    at: Instant

    def decayed(self, now: Instant) -> Self:
        weight = 0.5 ** (max(0, now - self.at) / HALF_LIFE_NS)
        return type(self)(round(self.paid_ns * weight), round(self.gained_ns * weight), now)


@dataclass(frozen=True, slots=True)
class PlacementMemory:
    """What placement remembers of a training. There is one record per offer, so the memory does not grow with time."""

    #: When the remaining work last fell, or when the machine was last lost: the later of the two.
    progressed: Instant
    least_ns: int  #: The least remaining work so far.
    records: Mapping[Key, OfferRecord] = field(default_factory=dict)
    current_offer: Key | None = None  #: The offer that the training runs on.
    left_at_start_ns: int = 0  #: The remaining work when the training moved to this offer.

    def looked(self, now: Instant, *, at: Offer | None, left_ns: int) -> Self:
        """Return the memory updated after an observation: the training runs on the offer `at`, or on none, and `left_ns` of work remain."""
        memory = self
        if left_ns < self.least_ns:
            memory = replace(memory, progressed=now, least_ns=left_ns)
        place = key_of(at) if at is not None else None
        if place != self.current_offer:
            memory = replace(memory, current_offer=place, left_at_start_ns=left_ns)
        return memory

    def waits(self, now: Instant) -> Self:
        """Return the memory updated after the machine was lost. A wait for spot begins now. `PlacementRequest.spot_wait_ns` limits the wait."""
        return replace(self, progressed=now)

    def after(self, offer: Offer, *, now: Instant, paid_ns: int, gained_ns: int) -> Self:
        """Return the memory updated with `paid_ns` of paid time on an offer, and with the progress `gained_ns` that was made in this time.

        Call this at each durable checkpoint, and when the training leaves or loses its machine.
        """
        before = self.records.get(key_of(offer), OfferRecord(0, 0, now)).decayed(now)
        record = OfferRecord(before.paid_ns + paid_ns, before.gained_ns + gained_ns, now)
        return replace(self, records={**self.records, key_of(offer): record})

    def price(self, offer: Offer, now: Instant) -> Price:
        """Return the estimated price of one hour of progress on the offer, rounded up. Past waste on the offer raises it."""
        record = self.records.get(key_of(offer), OfferRecord(0, 0, now)).decayed(now)
        paid = offer.price.micro_usd_per_hour * (record.paid_ns + PRIOR_NS)
        return Price(-(-paid // (record.gained_ns + PRIOR_NS)))

    def cheapest(self, offers: Collection[Offer], now: Instant) -> Offer | None:
        """Return the offer on which an hour of progress is cheapest, or None without offers. Ties go to the first by name."""
        return min(offers, key=lambda offer: (self.price(offer, now), _name(offer)), default=None)


def _name(offer: Offer) -> tuple[str, str, str, tuple[tuple[str, str], ...]]:
    return offer.market, offer.instance_type, offer.region or "", offer.labels


# The longest wait for spot without a deadline. In AWS's zones in 2023, half of the waits for a spot machine with a V100 ended within
# 18 to 29 min.
SPOT_WAIT_NS = 30 * 60 * NS
RETRY_NS = 15 * 60 * NS  # time until an available spot offer that was not worth its price is considered again
TIGHT = Fraction(
    7, 10
)  # if C(t) / R(t) is below this, a training cannot be behind the line (§A.8 of the paper)

Why = Literal[
    "done",
    "asked for",
    "cheapest",
    "stays",
    "safety net",
    "behind",
    "catches up",
    "ahead",
    "waits",
    "waited too long",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """What the user requested for a training.

    Raises:
        ValueError: A market that the training may use has no offer.
    """

    market: MarketPolicy
    offers: tuple[Offer, ...]
    begun: Instant
    work_ns: int  #: The whole work, as training time on an on-demand machine: C(0).
    deadline: Instant | None = None  #: None without a deadline. `deadline - begun` is R(0).
    #: The longest wait for spot without progress. Used only without a deadline.
    spot_wait_ns: int = SPOT_WAIT_NS

    def __post_init__(self) -> None:
        for market in markets_of(self.market):
            if not any(offer.market == market for offer in self.offers):
                raise ValueError(f"the market {market} needs at least one offer")

    @property
    def line_slope(self) -> Fraction:
        """Return the slope of the line of uniform progress: all work divided by the time from the start to the deadline.

        The slope is at least `TIGHT` and at most 1. Without this limit, it would be above 1 if the work was overestimated.
        """
        assert self.deadline is not None
        return min(Fraction(1), max(TIGHT, Fraction(self.work_ns, max(1, self.deadline - self.begun))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The situation of a training at one moment."""

    now: Instant
    #: The remaining work C(t) after the last durable checkpoint, as time on an on-demand machine, including saves.
    left_ns: int
    #: The changeover delay d, which is the sum of three maxima: the time from the order to move until the first new step (finish a step,
    #: save it, boot a machine), the work that a preemption may undo, and the delay of the next call after `PlacementChoice.until`.
    changeover_ns: int
    unsaved_ns: int = 0  #: Work that is not saved yet: a save before a move reduces `left_ns` by it.
    at: Offer | None = (
        None  #: The offer of the machine that the training has, or that is being started for it. None if there is none.
    )
    there: Collection[Offer] = ()  #: The spot offers that are available now.


@dataclass(frozen=True, slots=True)
class PlacementChoice:
    """The offer that a training should run on.

    The choice is valid up to the instant `until`. Choose again earlier if a machine is added or lost, if a spot offer becomes available or
    unavailable, or if a checkpoint becomes durable.
    """

    #: None if the training is done or should wait for spot. While it waits, the caller requests a spot machine.
    offer: Offer | None
    why: Why
    until: Instant | None = None  #: None if the choice has no time limit.


def choose(
    request: PlacementRequest, memory: PlacementMemory, observation: Observation
) -> tuple[PlacementMemory, PlacementChoice]:
    """Choose the offer that a training should run on now. Return the updated memory and the choice."""
    memory = memory.looked(observation.now, at=observation.at, left_ns=observation.left_ns)
    if observation.left_ns <= 0:
        return memory, PlacementChoice(None, "done")
    if request.market == "on_demand":
        return memory, _on_demand(request, memory, observation, "asked for")
    if observation.at is not None and observation.at.market == "spot" and request.market == "spot":
        return memory, PlacementChoice(observation.at, "stays")
    if request.market == "spot":
        offer = memory.cheapest(observation.there, observation.now)
        return memory, PlacementChoice(offer, "cheapest" if offer else "waits")
    if not _has_cheaper_spot(request, memory, observation.now):
        return memory, _on_demand(request, memory, observation, "cheapest")
    if _nearly_done(request, memory, observation):
        return memory, PlacementChoice(observation.at, "stays")
    if request.deadline is None:
        return memory, _without_deadline(request, memory, observation)
    return memory, _uniform(request, memory, observation)


def _uniform(request: PlacementRequest, memory: PlacementMemory, observation: Observation) -> PlacementChoice:
    now, schedule = observation.now, Schedule.of(request, observation)
    if observation.at is not None and observation.at.market == "spot":
        if schedule.slack_ns < observation.changeover_ns:
            return _on_demand(request, memory, observation, "safety net")
        return PlacementChoice(
            observation.at, "stays", Instant(now + schedule.slack_ns - observation.changeover_ns + 1)
        )
    if observation.at is not None:
        catching_up_ns = schedule.with_saved(observation.unsaved_ns).until_on_line_ns(
            2 * observation.changeover_ns
        )
        if catching_up_ns is None or catching_up_ns > 0:
            until = None if catching_up_ns is None else Instant(now + catching_up_ns)
            return PlacementChoice(observation.at, "catches up", until)
    elif schedule.slack_ns < 2 * observation.changeover_ns:
        return _on_demand(request, memory, observation, "safety net")
    spot = _worthwhile(request, memory, observation)
    if spot is not None:
        return PlacementChoice(spot, "cheapest")
    if observation.at is not None:
        return PlacementChoice(None, "ahead")
    behind_ns, unsafe_ns = schedule.until_off_line_ns(), schedule.slack_ns - 2 * observation.changeover_ns + 1
    if behind_ns <= 0:
        return _on_demand(request, memory, observation, "behind")
    return PlacementChoice(None, "waits", _retried(observation, min(behind_ns, unsafe_ns)))


def _without_deadline(
    request: PlacementRequest, memory: PlacementMemory, observation: Observation
) -> PlacementChoice:
    """Choose the offer of a training without a deadline, or let the training wait for spot."""
    if observation.at is not None and observation.at.market == "spot":
        return PlacementChoice(observation.at, "stays")
    if observation.at is not None:
        worked_ns = memory.left_at_start_ns - (observation.left_ns - observation.unsaved_ns)
        if worked_ns < 2 * observation.changeover_ns:
            return PlacementChoice(
                observation.at,
                "catches up",
                Instant(observation.now + 2 * observation.changeover_ns - worked_ns),
            )
    spot = _worthwhile(request, memory, observation)
    if spot is not None:
        return PlacementChoice(spot, "cheapest")
    left_ns = memory.progressed + request.spot_wait_ns - observation.now
    if observation.at is not None or left_ns <= 0:
        return _on_demand(request, memory, observation, "waited too long")
    return PlacementChoice(None, "waits", _retried(observation, left_ns))


def _retried(observation: Observation, within_ns: int) -> Instant:
    """Return when to choose again: after `within_ns`, or after `RETRY_NS` if a spot offer is available and `RETRY_NS` is shorter.

    Call this if no available spot offer was worth its price. An offer that was not worth its price may become worthwhile, because past
    observations lose weight with time.
    """
    return Instant(observation.now + (min(within_ns, RETRY_NS) if observation.there else within_ns))


def _on_demand(
    request: PlacementRequest, memory: PlacementMemory, observation: Observation, why: Why
) -> PlacementChoice:
    """Choose on-demand: the training's present machine if that is on demand, otherwise the cheapest on-demand offer."""
    if observation.at is not None and observation.at.market == "on_demand":
        until = Instant(observation.now + RETRY_NS) if observation.there else None
        return PlacementChoice(observation.at, why, until)
    return PlacementChoice(memory.cheapest(_of(request, "on_demand"), observation.now), why)


def _worthwhile(request: PlacementRequest, memory: PlacementMemory, observation: Observation) -> Offer | None:
    """Return the cheapest available spot offer, or None if progress on it is not cheaper than on demand."""
    demand = memory.cheapest(_of(request, "on_demand"), observation.now)
    spot = memory.cheapest(observation.there, observation.now)
    if (
        spot is None
        or demand is None
        or memory.price(spot, observation.now) >= memory.price(demand, observation.now)
    ):
        return None
    return spot


def _has_cheaper_spot(request: PlacementRequest, memory: PlacementMemory, now: Instant) -> bool:
    """Return whether an hour on any spot offer costs less than an hour of progress on demand. If not, waiting for spot is useless.

    The spot prices are not corrected for time that was wasted on spot so far.
    """
    demand = memory.cheapest(_of(request, "on_demand"), now)
    return demand is not None and any(o.price < memory.price(demand, now) for o in _of(request, "spot"))


def _nearly_done(request: PlacementRequest, memory: PlacementMemory, observation: Observation) -> bool:
    """Return whether so little work is left on demand that a move to spot would cost more than it saves."""
    if observation.at is None or observation.at.market != "on_demand":
        return False
    left_ns = observation.left_ns - observation.unsaved_ns
    spot = min(memory.price(offer, observation.now) for offer in _of(request, "spot"))
    return spot.of(left_ns + observation.changeover_ns) >= memory.price(observation.at, observation.now).of(
        left_ns
    )


def _of(request: PlacementRequest, market: MarketPolicy) -> list[Offer]:
    return [offer for offer in request.offers if offer.market == market]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The progress of a training relative to its deadline."""

    left_ns: int  #: Remaining work: C(t).
    time_ns: int  #: Remaining time: R(t).
    line_slope: Fraction  #: The slope of the line of uniform progress: required work per unit of time.

    @classmethod
    def of(cls, request: PlacementRequest, observation: Observation) -> Self:
        assert request.deadline is not None
        return cls(observation.left_ns, request.deadline - observation.now, request.line_slope)

    def with_saved(self, unsaved_ns: int) -> Self:
        return type(self)(self.left_ns - unsaved_ns, self.time_ns, self.line_slope)

    @property
    def slack_ns(self) -> int:
        return self.time_ns - self.left_ns

    def until_off_line_ns(self) -> int:
        """Return the nanoseconds until an idle training falls behind the line of uniform progress, or 0 or less if it is already behind.

        The line is the progress of a training that works at an even pace and ends at the deadline.
        """
        # The progress C(0) - C(t) is less than C(0)·t/R(0) if and only if C(t) > C(0)/R(0)·R(t).
        return self.time_ns - self.left_ns * self.line_slope.denominator // self.line_slope.numerator

    def until_on_line_ns(self, ahead_ns: int) -> int | None:
        """Return how long the training must work without interruption to be `ahead_ns` ahead of the line of uniform progress.

        The line is the progress of a training that works at an even pace and ends at the deadline.

        Returns:
            Nanoseconds. 0 if the training is far enough ahead already. None if it never gets that far ahead.
        """
        # Solve (C - x) · q = p · (R - x - ahead) for x. The slope of the line is p/q.
        p, q = self.line_slope.numerator, self.line_slope.denominator
        short = self.left_ns * q - p * (self.time_ns - ahead_ns)
        if short <= 0 or p >= q:
            return 0 if short <= 0 else None
        return -(-short // (q - p))
