"""How often a training saves a checkpoint: Young's rule with Daly's refinement, in whole steps.

Let δ be the time that training waits for a save, and M the mean time between losses of unsaved work. The least time is lost if about
√(2δM) of training lies between two saves (Young, CACM 17(9), 1974; Daly, FGCS 22(3), 2006). δ is measured at each save. M is
estimated from the observed interruptions, with a Gamma distribution of their rate. The prior counts as one interruption, so that a
market without interruptions so far is not assumed to stay without them.

**Losses that count.** A preemption loses no work if its notice comes early enough to finish and save the current step. That is always
the case if a whole step and a save fit into the notice time, even if the notice comes when a step has just begun. Then only crashes and
preemptions without a notice count as losses. If a save fits but a whole step does not, the notice is early enough with
probability (notice - save) / step. If not even a save fits, every preemption loses the unsaved work and counts as a loss.

**Upper bound of the interval**: a tenth of the mean time between *all* losses. A loss costs half an interval on average, so at
most a twentieth of the time is lost even if no notice comes. If there are notices but they are too short for a step and its
save, training saves **at every step**. Otherwise a preemption whose notice comes at the start of a step would lose all finished steps
since the last save, not only the current step.

**Lower bound of the interval**: saves may take at most a twentieth of the training time, and a save must be durable before
the next one begins, because it would otherwise wait. This bound takes precedence. It conflicts with the upper bound only if M is
below 200 δ, where Young's interval exceeds a tenth of M, that is, during very frequent preemptions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from tuner.domain.time import HOUR_NS, NS

# In four zones of AWS in April 2023, spot machines with one V100 lasted 1.4 to 3.2 h on average (skypilot-org/spot-traces).
SPOT_MEAN_NS = 2 * HOUR_NS
# Mean time until a machine crashes without a preemption: a cautious guess without a source.
CRASH_MEAN_NS = 30 * 24 * HOUR_NS
REACTION_NS = 5 * NS  # time from a preemption notice until the driver sees it: AWS advises to poll every 5 s
LEAST_STALL_NS = NS // 10  # plans and advice assume that a save stalls training for at least this time
STALL_PART = 20  # a save may stall training for at most a twentieth of the training that it covers
LOSS_PART = 10  # an interval is at most a tenth of the mean time between losses, because half of it is lost on average


@dataclass(frozen=True, slots=True)
class Losses:
    """How long attempts had machines, and how the attempts ended. This shows how often attempts lose their machines.

    Attempts that never had a machine are left out.
    """

    machine_ns: int = 0  #: How long the attempts had their machines, summed.
    #: Number of ended attempts by outcome, without attempts that ended because their driver ended: they lost no machine.
    outcomes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hazard:
    """The estimated rate of interruptions: `events` per `node_ns` nanoseconds, which is the mean of the distribution Gamma(events, node_ns).

    It may be the rate of one machine, or of all machines of an attempt together.
    """

    #: Time that attempts ran on machines of the market, in nanoseconds, plus the time of the prior.
    node_ns: int
    events: int = 1  #: Interruptions during `node_ns`. The prior counts as one.

    @classmethod
    def of_spot(cls, nodes: int = 1) -> Self:
        """Return the prior for an attempt on `nodes` spot machines, before any observation."""
        return cls(SPOT_MEAN_NS // nodes)

    @classmethod
    def of_crashes(cls, nodes: int = 1) -> Self:
        return cls(CRASH_MEAN_NS // nodes)

    def after(self, node_ns: int, events: int = 0) -> Self:
        """Return the rate after more attempts were observed, which lasted `node_ns` and were interrupted `events` times."""
        return type(self)(self.node_ns + node_ns, self.events + events)

    @property
    def mean_ns(self) -> int:
        """Return the mean time between two interruptions."""
        return max(1, self.node_ns // self.events)


@dataclass(frozen=True, slots=True)
class Notices:
    """Counts of preemptions with and without a notice.

    The prior is ten preemptions, one of them without a notice, because clouds give notices only on a best-effort basis.
    """

    preemptions: int = 10
    missed: int = 1  #: Preemptions without a notice.


@dataclass(frozen=True, slots=True)
class SaveTimes:
    """How long a save takes. Both durations are in nanoseconds from the end of a step."""

    stall_ns: int  #: Time until training continues, as a running mean.
    durable_ns: (
        int  #: Time until the checkpoint would survive the loss of the machine: the longest recent time.
    )

    def after(self, stall_ns: int, durable_ns: int) -> Self:
        """Return the durations after one more save with the measured `stall_ns` and `durable_ns`.

        The new `stall_ns` is three quarters of the old one plus a quarter of the measured one. The new `durable_ns` is the larger of
        the measured one and three quarters of the old one. A slow save is therefore forgotten gradually.
        """
        return type(self)((3 * self.stall_ns + stall_ns) // 4, max(durable_ns, self.durable_ns * 3 // 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptionRisk:
    """How likely preemptions and crashes are to end an attempt, and how much notice comes before a preemption."""

    preemption: Hazard | None = None  #: None if the machine is on demand, so that it cannot be preempted.
    crash: Hazard = field(default_factory=Hazard.of_crashes)
    notice_ns: int | None = None  #: Time from the notice to the preemption. None without a notice.
    notices: Notices = field(default_factory=Notices)

    @property
    def mean_ns(self) -> int:
        """Return the mean time between interruptions of any kind."""
        return _together(self.preemption.mean_ns if self.preemption else None, self.crash.mean_ns)

    def unsaved_mean_ns(self, step_ns: int, saving: SaveTimes) -> int:
        """Return the mean time between interruptions that lose unsaved work."""
        if self.preemption is None:
            return self.mean_ns
        # A preemption loses no work if it has a notice and the notice comes early enough. The probabilities are (n - missed)/n and
        # in_time/step.
        in_time_ns = min(step_ns, max(0, _time_before_save_ns(self.notice_ns, saving.durable_ns)))
        count, missed = self.notices.preemptions, self.notices.missed
        lost = count * step_ns - (count - missed) * in_time_ns
        return _together(self.preemption.mean_ns * count * step_ns // lost, self.crash.mean_ns)


def saves_on_notice(notice_ns: int | None, step_ns: int, durable_ns: int) -> bool:
    """Return whether every notice is early enough to finish the current step and to make its checkpoint durable."""
    return step_ns <= _time_before_save_ns(notice_ns, durable_ns)


def _time_before_save_ns(notice_ns: int | None, durable_ns: int) -> int:
    """Return how much time a notice leaves to finish a step: the notice time minus the time to notice it and the time of a save.

    The result is negative if the notice is too short for a save, or if no notice comes.
    """
    return -1 if notice_ns is None else notice_ns - REACTION_NS - durable_ns


def daly_ns(stall_ns: int, mean_ns: int) -> int:
    """Return the best training time between saves, in nanoseconds, by Daly's formula.

    `stall_ns` (δ) is how long a save stalls training. `mean_ns` (M) is the mean time between losses of unsaved work. The formula is
    √(2δM)·(1 + ⅓√(δ/2M) + ⅑(δ/2M)) − δ, or M if δ is at least 2M.

    >>> round(daly_ns(5 * 60 * NS, 24 * HOUR_NS) / (60 * NS))  # minutes; Daly's figure 3
    117
    """
    if stall_ns >= 2 * mean_ns:
        return mean_ns
    root = math.sqrt(stall_ns / (2 * mean_ns))
    return round(2 * mean_ns * (root - 2 / 3 * root**2 + root**3 / 9))


def steps_between(*, step_ns: int, saving: SaveTimes, risk: InterruptionRisk) -> int:
    """Return the number of steps between saves, at least 1.

    Args:
        step_ns: The duration of a step. If durations differ, pass the longest recent duration.
        saving: How long a save takes.
        risk: The interruptions that may end the attempt.
    """
    step_ns = max(1, step_ns)
    wanted_ns = daly_ns(saving.stall_ns, risk.unsaved_mean_ns(step_ns, saving))
    at_least = -(-max(STALL_PART * saving.stall_ns, saving.durable_ns) // step_ns)
    at_most = risk.mean_ns // LOSS_PART // step_ns
    if risk.preemption is not None and risk.notice_ns is not None:
        at_most = at_most if saves_on_notice(risk.notice_ns, step_ns, saving.durable_ns) else 1
    return max(1, at_least, min((wanted_ns + step_ns // 2) // step_ns, at_most))


def _together(one_ns: int | None, other_ns: int) -> int:
    """Return the mean time between events of either of two kinds, from the mean time between events of each kind.

    `one_ns` is None if events of the first kind never occur.
    """
    return other_ns if one_ns is None else max(1, one_ns * other_ns // (one_ns + other_ns))
