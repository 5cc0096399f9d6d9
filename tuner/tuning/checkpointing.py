"""How often a training saves: Young's rule with Daly's refinement, in whole steps.

With δ the time that training waits for a save, and M the mean time between losses of what was not saved, the least time is
lost with about √(2δM) of training between saves (Young, CACM 17(9), 1974; Daly, FGCS 22(3), 2006). δ is measured at each
save. M is learned: a Gamma distribution of the rate, whose prior counts as one interruption, so that a market in which nothing
happened yet is not one in which nothing happens.

**Which losses count.** A preemption that is announced early enough costs nothing: the step is finished and saved. It surely is
early enough where a whole step and a save fit into the notice, as it may come when a step has just begun; then only crashes
and preemptions without a notice are left to insure against. Where a save fits, but a whole step does not, it is early enough in
so large a part of all cases as what is beside the save is of a step. Where not even a save fits, every preemption costs what was
not saved, and all count.

**Never rarer** than a tenth of the mean time between *all* losses. A loss costs half an interval on average, so that even where
no notice comes at most a twentieth of the time is lost to it. And **at every step** where there are notices that are too short
for a step and its save: one that comes as a step begins would else cost all finished steps since the last save, not that step.

**Never more often** than keeps the stalls within a twentieth of the training, nor than saves become durable: one that waits for
the one before stalls for longer. This bound wins. It binds where M is below 200 δ, which is where Young's interval passes a
tenth of M, so that the two only meet in a storm.
"""

import math
from dataclasses import dataclass, field
from typing import Self

from tuner.domain.time import NS

HOUR_NS = 3600 * NS
# Machines of AWS with one V100, held in four zones in April 2023, lasted for 1.4 to 3.2 h on average (skypilot-org/spot-traces).
SPOT_MEAN_NS = 2 * HOUR_NS
# They are in the worst of AWS's published bands, "more than 20 % a month", which the traces contradict by two orders of
# magnitude; what is published ranks markets, and is used for no more.
SPOT_MEAN_SHARE = 0.25
RANKED_WITHIN_NS = (HOUR_NS, 48 * HOUR_NS)
CRASH_MEAN_NS = 30 * 24 * HOUR_NS  # a machine that nobody takes away; no source: a cautious guess
REACTION_NS = 5 * NS  # from the notice until somebody knows: AWS advises to ask every 5 s
STALL_PART = 20  # a save may stall for a twentieth of the training that it covers
LOSS_PART = 10  # and an interval be a tenth of the mean time between losses, as half of it is lost on average


