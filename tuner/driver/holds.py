"""The holds of running attempts: money is reserved before work begins.

Each running attempt has a hold that pays for its current lease. When the attempt needs more time, the used part is
posted and the next hold is placed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tuner.domain.cost import CostKind, Meter, slice_costs, total
from tuner.domain.environment import Environment
from tuner.domain.events import Limit
from tuner.domain.ids import hold_id
from tuner.domain.job import JobSpec
from tuner.domain.money import FREE, Cost, Money, Rate
from tuner.domain.offer import Offer
from tuner.domain.records import AttemptRow, CheckpointRow, MachineFound, OpenHold, ReportRow
from tuner.domain.time import Instant
from tuner.domain.trial import AttemptCause, Outcome
from tuner.domain.usage import Usage
from tuner.driver.messages import AttemptFailure, Saved, StepReport, cause_of
from tuner.driver.placement import Place
from tuner.driver.ports import JournalTx
from tuner.tuning.guard import fits_deadline, lease_ns

ANSWER_NS = 200_000_000  # a new lease is this much and an eighth longer than requested: the worker uses time while it waits for the answer


@dataclass(frozen=True, slots=True)
class LastMessage:
    """The facts of a worker's last message that are needed after it. The defaults hold until the first message."""

    has_notice: bool = False  #: The machine is about to be taken away.
    #: How long earlier attempts had trained the first step of this attempt, which they did not finish.
    carried_ns: int = 0
    usage: Usage | None = None
    failure: AttemptFailure | None = None


