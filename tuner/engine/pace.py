"""How long things take, learned from what workers report: how much lease a trial needs to be worth beginning."""

from dataclasses import dataclass, field

from tuner.domain.cost import CostKind, Meter
from tuner.tuning.guard import UNKNOWN_NEED_NS

# A trial that trains for so long without a report hangs: so many of the slowest steps seen, or where none was seen, this part
# of what the budget buys. Never less than the floor. The same for the time around training: setting up, loading, saving.
PATIENCE_TIMES = 20
PATIENCE_BUDGET = 8
STEP_FLOOR_NS = 30_000_000_000
OVERHEAD_FLOOR_NS = 120_000_000_000

OVERHEAD: tuple[CostKind, ...] = ("setup", "restore", "checkpoint")


@dataclass(slots=True)
class Pace:
    """Steps by trial (the slowest of the last few), the fastest and the slowest step of all, and the least and the longest
    overhead of an attempt.

    For a new trial the least of what was seen is asked for: a lease is only that short when the money ends, where what
    was too little costs no more than what could not be spent otherwise.
    """

    step_ns: dict[str, int] = field(default_factory=dict)
    fastest_ns: int = 0
    slowest_ns: int = 0
    longest_overhead_ns: int = 0
    least_overhead_ns: int = 0
    wanted_ns: dict[str, int] = field(default_factory=dict)

    def stepped(self, trial: str, train_ns: int) -> None:
        self.step_ns[trial] = max(train_ns, self.step_ns.get(trial, 0) * 3 // 4)
        self.fastest_ns = min(train_ns, self.fastest_ns) or max(train_ns, self.fastest_ns)
        self.slowest_ns = max(train_ns, self.slowest_ns)
        self.wanted_ns.pop(trial, None)

    def ended(self, trial: str, meter: Meter, *, warming_ns: int, outage_ns: int, starved: bool) -> None:
        """`starved`: the lease ended before a step did, so that the next attempt needs more for it. What a cold worker took
        to warm up does not count: it is a hundred times what a warm one takes, and it is warm now. Nor does `outage_ns`, for
        which it waited until a storage that failed would do again."""
        overhead = max(0, sum(meter.ns.get(kind, 0) for kind in OVERHEAD) - outage_ns)
        self.longest_overhead_ns = max(overhead, self.longest_overhead_ns)
        overhead -= warming_ns
        trained = meter.ns.get("train", 0)
        if overhead > 0 and trained:  # else it may have ended in the middle of its setup
            self.least_overhead_ns = min(overhead, self.least_overhead_ns) or overhead
        if starved:
            self.wanted_ns[trial] = self.least_overhead_ns + 2 * trained

    def begin_need_ns(self, trial: str) -> int:
        step = self.step_ns.get(trial, self.fastest_ns)
        known = self.least_overhead_ns + step * 5 // 4 if step else UNKNOWN_NEED_NS
        return max(known, self.wanted_ns.get(trial, 0))

    def hangs(self, *, trained_ns: int, overhead_ns: int, buys_ns: int) -> str:
        """Why a trial with so much time since its last report is taken to hang, or "" where it is not. `buys_ns`: the time of
        one trial that the whole budget buys. What it waited for a storage that failed is not of it: who waits says so."""
        for ns, seen, floor, where in (
            (trained_ns, self.slowest_ns, STEP_FLOOR_NS, "training"),
            (overhead_ns, self.longest_overhead_ns, OVERHEAD_FLOOR_NS, "setting up, loading or saving"),
        ):
            patience = max(floor, PATIENCE_TIMES * seen if seen else buys_ns // PATIENCE_BUDGET)
            if ns > patience:
                return f"did not report for {patience / 1e9:.0f} s of {where}; it may hang"
        return ""

    def step_need_ns(self, trial: str) -> int:
        return self.step_ns.get(trial, 0) * 5 // 4