@dataclass(frozen=True, slots=True)
class Hazard:
    """Interruptions in so much machine time; the prior is one of them. The rate's mean is that of Gamma(events, node_ns)."""

    node_ns: int
    events: int = 1

    @classmethod
    def of_spot(cls, monthly_share: float | None = None) -> Self:
        """The prior of a spot market, from the share of its machines that is published as interrupted in a month.

        None or out of (0, 1): not known.
        """
        if monthly_share is None or not 0 < monthly_share < 1:
            return cls(SPOT_MEAN_NS)
        least, most = RANKED_WITHIN_NS
        ranked = SPOT_MEAN_NS * math.log1p(-SPOT_MEAN_SHARE) / math.log1p(-monthly_share)
        return cls(round(min(most, max(least, ranked))))

    @classmethod
    def of_crashes(cls) -> Self:
        return cls(CRASH_MEAN_NS)

    def after(self, node_ns: int, events: int = 0) -> Self:
        """With what was observed: nanoseconds of machines that were up, and how many of them went."""
        return type(self)(self.node_ns + node_ns, self.events + events)

    @property
    def mean_ns(self) -> int:
        """Between two interruptions of one machine."""
        return max(1, self.node_ns // self.events)


@dataclass(frozen=True, slots=True)
class Notices:
    """Preemptions, and how many of them came without the notice. Prior: one in ten, as the clouds promise no more than best
    effort."""

    preemptions: int = 10
    missed: int = 1

    def after(self, *, missed: bool) -> Self:
        return type(self)(self.preemptions + 1, self.missed + missed)


@dataclass(frozen=True, slots=True)
class Saving:
    """What a save takes, counted from the end of a step: `stall_ns` until training goes on, a running mean; `durable_ns` until
    nothing that happens to the machine matters any more, the longest of late."""

    stall_ns: int
    durable_ns: int

    def after(self, stall_ns: int, durable_ns: int) -> Self:
        """With one more save. A single slow one moves the mean by a quarter, and is remembered for some four saves."""
        return type(self)((3 * self.stall_ns + stall_ns) // 4, max(durable_ns, self.durable_ns * 3 // 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What may end an attempt. `preemption` None: the machine is not taken away (on demand). `notice_ns` None: without notice."""

    preemption: Hazard | None = None
    crash: Hazard = field(default_factory=Hazard.of_crashes)
    notice_ns: int | None = None
    notices: Notices = field(default_factory=Notices)

    @property
    def mean_ns(self) -> int:
        """Between losses of any kind."""
        return _together(self.preemption.mean_ns if self.preemption else None, self.crash.mean_ns)

    def unsaved_mean_ns(self, step_ns: int, saving: Saving) -> int:
        """Between losses that cost what was not saved."""
        if self.preemption is None:
            return self.mean_ns
        # Of all preemptions are saved: those with a notice, (n - missed)/n, times those in time, in_time/step.
        in_time_ns = min(step_ns, max(0, _beside_save_ns(self.notice_ns, saving.durable_ns)))
        count, missed = self.notices.preemptions, self.notices.missed
        lost = count * step_ns - (count - missed) * in_time_ns
        return _together(self.preemption.mean_ns * count * step_ns // lost, self.crash.mean_ns)


def saves_on_notice(notice_ns: int | None, step_ns: int, durable_ns: int) -> bool:
    """Whether a notice can be counted on to save all: the step that has begun is finished, and its save is durable in time."""
    return step_ns <= _beside_save_ns(notice_ns, durable_ns)


def _beside_save_ns(notice_ns: int | None, durable_ns: int) -> int:
    """The part of a notice in which a step may be finished. Below 0 where the notice is too short, or there is none."""
    return -1 if notice_ns is None else notice_ns - REACTION_NS - durable_ns


def young_ns(stall_ns: int, mean_ns: int) -> int:
    """Training between saves, to first order: √(2δM)."""
    return math.isqrt(2 * stall_ns * mean_ns)


def daly_ns(stall_ns: int, mean_ns: int) -> int:
    """Training between saves, to third order in √(δ/2M): √(2δM)·(1 + ⅓√(δ/2M) + ⅑(δ/2M)) − δ, or M where δ is 2M or more.

    >>> round(daly_ns(5 * 60 * NS, 24 * HOUR_NS) / (60 * NS))  # minutes; Daly's figure 3
    117
    """
    if stall_ns >= 2 * mean_ns:
        return mean_ns
    root = math.sqrt(stall_ns / (2 * mean_ns))
    return round(2 * mean_ns * (root - 2 / 3 * root**2 + root**3 / 9))


def steps_between(*, step_ns: int, saving: Saving, exposure: Exposure) -> int:
    """After how many steps to save, 1 at least. `step_ns` is how long a step takes; the longest of late, where they differ."""
    step_ns = max(1, step_ns)
    wanted_ns = daly_ns(saving.stall_ns, exposure.unsaved_mean_ns(step_ns, saving))
    at_least = -(-max(STALL_PART * saving.stall_ns, saving.durable_ns) // step_ns)
    at_most = exposure.mean_ns // LOSS_PART // step_ns
    if exposure.preemption is not None and exposure.notice_ns is not None:
        at_most = at_most if saves_on_notice(exposure.notice_ns, step_ns, saving.durable_ns) else 1
    return max(1, at_least, min((wanted_ns + step_ns // 2) // step_ns, at_most))


def _together(one_ns: int | None, other_ns: int) -> int:
    """The mean time between two of either kind: their rates add up."""
    return other_ns if one_ns is None else max(1, one_ns * other_ns // (one_ns + other_ns))
