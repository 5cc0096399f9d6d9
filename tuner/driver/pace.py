"""Learn how long steps, starts and saves take, from the workers' reports.

The durations determine the shortest useful lease and when a trial counts as hanging.
"""

from dataclasses import dataclass, field

from tuner.domain import events as ev
from tuner.domain.cost import CostKind, Meter
from tuner.tuning.guard import UNKNOWN_NEED_NS

# A trial counts as hanging if it trains without a report for HANG_TIMES times as long as the job's slowest step took. Before the first
# step, the limit is the time for which the budget could pay, divided by HANG_BUDGET_PART. The limit is never below STEP_FLOOR_NS. The
# same rule applies to setup, loading and saving, with OVERHEAD_FLOOR_NS.
HANG_TIMES = 20
HANG_BUDGET_PART = 8
STEP_FLOOR_NS = 30_000_000_000
OVERHEAD_FLOOR_NS = 120_000_000_000

OVERHEAD: tuple[CostKind, ...] = ("setup", "restore", "checkpoint")


def overhead_ns(meter: Meter, outage_ns: int) -> int:
    """Return the overhead on an attempt's meter, in nanoseconds, without `outage_ns`, the time spent waiting for a storage that failed."""
    return max(0, sum(meter.ns.get(kind, 0) for kind in OVERHEAD) - outage_ns)


@dataclass(slots=True)
class JobPace:
    """Remember how long the steps and the overhead (setup, restore, saves) of a job's attempts take.

    A new trial may begin if the remaining budget can pay for the shortest useful lease, which covers the smallest overhead and the fastest
    step seen so far. If this lease turns out too short, its cost is wasted, but so little money could not have paid for anything else.
    """

    step_ns: dict[str, int] = field(default_factory=dict)  #: The slowest of the last few steps, by trial.
    fastest_ns: int = 0  #: The fastest step of all trials.
    slowest_ns: int = 0  #: The slowest step of all trials.
    longest_overhead_ns: int = 0  #: The longest overhead of an attempt.
    least_overhead_ns: int = 0  #: The least overhead of an attempt, without warming up the worker.
    #: The shortest time in which a new worker of an earlier driver warmed up. 0 once an attempt of this driver has ended.
    warming_ns: int = 0
    #: The lease that a trial needs after its last one was too short for one step, by trial.
    wanted_ns: dict[str, int] = field(default_factory=dict)

    def recall(self, event: ev.Event) -> None:
        """Learn from an event that an earlier driver of the job recorded.

        Events do not record how long saves took, so `longest_overhead_ns` stays unknown. Otherwise a long save would count as hanging.
        """
        if not isinstance(event, ev.Reported):
            return
        if event.train_ns:  # 0 if the step was reported twice
            self.stepped(event.trial, event.train_ns)
        # A storage that failed while the worker warmed up may have made the recorded start shorter than the warming.
        start_ns = max(0, event.start_ns - event.warming_ns)
        self.least_overhead_ns = _least(start_ns, self.least_overhead_ns)
        self.warming_ns = _least(event.warming_ns, self.warming_ns)

    def stepped(self, trial: str, train_ns: int) -> None:
        """Note the duration of a trial's step.

        The remembered duration is that of the trial's slowest step. It shrinks by a quarter with each further step, so that a single
        slow step is forgotten.
        """
        self.step_ns[trial] = max(train_ns, self.step_ns.get(trial, 0) * 3 // 4)
        self.fastest_ns = _least(train_ns, self.fastest_ns)
        self.slowest_ns = max(train_ns, self.slowest_ns)
        self.wanted_ns.pop(trial, None)

    def ended(self, trial: str, meter: Meter, *, warming_ns: int, outage_ns: int, starved: bool) -> None:
        """Update the overheads with the billed times of an attempt that has ended.

        Args:
            trial: The trial.
            meter: The last reading of the worker's meter.
            warming_ns: The time in which a new worker prepared itself. It does not count towards `least_overhead_ns`, because the
                worker's next attempt needs only a hundredth of this time.
            outage_ns: The time spent waiting for a storage that failed. It does not count as overhead.
            starved: Whether the lease ended before the attempt finished its first step. The trial's next attempt then needs a longer lease.
        """
        overhead = overhead_ns(meter, outage_ns)
        self.longest_overhead_ns = max(overhead, self.longest_overhead_ns)
        overhead -= warming_ns
        trained = meter.ns.get("train", 0)
        if overhead > 0 and trained:  # without training, the setup may be incomplete and its time too short
            self.least_overhead_ns = _least(overhead, self.least_overhead_ns)
            self.warming_ns = 0
        if starved:
            self.wanted_ns[trial] = self.least_overhead_ns + 2 * trained

    def begin_need_ns(self, trial: str, *, warms_up: bool = True) -> int:
        """Return the length, in nanoseconds, of the shortest useful lease of the trial's next attempt.

        All workers of a new driver have to warm up. If all of them started, they would share money that does not pay for all of their starts. So
        the lease includes the warming, unless `warms_up` is false.
        """
        step = self.step_ns.get(trial, self.fastest_ns)
        warming_ns = self.warming_ns if warms_up else 0
        known = self.least_overhead_ns + warming_ns + step * 5 // 4 if step else UNKNOWN_NEED_NS
        return max(known, self.wanted_ns.get(trial, 0))

    def hangs(self, *, trained_ns: int, overhead_ns: int, buys_ns: int) -> str:
        """Return why a trial is considered hanging, or "" if it is not.

        Args:
            trained_ns: Training time since the trial's last report.
            overhead_ns: Time of setup, restore and checkpoints since the trial's last report, without waiting for a storage that failed.
            buys_ns: How long the job's whole budget could pay for one trial, in nanoseconds. Before a step (or an overhead) was
                measured, the trial counts as hanging after 1/`HANG_BUDGET_PART` of this time without a report.
        """
        for ns, seen, floor, where in (
            (trained_ns, self.slowest_ns, STEP_FLOOR_NS, "training"),
            (overhead_ns, self.longest_overhead_ns, OVERHEAD_FLOOR_NS, "setting up, loading or saving"),
        ):
            limit_ns = max(floor, HANG_TIMES * seen if seen else buys_ns // HANG_BUDGET_PART)
            if ns > limit_ns:
                return (
                    f"the trial was ended because it did not report for {limit_ns / 1e9:.0f} s of {where} and may have been hanging; "
                    "report more often, or make the steps shorter"
                )
        return ""

    def step_need_ns(self, trial: str) -> int:
        """Return the time, in nanoseconds, that the trial's next step needs, with a margin of a quarter. Return 0 before its first step."""
        return self.step_ns.get(trial, 0) * 5 // 4


def _least(one_ns: int, other_ns: int) -> int:
    """Return the shorter of two times. 0 means that a time is not known."""
    return min(one_ns, other_ns) or max(one_ns, other_ns)
