"""Where a training runs next: on spot machines, on demand, or nowhere for now, while it waits for spot.

With a deadline the rules are those of Uniform Progress for one training (Wu et al., Can't Be Late, NSDI 2024, §3.3 and §5.2), and
each is named where it decides. The paper's symbols: C(t) is the work that is left, as time on demand; R(t) the time that is
left; d the changeover delay, from the order to move until training goes on, with the progress that is lost on the way at most.

- Thrifty: what has no work left takes no machine.
- Safety net: an idle training with R(t) < C(t) + 2d goes on demand, and stays there to its end.
- Exploitation: a training on spot stays there until it is preempted.
- Taking risks: an idle one takes spot where there is some, late or not.
- Uniform progress: an idle one that is behind the straight line from nothing to all of its work goes on demand.
- Hysteresis: on demand it stays until it is as far as the line will be after another 2d.

Three things are ours:

- While most of the time is to spare, C(t) < 0.7 R(t), there is no line to be behind; §A.8 switches the rules off there.
- A training leaves spot, against Exploitation, once R(t) < C(t) + d. The paper has it make progress at full speed there, so that
  R(t) - C(t) cannot fall; but saving, a slower machine and a slow start lower it, and the time to move once must remain.
- On demand it stays where so little is left that a move would cost more than it saves.

With these the deadline is met wherever going on demand at once would meet it, provided that a machine on demand can always be
had and d is not exceeded.

Without a deadline nothing says how long spot is worth waiting for, so that `patience_ns` does: so long after its last progress
a training that finds no spot goes on demand. It goes back, after 2d of work there, when spot is to be had.

**Which of the offers**: the cheapest by what progress cost there so far (`Memory`). A storm of preemptions shows in it as time
that was paid for and lost; spot that is dearer than on demand counts as not there until the memory of it has faded.
"""

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Self

from tuner.domain.job import Market
from tuner.domain.offer import Offer
from tuner.domain.time import NS, Instant
from tuner.tuning.progress_price import Memory

PATIENCE_NS = 30 * 60 * NS  # half of the waits for a V100 in AWS's zones in 2023 were over after 18 to 29 min
RETRY_NS = 15 * 60 * NS  # until spot that was not worth its price is looked at again
TIGHT = Fraction(7, 10)  # the switch point of §A.8

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
    "out of patience",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What was asked for. `work_ns` is C(0), `deadline` - `begun` is R(0); None: there is no deadline. Raises ValueError where
    the market has no offer."""

    market: Market
    offers: tuple[Offer, ...]
    begun: Instant
    work_ns: int
    deadline: Instant | None = None
    patience_ns: int = PATIENCE_NS

    def __post_init__(self) -> None:
        for market in ("on_demand", "spot") if self.market == "spot_with_fallback" else (self.market,):
            if not any(offer.market == market for offer in self.offers):
                raise ValueError(f"there is no {market} offer")

    @property
    def line(self) -> Fraction:
        """The work of a unit of time on the line: C(0)/R(0), or the switch point where that is later on. At most all of the time,
        where the work was thought to be more than that and is not."""
        assert self.deadline is not None
        return min(Fraction(1), max(TIGHT, Fraction(self.work_ns, max(1, self.deadline - self.begun))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is seen at one moment. `at`: the offer whose machine the training has, or waits for to start. `there`: the spot offers
    of which a machine can be had now.

    `left_ns` is C(t) as of the last durable checkpoint, in the time that it takes on demand, its saves included. `unsaved_ns`:
    by how much it falls where the training is saved before it moves. `changeover_ns` is d: on the slowest path from the order
    to move, finishing a step and saving it, over a machine that boots, to the first new step; and the longest work that a
    preemption may undo; and how late after `Choice.until` the next look may be.
    """

    now: Instant
    left_ns: int
    changeover_ns: int
    unsaved_ns: int = 0
    at: Offer | None = None
    there: Collection[Offer] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """Where to be. None: nowhere, and unless it is done, spot is asked for. The same is chosen again until `until` (None: for
    good), unless a machine goes, comes or cannot be had any more, or a checkpoint becomes durable before."""

    offer: Offer | None
    why: Why
    until: Instant | None = None


def choose(terms: Terms, memory: Memory, sight: Sight) -> tuple[Memory, Choice]:
    """Where the training is to be now, and what is to be remembered."""
    memory = memory.looked(sight.now, at=sight.at, left_ns=sight.left_ns)
    if sight.left_ns <= 0:
        return memory, Choice(None, "done")
    if terms.market == "on_demand":
        return memory, _on_demand(terms, memory, sight, "asked for")
    if sight.at is not None and sight.at.market == "spot" and terms.market == "spot":
        return memory, Choice(sight.at, "stays")
    if terms.market == "spot":
        found = memory.cheapest(sight.there, sight.now)
        return memory, Choice(found, "cheapest" if found else "waits")
    if not _has_cheaper_spot(terms, memory, sight.now):
        return memory, _on_demand(terms, memory, sight, "cheapest")
    if _nearly_done(terms, memory, sight):
        return memory, Choice(sight.at, "stays")
    if terms.deadline is None:
        return memory, _patient(terms, memory, sight)
    return memory, _uniform(terms, memory, sight)