@dataclass(slots=True)
class AttemptLease:
    """The money of one attempt: its hold, its lease, and the readings of the worker's meter from which its cost is computed.

    The meter shows how long the attempt has used its machine, by cost kind.
    """

    trial: str
    attempt: int
    place: Place
    began_at: Instant  #: When the attempt began.
    lease_ns: int  #: Time that is paid for, counted from the attempt's beginning.
    slice: int  #: Counts the leases of the attempt, from 1.
    held: Cost  #: The current hold.
    last_message_ns: int  #: When the worker's last message came, on the loop's monotonic clock.
    target_step: int | None  #: The attempt may train up to this step. None if it may train to the end.
    from_step: int  #: The step of the checkpoint that the attempt continued from. 0 if there was none.
    #: What it took to reach `from_step`: cost, and duration in nanoseconds.
    base: tuple[Cost, int] = (FREE, 0)
    last_message: LastMessage = LastMessage()
    meter: Meter = field(default_factory=Meter)  #: The latest reading of the worker's meter.
    settled: Meter = field(default_factory=Meter)  #: The meter reading up to which the cost is posted.
    posted: dict[CostKind, Cost] = field(default_factory=dict)  #: The cost that was posted so far, by kind.
    #: The attempt's training time when it finished a step, by step: that of the newest checkpoint and each later reported step.
    trained_ns: dict[int, int] = field(default_factory=dict)
    last_step: int = 0  #: The last reported step.
    #: The last finished step before the newest checkpoint in the middle of a step. None without such a checkpoint.
    part_after: int | None = None
    reported: Meter = field(default_factory=Meter)  #: The meter reading at the last report.
    reported_outage_ns: int = 0  #: `outage_ns` of the worker at the last report.
    node: str = ""  #: Ray's id of the node; empty: unknown.
    #: When the attempt was given a machine. None while it waits for one, which costs nothing.
    assigned_at: Instant | None = None
    #: The place to which the trial moves once this attempt has saved and paused. None if it stays.
    moving: Place | None = None
    #: Up to this step, the attempt repeats training of earlier attempts. 0 if it repeats none.
    again_until: int = 0
    again_ns: int = 0  #: Training time spent on repeating earlier training.
    #: The place of the machine that the attempt was given and pays for. None if the machine was not checked.
    assigned_place: Place | None = None
    wrong_machine: str = ""  #: Why the attempt has to leave its machine. Empty if it does not.
    environment: Environment | None = None

    @property
    def waits(self) -> bool:
        return self.assigned_at is None

    @property
    def rate(self) -> Rate:
        return self.place.rate if self.assigned_place is None else self.assigned_place.rate

    @property
    def pays_for(self) -> Offer | None:
        return self.place.offer if self.assigned_place is None else self.assigned_place.offer

    @property
    def may_train_further(self) -> bool:
        """Whether the attempt may train beyond its last reported step."""
        return self.target_step is None or self.last_step < self.target_step

    def since_report_ns(self, *kinds: CostKind) -> int:
        """Return the nanoseconds billed as any of these cost kinds since the attempt's last report, or since it began if it has not reported."""
        return sum(self.meter.ns.get(kind, 0) - self.reported.ns.get(kind, 0) for kind in kinds)

    def read(self, meter: Meter, *, last_message_ns: int) -> None:
        """Store a new reading of the worker's meter. Time beyond the lease is cut off, so that the bill does not exceed the hold.

        `last_message_ns` is when the worker's message came, on the loop's monotonic clock.
        """
        self.meter, self.last_message_ns = self._within(meter, self.lease_ns), last_message_ns

    def cut(self, to_ns: int) -> None:
        """Shorten the lease to `to_ns` nanoseconds, and cut the meter reading to the new lease. A shorter lease is not changed."""
        self.lease_ns = min(self.lease_ns, to_ns)
        self.meter = self._within(self.meter, self.lease_ns)

    def _within(self, meter: Meter, limit_ns: int) -> Meter:
        """Return the meter reading, cut to a total of `limit_ns`. Time that is already posted is not cut."""
        over = meter.total_ns - limit_ns
        if over <= 0:
            return meter
        ns = dict(meter.ns)
        for kind, before in [(kind, self.settled.ns.get(kind, 0)) for kind in ns]:
            less = min(over, ns[kind] - before)
            ns[kind], over = ns[kind] - less, over - less
        return Meter(ns)

    def saved(self, tx: JournalTx, saved: Saved, spec: JobSpec, at: Instant) -> None:
        """Record a durable checkpoint, and forget the older ones that the spec does not keep."""
        where = (self.trial, saved.step, self.attempt, saved.uri)
        tx.put_checkpoint(CheckpointRow(*where, saved.size_bytes, saved.seconds, at))
        tx.keep_checkpoints(self.trial, keep=spec.checkpoint.keep)

    def began(
        self, tx: JournalTx, node: str, from_step: int | None, environment: Environment | None = None
    ) -> bool:
        """Record the attempt's node, environment and starting checkpoint, as far as its worker has reported them.

        Return True if the attempt started from another checkpoint than the driver ordered. If it started from an older checkpoint, the
        newer ones are damaged, so their records are removed. If it started from a newer checkpoint, this checkpoint was saved in the
        middle of a step, and no record is removed.
        """
        differs = from_step is not None and from_step != self.from_step
        if from_step is not None and differs:
            if from_step < self.from_step:
                self.again_until = self.from_step
                # Remove the records of the damaged checkpoints. Otherwise the next attempt or driver would try to restore them.
                tx.forget_checkpoints(self.trial, after_step=from_step)
            self.from_step = from_step
            self.base = (tx.reached(self.trial, from_step) if from_step else None) or (FREE, 0)
        if differs or (node and not self.node) or environment is not None:
            self.node, self.environment = node or self.node, environment or self.environment
            tx.put_attempt(self.row)
        return differs

    def trained(self, step: int, ns: int) -> None:
        """Note the report of a step, and the attempt's total training time until then, in nanoseconds."""
        self.trained_ns[step], self.last_step = ns, step
        self.again_ns = ns if step <= self.again_until else self.again_ns

    def row_of(self, report: StepReport, spec: JobSpec) -> ReportRow:
        """Return the record of a report.

        The recorded cost and duration are what the trial would have needed to reach the step without interruptions. They include the
        training of each step once, and the setup of the attempt that began without a checkpoint, but no setup of a later attempt.
        """
        is_new = not self.from_step and not self.last_message.carried_ns
        ns = report.meter.ns.get("train", 0) + (
            report.meter.ns.get("setup", 0) if is_new else self.last_message.carried_ns
        )
        cost, duration_ns = self.base[0] + self.rate.cost(ns), self.base[1] + ns
        where = (self.trial, self.attempt, report.step, report.at)
        value, violates = report.value(spec.objective.metric), spec.violation(report.metrics)
        return ReportRow(*where, value, report.metrics, cost, duration_ns, violates)

    @property
    def row(self) -> AttemptRow:
        """The record of the attempt while it runs."""
        offer = self.pays_for
        return AttemptRow(
            self.trial,
            self.attempt,
            self.began_at,
            node=self.node,
            from_step=self.from_step,
            to_step=max(self.last_step, self.from_step),
            costs=dict(self.posted),
            market=offer.market if offer is not None else "on_demand",
            price=self.rate.price,
            assigned_at=self.assigned_at,
            machine=None if self.assigned_place is None else MachineFound.of(self.assigned_place.offer),
            environment=self.environment,
        )

    def ended(self, end: Outcome, at: Instant, *, reason: str, detail: str) -> AttemptRow:
        """Return the record of the attempt after its end."""
        cause: AttemptCause | None = None
        if end == "preempted":
            cause = "notice" if self.last_message.has_notice else "no_notice"
        elif end in ("lost", "failed"):
            cause = "machine" if self.wrong_machine else cause_of(self.last_message.failure)
        return replace(self.row, ended_at=at, end=end, reason=reason, detail=detail, cause=cause)

    def unposted(self) -> Money:
        """Return the cost, in money, of the time on the meter that is not posted yet."""
        return self.rate.price.of(self.meter.total_ns) - self.rate.price.of(self.settled.total_ns)


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """The facts from which `HoldService` chooses the length of a lease."""

    need_ns: int  #: The shortest useful lease, in nanoseconds.
    active: int  #: How many attempts share the remaining budget.
    deadline_ns: int | None  #: Time left until the wall clock or the window ends. None if there is no limit.
    at: Instant
    #: How many attempts may share a worker. A lease then lasts up to so many times its length.
    sharers: int = 1


