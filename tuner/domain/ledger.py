"""The rules of the ledger as pure functions: place a hold, then post a part of it and release the rest.

`tuner.ledger.ledger` implements the same rules in SQL, where a CHECK on the row enforces them. The simulator uses this module, and so
do the tests that compare the two implementations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tuner.domain.cost import CostKind
from tuner.domain.errors import BudgetRefused
from tuner.domain.money import FREE, Cost, Money
from tuner.domain.records import OpenHold
from tuner.domain.time import NS, Instant

AssignedAt = Mapping[tuple[str, int], Instant | None]
"""When each attempt was given its machine, by trial and attempt number. None if the attempt still waits for a machine."""

EntryType = Literal["hold", "post", "release", "correct"]

# A process that has sent no heartbeat for 4 s is checked, so its death is noticed within this time of its last heartbeat.
NOTICED_NS = 6 * NS
# How long a worker can run after the last heartbeat of a driver that dies: just before the next heartbeat, plus the time that Ray takes to end it.
WORKERS_OUTLIVE_NS = 1_500_000_000


@dataclass(frozen=True, slots=True)
class Account:
    """A job's budget. Invariant: posted + held <= limit, each at least 0."""

    limit: Cost
    posted: Cost = FREE
    held: Cost = FREE

    @property
    def left(self) -> Cost:
        return self.limit - self.posted - self.held

    def hold(self, wanted: Cost) -> "Account":
        """Return the account with another hold of the cost `wanted`. Raise BudgetRefused if the rest of the budget is smaller."""
        if not wanted.fits(self.left):
            raise BudgetRefused(
                f"the hold needs {_amounts(wanted)}, but only {_amounts(self.left)} are left of the job's budget"
            )
        return replace(self, held=self.held + wanted)

    def settle(self, *, held: Cost, used: Cost) -> "Account":
        """Return the account after a hold of the cost `held` has ended: `used` is posted, and the rest is released.

        Raises:
            ValueError: More was used than held.
        """
        if not used.fits(held):
            raise ValueError(f"the hold cannot be settled: {used} was used, but only {held} was held")
        return replace(self, posted=self.posted + used, held=self.held - held)

    def with_limit(self, limit: Cost) -> "Account":
        if not (self.posted + self.held).fits(limit):
            used = _amounts(self.posted + self.held)
            raise BudgetRefused(
                f"the new limit is too low: {used} are already spent or held; allow at least these amounts"
            )
        return replace(self, limit=limit)


@dataclass(frozen=True, slots=True)
class Allowance:
    """The largest cost that a job's own budget and its shared budgets allow to be held now."""

    left: Cost
    #: The shared budget that allows fewer dollars than the job's own budget. Empty if none does.
    usd_limited_by: str = ""
    #: The shared budget that allows less GPU time than the job's own budget. Empty if none does.
    gpus_limited_by: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the ledger. `id` is derived from job, trial, attempt and lease, so that recording it again changes nothing."""

    id: str
    entry: EntryType
    kind: CostKind | None
    trial: str
    attempt: int
    slice: int  #: Number of the lease within the attempt.
    cost: Cost
    at: int


def _amounts(cost: Cost) -> str:
    return f"{cost.usd} and {cost.gpu_hours:.6f} GPU-hours"


def workers_ended_by(heartbeat_at: Instant, noticed_at: Instant, *, outlive_ns: int) -> Instant:
    """Return the latest time at which the workers of a dead process may have run.

    Usually a process dies between two heartbeats, and its death is noticed within `NOTICED_NS`. If more time has passed, the process may
    have lived on without heartbeats, because the database did not answer or because the process was suspended. Then its workers may
    have run until the death was noticed.

    Args:
        heartbeat_at: The process's last recorded heartbeat.
        noticed_at: When the death of the process was noticed.
        outlive_ns: How long workers can run after the last heartbeat of a process that dies before its next one. Ray takes some time to end them.
    """
    last_alive = noticed_at if noticed_at - heartbeat_at > NOTICED_NS else heartbeat_at
    return Instant(last_alive + outlive_ns)


def lost_of(hold: OpenHold, assigned_at: AssignedAt, died_at: Instant, now: Instant) -> dict[CostKind, Cost]:
    """Return the cost to post for a hold that was still open when its job's driver died. All of it is of the kind `lost`.

    How long the attempt's worker ran under the hold is unknown. The worker is assumed to have run from the placing of the hold, or
    from the time when it was given its machine if that is later, until `died_at`, but not longer than the lease. The
    result is the share of the hold's cost that corresponds to this time, rounded up.

    If `died_at` is a few seconds before the time from which the worker ran, the driver's heartbeats were late, and the worker is assumed to
    have run until `now`. If it is earlier, or `now` is too, the clock was set back, and the worker is assumed to have used the whole lease.

    Args:
        assigned_at: When each attempt was given its machine. An attempt that is missing, such as one that tests restoring a
            checkpoint, is assumed to have had its machine when the hold was placed. None means that the attempt never had a machine,
            so that nothing is posted.
        died_at: When the workers of the driver are known to have stopped.
        now: When the hold is settled.
    """
    began_at = assigned_at.get((hold.trial, hold.attempt), hold.placed_at)
    if began_at is None:
        return {}
    lease_ns = hold.ends_at - hold.placed_at
    ran_from = max(began_at, hold.placed_at)
    ran_ns = died_at - ran_from
    if ran_ns < 0:
        ran_ns = now - ran_from if ran_ns >= -NOTICED_NS and now >= ran_from else lease_ns
    used_ns = min(ran_ns, lease_ns)
    if not used_ns:
        return {}
    usd, gpu_ms = (-(-whole * used_ns // lease_ns) for whole in (hold.cost.usd.micro_usd, hold.cost.gpu_ms))
    lost = Cost(Money(usd), gpu_ms)
    return {} if lost.nothing else {"lost": lost}