def _uniform(terms: Terms, memory: Memory, sight: Sight) -> Choice:
    now, schedule = sight.now, Schedule.of(terms, sight)
    if sight.at is not None and sight.at.market == "spot":
        if schedule.slack_ns < sight.changeover_ns:
            return _on_demand(terms, memory, sight, "safety net")
        return Choice(sight.at, "stays", Instant(now + schedule.slack_ns - sight.changeover_ns + 1))
    if sight.at is not None:
        catching_up_ns = schedule.with_saved(sight.unsaved_ns).until_on_line_ns(2 * sight.changeover_ns)
        if catching_up_ns is None or catching_up_ns > 0:
            until = None if catching_up_ns is None else Instant(now + catching_up_ns)
            return Choice(sight.at, "catches up", until)
    elif schedule.slack_ns < 2 * sight.changeover_ns:
        return _on_demand(terms, memory, sight, "safety net")
    spot = _worthwhile(terms, memory, sight)
    if spot is not None:
        return Choice(spot, "cheapest")
    if sight.at is not None:
        return Choice(None, "ahead")
    behind_ns, unsafe_ns = schedule.until_off_line_ns(), schedule.slack_ns - 2 * sight.changeover_ns + 1
    if behind_ns <= 0:
        return _on_demand(terms, memory, sight, "behind")
    return Choice(None, "waits", _retried(sight, min(behind_ns, unsafe_ns)))


def _patient(terms: Terms, memory: Memory, sight: Sight) -> Choice:
    """Without a deadline."""
    if sight.at is not None and sight.at.market == "spot":
        return Choice(sight.at, "stays")
    if sight.at is not None:
        worked_ns = memory.landed_ns - (sight.left_ns - sight.unsaved_ns)
        if worked_ns < 2 * sight.changeover_ns:
            return Choice(sight.at, "catches up", Instant(sight.now + 2 * sight.changeover_ns - worked_ns))
    spot = _worthwhile(terms, memory, sight)
    if spot is not None:
        return Choice(spot, "cheapest")
    left_ns = memory.progressed + terms.patience_ns - sight.now
    if sight.at is not None or left_ns <= 0:
        return _on_demand(terms, memory, sight, "out of patience")
    return Choice(None, "waits", _retried(sight, left_ns))


def _retried(sight: Sight, within_ns: int) -> Instant:
    """Spot that is there and not taken is thought of again, as the memory of it fades."""
    return Instant(sight.now + (min(within_ns, RETRY_NS) if sight.there else within_ns))


def _on_demand(terms: Terms, memory: Memory, sight: Sight, why: Why) -> Choice:
    """On the machine that it has, or on the cheapest of its kind."""
    if sight.at is not None and sight.at.market == "on_demand":
        until = Instant(sight.now + RETRY_NS) if sight.there else None
        return Choice(sight.at, why, until)
    return Choice(memory.cheapest(_of(terms, "on_demand"), sight.now), why)


def _worthwhile(terms: Terms, memory: Memory, sight: Sight) -> Offer | None:
    """The cheapest spot offer that is there, if progress is cheaper on it than on demand."""
    demand = memory.cheapest(_of(terms, "on_demand"), sight.now)
    spot = memory.cheapest(sight.there, sight.now)
    if spot is None or demand is None or memory.price(spot, sight.now) >= memory.price(demand, sight.now):
        return None
    return spot


def _has_cheaper_spot(terms: Terms, memory: Memory, now: Instant) -> bool:
    """Whether there is anything to wait for: a market may be at the price on demand. What spot wasted so far does not count."""
    demand = memory.cheapest(_of(terms, "on_demand"), now)
    return demand is not None and any(o.price < memory.price(demand, now) for o in _of(terms, "spot"))


def _nearly_done(terms: Terms, memory: Memory, sight: Sight) -> bool:
    """Whether so little is left on demand that a move to spot would cost more than it saves."""
    if sight.at is None or sight.at.market != "on_demand":
        return False
    left_ns = sight.left_ns - sight.unsaved_ns
    spot = min(memory.price(offer, sight.now) for offer in _of(terms, "spot"))
    return spot.of(left_ns + sight.changeover_ns) >= memory.price(sight.at, sight.now).of(left_ns)


def _of(terms: Terms, market: Market) -> list[Offer]:
    return [offer for offer in terms.offers if offer.market == market]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a training stands against its deadline: C(t), R(t), and the work of a unit of time on the line."""

    left_ns: int
    time_ns: int
    line: Fraction

    @classmethod
    def of(cls, terms: Terms, sight: Sight) -> Self:
        assert terms.deadline is not None
        return cls(sight.left_ns, terms.deadline - sight.now, terms.line)

    def with_saved(self, unsaved_ns: int) -> Self:
        return type(self)(self.left_ns - unsaved_ns, self.time_ns, self.line)

    @property
    def slack_ns(self) -> int:
        return self.time_ns - self.left_ns

    def until_off_line_ns(self) -> int:
        """When an idle training will be behind the line; 0 or less: it is."""
        # The progress C(0) - C(t) is short of C(0)·t/R(0) just where C(t) is over C(0)/R(0)·R(t).
        return self.time_ns - self.left_ns * self.line.denominator // self.line.numerator

    def until_on_line_ns(self, ahead_ns: int) -> int | None:
        """After how much work without a break it will be where the line is `ahead_ns` later; 0 or less: it is; None: never."""
        # (C - x) · q = p · (R - x - ahead), where the line is p/q.
        p, q = self.line.numerator, self.line.denominator
        short = self.left_ns * q - p * (self.time_ns - ahead_ns)
        if short <= 0 or p >= q:
            return 0 if short <= 0 else None
        return -(-short // (q - p))