class HoldService:
    """Place, renew and settle the holds of one job. A hold is priced at the rate of its attempt's machine.

    The methods run in the caller's transaction of the job's journal.
    """

    def __init__(self, job: str, slice_ns: int) -> None:
        self._job, self._slice_ns = job, slice_ns

    def open(
        self, tx: JournalTx, trial: str, attempt: int, places: Iterable[Place], request: LeaseRequest
    ) -> tuple[Place, int, Cost] | None:
        """Place the first hold of an attempt, for the first of `places` (offers with their rates) that the budget can pay for.

        Returns:
            The place, the length of the lease in nanoseconds and the cost that is held for it, or None if the budget allows none of
            the places.
        """
        for place in places:
            lease = self._affordable(tx.allowance(request.at).left, place.rate, request)
            cost = place.rate.cost(lease)
            if lease and self._hold(tx, (trial, attempt, 1), cost, lease, request.at):
                return place, lease, cost
        return None

    def extend(self, tx: JournalTx, lease: AttemptLease, request: LeaseRequest) -> bool:
        """Post the cost of the time that the attempt has used so far, and extend its lease with a new hold.

        The lease is extended by more time than the worker requests, if the budget allows it. The reason is that the worker uses some of the
        lease while it waits for the answer. If the worker got only the requested time, too little of this time would be left when the
        answer arrives. The worker would have to ask again and again, while the job pays for the waiting.

        Return False, and change nothing, if the remaining budget cannot pay for a longer lease than the current one.
        """
        unused, need_ns = lease.lease_ns - lease.meter.total_ns, request.need_ns
        left = self._left(tx, lease, lease.held - self._used(lease), request.at)
        spare_ns = need_ns // 8 + ANSWER_NS if need_ns else 0
        leases = (
            self._affordable(left, lease.rate, replace(request, need_ns=max(least_ns, unused)))
            for least_ns in (need_ns + spare_ns, need_ns)
        )
        more = next(filter(None, leases), 0)
        if more <= unused:
            return False
        self._renew(tx, lease, lease.meter.total_ns + more, request.at)
        return True

    def reprice(self, tx: JournalTx, lease: AttemptLease, place: Place, at: Instant) -> bool:
        """Bill the attempt at the price of the machine that it was given.

        The time that is not posted yet is posted at the new price, because the attempt has spent it on this machine. A hold at the
        new price is placed for the rest of the lease.

        Return False if the budget has no room for the new hold. The lease then ends when the current hold is used up.
        """
        if place.rate == lease.rate:
            lease.assigned_place = place
            return True
        lease_ns = lease.lease_ns
        self.charge_assigned_machine(lease, place)
        held = place.rate.cost(lease_ns) - place.rate.cost(lease.meter.total_ns)
        if not held.fits(self._left(tx, lease, lease.held - self._used(lease), at)):
            return False
        self._renew(tx, lease, lease_ns, at)
        return True

    def _renew(self, tx: JournalTx, lease: AttemptLease, lease_ns: int, at: Instant) -> None:
        """Post the cost of what the attempt has used, and place a hold for the rest of its new lease.

        `lease_ns` is the length of the new lease, counted from the attempt's beginning.
        """
        self._settle(tx, lease, lease.meter.minus(lease.settled), at)
        lease.slice, lease.lease_ns = lease.slice + 1, lease_ns
        lease.held = lease.rate.cost(lease_ns) - lease.rate.cost(lease.meter.total_ns)
        rest_ns = lease_ns - lease.meter.total_ns
        if not self._hold(tx, (lease.trial, lease.attempt, lease.slice), lease.held, rest_ns, at):
            raise AssertionError(
                "the hold of a lease was refused, although the lease was chosen to fit the account"
            )

    def charge_assigned_machine(self, lease: AttemptLease, place: Place) -> None:
        """Set the attempt's place to that of the machine that it was given, so that its time is billed at that machine's price.

        The lease is shortened to the time that the current hold pays for at this price.
        """
        lease.assigned_place = place
        lease.cut(lease.settled.total_ns + place.rate.affords_ns(lease.held))

    def close(self, tx: JournalTx, lease: AttemptLease, *, lost_ns: int, at: Instant) -> None:
        """Post the rest of the attempt's cost and release the unused rest of its hold.

        Args:
            tx: The transaction.
            lease: The hold, the lease and the meter readings of the attempt.
            lost_ns: The part of the training time that counts as lost, in nanoseconds. Training that is
                already posted is moved from `train` to `lost`.
            at: The time of the ledger entries.
        """
        added = lease.meter.minus(lease.settled)
        here = min(lost_ns, added.get("train", 0))
        if here:
            added["train"] -= here
            added["lost"] = added.get("lost", 0) + here
        self._settle(tx, lease, added, at)
        if lost_ns > here:
            trained, cost = lease.posted.get("train", FREE), lease.rate.cost(lost_ns - here)
            lost = Cost(min(cost.usd, trained.usd), min(cost.gpu_ms, trained.gpu_ms))
            moved: dict[CostKind, Cost] = {"train": -lost, "lost": lost}
            name = f"{hold_id(self._job, lease.trial, lease.attempt, lease.slice)}/lost"
            tx.correct(name, trial=lease.trial, attempt=lease.attempt, costs=moved, at=at)
            _add(lease.posted, moved)

    def _settle(self, tx: JournalTx, lease: AttemptLease, added: Mapping[CostKind, int], at: Instant) -> None:
        used = slice_costs(lease.rate, lease.settled.total_ns, added)
        tx.settle(hold_id(self._job, lease.trial, lease.attempt, lease.slice), used, at=at)
        if lease.last_message.usage is not None:
            tx.put_usage(lease.trial, lease.attempt, lease.last_message.usage)
        _add(lease.posted, used)
        lease.settled = lease.meter

    def _used(self, lease: AttemptLease) -> Cost:
        return total(slice_costs(lease.rate, lease.settled.total_ns, lease.meter.minus(lease.settled)))

    def spent(self, tx: JournalTx, leases: Iterable[AttemptLease]) -> Money:
        """Return the spend of the whole job so far, including the part that is not posted yet."""
        return sum((lease.unposted() for lease in leases), start=tx.account().posted.usd)

    def limit(self, tx: JournalTx, rate: Rate, request: LeaseRequest, *, gpus: bool) -> tuple[Limit, str]:
        """Return the limit that refused a lease, and the name of the shared budget to which the limit belongs.

        The name is "" if the limit is the job's own.

        Args:
            tx: The transaction.
            rate: The rate of the attempt's machine.
            request: The request that was refused.
            gpus: Whether the job has a limit of GPU-hours.
        """
        if request.deadline_ns is not None and request.deadline_ns < request.need_ns:
            return "wall_clock", ""
        allowed, own = tx.allowance(request.at), tx.account().left
        left = allowed.left if self._affordable(own, rate, request) else own
        gpu_binds = (gpus or left.gpu_ms < own.gpu_ms) and rate.affords_ns(left) < rate.price.affords_ns(
            left.usd
        )
        refused_by = allowed.gpus_limited_by if gpu_binds else allowed.usd_limited_by
        return "budget_gpu_hours" if gpu_binds else "budget_usd", refused_by if left != own else ""

    def affords(self, tx: JournalTx, rate: Rate, request: LeaseRequest, *, instead_of: AttemptLease) -> bool:
        """Return whether the budget could pay for an attempt at `rate` after the waiting attempt `instead_of` has released its hold."""
        left = self._left(tx, instead_of, instead_of.held, request.at)
        return self._affordable(left, rate, request) > 0

    def _left(self, tx: JournalTx, lease: AttemptLease, freed: Cost, at: Instant) -> Cost:
        freeing = hold_id(self._job, lease.trial, lease.attempt, lease.slice)
        return tx.allowance(at, freeing=freeing, freed=freed).left

    def _affordable(self, left: Cost, rate: Rate, request: LeaseRequest) -> int:
        lease = lease_ns(left, rate, need_ns=request.need_ns, active=request.active, slice_ns=self._slice_ns)
        left_ns = request.deadline_ns
        if left_ns is not None:
            left_ns = max(min(request.need_ns, left_ns), left_ns // request.sharers)
        return fits_deadline(lease, need_ns=request.need_ns, left_ns=left_ns)

    def _hold(self, tx: JournalTx, where: tuple[str, int, int], cost: Cost, lease: int, at: Instant) -> bool:
        trial, attempt, number = where
        name = hold_id(self._job, trial, attempt, number)
        return tx.hold(OpenHold(name, trial, attempt, number, cost, at, Instant(at + lease)))


def _add(sums: dict[CostKind, Cost], more: Mapping[CostKind, Cost]) -> None:
    for kind, cost in more.items():
        sums[kind] = sums.get(kind, FREE) + cost
