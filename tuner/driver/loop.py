"""The loop of one job. For each event, it records the event, decides, records the decision, and carries it out.

The same code runs real jobs (`tuner.driver`) and simulated ones (`tuner.simulator`). They differ in their journal, world
and clock.

Only one thread may use a loop. If the handling of an event raises an exception, the state in memory may differ from the
recorded state. The process must then end, and a new one must rebuild the job from the record (`tuner.driver.recovery`).
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tuner.domain import commands as do
from tuner.domain import events as ev
from tuner.domain.budget import Budget
from tuner.domain.cost import CostKind, Meter
from tuner.domain.job import COST_LIMITS, JobSpec
from tuner.domain.money import FREE, Money, Rate
from tuner.domain.offer import WorkerMachine
from tuner.domain.preemption_policy import pause_ns
from tuner.domain.time import NS, Instant
from tuner.domain.trial import Outcome
from tuner.driver.deadlines import Deadlines
from tuner.driver.holds import AttemptLease, HoldService, LastMessage, LeaseRequest
from tuner.driver.learning import Learner
from tuner.driver.machine_check import MachineCheck
from tuner.driver.messages import DONE_AGAIN, ENDED, StepReport, WorkerMessage, end_of, event_of
from tuner.driver.pace import OVERHEAD, JobPace, overhead_ns
from tuner.driver.placement import AnyMachine, Place, Placement, TrialSnapshot
from tuner.driver.ports import Assignment, Clock, Journal, JournalTx, LoopConfig, LoopTurn, World
from tuner.driver.trial_snapshot import lost_ns, may_move, snapshot
from tuner.driver.warm_starts import NO_WARM_STARTS, WarmStarts
from tuner.tuning.decide import decide
from tuner.tuning.samplers import Sampler
from tuner.tuning.state import PUBLIC, State

# The limits of a budget that may end a job before its first report.
LIMITS = COST_LIMITS | {"wall_clock"}
# A suggestion that would make a transaction last longer than this is computed after its commit.
SLOW_SUGGESTION_NS = 50_000_000
# How long such suggestions are computed without a break. Messages of workers and requests of users wait meanwhile.
SUGGESTING_NS = 200_000_000
# A worker that sends nothing for this long after its lease ended, or after it was ordered to stop, is killed.
SILENT_NS = 5_000_000_000
# The same for a worker that attempts share: killing it ends all of them, so it has the time to clean up after one of them.
SHARED_SILENT_NS = 20_000_000_000


class Loop:
    def __init__(
        self,
        spec: JobSpec,
        loop_config: LoopConfig,
        *,
        sampler: Sampler,
        journal: Journal,
        world: World,
        clock: Clock,
        placement: Placement | None = None,
        machine_check: MachineCheck | None = None,
        warm_starts: WarmStarts = NO_WARM_STARTS,
    ) -> None:
        self.job = loop_config.job
        self.concurrency = loop_config.concurrency
        self.state = State.fresh(spec, concurrency=self.concurrency, rate=loop_config.rate)
        self.learner = Learner(spec, sampler, warm_starts)
        self.pace = JobPace()
        self.hold_service = HoldService(loop_config.job, loop_config.slice_ns)
        self._placement, self._machine_check = (
            placement or AnyMachine(loop_config.rate),
            machine_check or MachineCheck(),
        )
        # By trial: the money of its current attempt, and why its hanging attempt is being stopped.
        self.leases, self.stalled = dict[str, AttemptLease](), dict[str, str]()
        # By trial: the number of its newest attempt, and the step of its newest checkpoint.
        self.attempts, self.saved = dict[str, int](), dict[str, int]()
        self.end: do.EndJob | None = None
        # The suggestion to compute outside of a transaction, if one is pending.
        self._suggestion: do.Suggest | None = None
        self.journal, self._world, self._clock = journal, world, clock
        self._deadlines = Deadlines(clock, journal.running_ns(), spec.window)

    # Events of the job

    def start(self, event: ev.ControlRequested) -> None:
        """Start the job with the user's control request: resume, pause or cancel. Call `recover` first, which records `Launched`."""
        self._deadlines.limit(self.state.budget)
        self.handle_event(event)

    def handle_event(self, event: ev.Event) -> None:
        """Record an event and the decisions on it in one transaction, then send the resulting commands to the workers."""
        with self._turn() as turn:
            self._record_and_decide(turn, event)

    def budget_changed(self, budget: Budget) -> None:
        """Adopt a new budget. The caller must change the limit of the job's account first."""
        self._deadlines.limit(budget)
        with self._turn() as turn:
            self._record_and_decide(turn, ev.BudgetChanged(turn.at, budget))

    def tick(self) -> None:
        """End the job if its wall-clock limit has passed, and pause it if its window has closed. Call this a few times per second."""
        over = self._deadlines.over(self._clock.now())
        if over is not None and self.end is None and self.state.ending is None:
            self.handle_event(over)

    def progress(self, progress: WorkerMessage) -> None:
        """Handle a message of a worker.

        A message of an earlier attempt, or with a lower meter reading than the last one, is outdated and ignored.
        """
        lease = self._lease(progress.trial, progress.attempt)
        if lease is None or progress.meter.total_ns < lease.meter.total_ns:
            return
        with self._turn() as turn:
            lease.read(progress.meter, last_message_ns=self._clock.elapsed_ns())
            lease.last_message = LastMessage(
                progress.has_notice, progress.carried_ns, progress.usage, progress.failure
            )
            if lease.began(turn.tx, progress.node, progress.from_step, progress.environment):
                self.saved[lease.trial] = lease.from_step
            for saved in progress.checkpoints:
                self._on_saved(turn, lease, saved.step)
                lease.saved(turn.tx, saved, self.state.spec, turn.at)
            for report in progress.reports:
                self._on_report(turn, lease, report, progress)
            if progress.reports:
                lease.reported_outage_ns = progress.outage_ns
            if progress.part is not None:
                self._on_saved(turn, lease, progress.part.step)
                lease.trained_ns[progress.part.step] = progress.part.train_ns
                lease.part_after = progress.part.step
            if progress.state in ENDED:
                self._on_end(turn, lease, progress)
            else:
                self._keep_going(turn, lease, progress)
                self._reconsider(turn, lease)

    def node_assigned(self, trial: str, attempt: int, machine: WorkerMachine | None = None) -> int:
        """Record that an attempt was given a machine, and return the length of its lease at that machine's price.

        If the attempt waited for a machine, its start is recorded, because it costs money from now on. If this driver dies, the next
        driver bills the attempt from this time. A machine with another price than expected is recorded at once. A machine with the
        expected price is recorded with the worker's first message. Call this again when more is known about the machine.

        Args:
            trial: The trial.
            attempt: The number of its attempt.
            machine: The machine. None if nothing is known about it yet.

        Returns:
            The length of the attempt's whole lease in nanoseconds, or 0 if the attempt no longer runs.
        """
        if (lease := self._lease(trial, attempt)) is None:
            return 0
        lease.last_message_ns = self._clock.elapsed_ns()
        if machine and not lease.waits and not lease.node:
            place = self._machine_check.expected_place(lease, machine)
            if place is not None:  # recorded with the worker's first message, which names the node
                lease.assigned_place = place
                return lease.lease_ns
        if lease.waits or machine:
            with self._turn() as turn:
                lease.assigned_at = turn.at if lease.waits else lease.assigned_at
                verdict = self._machine_check.check(turn.tx, self.hold_service, lease, machine, turn.at)
                turn.tx.put_attempt(lease.row)
                if verdict == "refused":
                    request = self._lease_request(turn, 0)
                    self._record_and_decide(
                        turn, self._refused(turn, trial, request, lease.rate, running=True)
                    )
                elif verdict == "wrong_machine":
                    turn.commands.append(lambda: self._world.stop(trial, keep_best=False))
        return lease.lease_ns

    def relocate(self, trial: str, attempt: int) -> bool:
        """Move an attempt that waits for a machine to another offer, if the placement prefers one and the budget allows it.

        The waiting attempt ends without cost, and the trial's next attempt waits for the other offer. Return whether the
        attempt was moved.
        """
        lease = self._lease(trial, attempt)
        if lease is None or not lease.waits:
            return False
        place = self._placement.relocation(self._snapshot(trial))
        if place is None:
            return False
        with self._turn() as turn:
            request = self._lease_request(turn, self.pace.begin_need_ns(trial))
            if not self.hold_service.affords(turn.tx, place.rate, request, instead_of=lease):
                return False
            self._close(turn, lease, "paused", "moved to another offer before it had a machine")
            command = do.Begin(trial, self.state.trial(trial).config, lease.target_step)
            for event in self._begin(turn, command, [place]):
                self._record_and_decide(turn, event)
        return True

    def lost(
        self,
        trial: str,
        attempt: int,
        reason: str,
        *,
        preempted: bool = False,
        node: str = "",
        sharers: int = 1,
    ) -> None:
        """End an attempt whose worker is known to be dead.

        Its share of the time since the worker's last message is billed as lost, but not beyond the end of the lease.

        Args:
            trial: The trial.
            attempt: The number of its attempt.
            reason: Why the worker died. For an attempt on a wrong machine, the reason is the machine instead.
            preempted: Whether its machine was taken away. The attempt also counts as preempted after a preemption notice. On a wrong
                machine it always counts as lost.
            node: The worker's node, if the worker itself has not reported it.
            sharers: How many attempts ran on the worker at once, including this one.
        """
        lease = self._lease(trial, attempt)
        if lease is None:
            return
        with self._turn() as turn:
            silent = (self._clock.elapsed_ns() - lease.last_message_ns) // sharers if not lease.waits else 0
            silent = min(silent, lease.lease_ns - lease.meter.total_ns)
            ns = lease.meter.ns
            lease.meter = Meter({**ns, "lost": ns.get("lost", 0) + max(0, silent)})
            lease.node = lease.node or node
            self.stalled.pop(trial, None)
            end: Outcome = "preempted" if preempted or lease.last_message.has_notice else "lost"
            # An attempt on a wrong machine has to end in any case, so the cause is the machine and not the death of the worker.
            end, reason = ("lost", lease.wrong_machine) if lease.wrong_machine else (end, reason)
            self._end(turn, lease, end, reason)

    def overdue(self) -> list[tuple[str, int]]:
        """Return the attempts (trial and number) whose worker has been silent for too long.

        A worker sends a heartbeat every second. While it stores its last checkpoint, it may be silent until its lease ends. So an
        attempt is overdue if `SILENT_NS` have passed both since its lease ended and since the worker's last message. If the worker was
        ordered to stop, or is on a wrong machine, the attempt is overdue after `SILENT_NS` without a message.

        On a worker that several attempts share, a lease counts the worker's time, so it may last `pack` times as long. Then the silence may
        last `SHARED_SILENT_NS`.
        """
        now, overdue, pack = self._clock.elapsed_ns(), [], self.state.spec.resources.pack
        silent_ns = SILENT_NS if pack == 1 else SHARED_SILENT_NS
        for lease in self.leases.values():
            stops = self.state.trial(lease.trial).status == "stopping" or lease.trial in self.stalled
            unused = 0 if stops or lease.wrong_machine else max(0, lease.lease_ns - lease.meter.total_ns)
            if not lease.waits and now - lease.last_message_ns > pack * unused + silent_ns:
                overdue.append((lease.trial, lease.attempt))
        return overdue

    def is_on_wrong_machine(self, trial: str, attempt: int) -> bool:
        """Return whether the attempt runs on a machine that its job does not allow, or whose price is not known."""
        lease = self._lease(trial, attempt)
        return lease is not None and bool(lease.wrong_machine)

    def runs(self, trial: str, attempt: int) -> bool:
        return self._lease(trial, attempt) is not None

    def _lease(self, trial: str, attempt: int) -> AttemptLease | None:
        """Return the attempt's lease, or None if the attempt neither runs nor waits for a machine."""
        lease = self.leases.get(trial)
        return lease if lease is not None and lease.attempt == attempt else None

    # One turn: an event and the decisions on it

    @contextmanager
    def _turn(self) -> Iterator[LoopTurn]:
        """Run the body of a `with` statement as one turn, then answer the pending suggestions."""
        with self._transaction() as turn:
            yield turn
        self.answer_suggestions()

    @contextmanager
    def _transaction(self) -> Iterator[LoopTurn]:
        """Run the body of a `with` statement in one transaction. Send the turn's commands once the transaction is committed."""
        with self.journal.transaction() as tx:
            turn = LoopTurn(tx, self._clock.now(), self._clock.elapsed_ns())
            yield turn
            self.record_changed(tx, turn.at)
        for command in turn.commands:
            command()

    def answer_suggestions(self) -> None:
        """Compute the suggestions of a slow sampler, each outside of a transaction, until `SUGGESTING_NS` have passed.

        Call this a few times per second: suggestions that are left are computed in later calls.
        """
        if not self.state.suggesting:
            self._suggestion = None  # a lower limit on trials has withdrawn it
        began_ns = self._clock.elapsed_ns()
        while self._suggestion is not None and self._clock.elapsed_ns() - began_ns <= SUGGESTING_NS:
            answer, self._suggestion = self.learner.answer(self.state, self._suggestion, self._clock), None
            with self._transaction() as turn:
                self._record_and_decide(turn, answer)

    def record_changed(self, tx: JournalTx, at: Instant) -> None:
        """Record the state of each trial that changed."""
        for number in sorted(self.state.changed):
            trial = self.state.trials[number]
            tx.put_trial(trial.id, PUBLIC[trial.status], at=at, config=trial.config, reason=trial.reason)
        self.state.changed.clear()

    def _record_and_decide(self, turn: LoopTurn, event: ev.Event) -> None:
        """Record an event, decide on it, and carry out the resulting commands. Do the same with each event that a command produces."""
        waiting: deque[ev.Event | do.Suggest | do.Predict] = deque([event])
        while waiting:
            next_event = waiting.popleft()
            if isinstance(next_event, do.Suggest | do.Predict):
                # Compute the answer only now. A replay, too, computes each answer from the state just before the answer is recorded.
                next_event = self.learner.answer(self.state, next_event, self._clock)
            if isinstance(next_event, ev.Suggested) and next_event.inherited is not None:
                self.saved[next_event.trial] = self.learner.warm_starts.record(turn.tx, next_event)
            turn.tx.append(next_event)
            self.state, commands = decide(self.state, next_event)
            self.learner.learn(self.state, next_event)
            for command in commands:
                waiting.extend(self._carry_out(turn, command))

    def _carry_out(self, turn: LoopTurn, command: do.Command) -> Sequence[ev.Event | do.Suggest | do.Predict]:
        """Carry out one command of `decide`, and return what must be handled next in this turn.

        The result has the event that the command produced, or the command itself if the sampler must answer it, or nothing.
        """
        match command:
            case do.Suggest() if self._is_slow(turn):
                self._suggestion = command
            case do.Suggest() | do.Predict():
                return [command]
            case do.Begin():
                return self._begin(turn, command)
            case do.Continue(trial, target_step):
                self.leases[trial].target_step = target_step
                turn.continued.add(trial)
            case do.Pause(trial):
                turn.commands.append(lambda: self._world.pause(trial))
            case do.Finish(trial):
                turn.commands.append(lambda: self._world.finish(trial))
            case do.Stop(trial):
                keep_best = (
                    self.state.ending is None
                )  # if the job is ending, do not wait until the trial's best step is saved
                turn.commands.append(lambda: self._world.stop(trial, keep_best=keep_best))
            case do.EndJob():
                self._end_job(turn, command)
        return []

    def _is_slow(self, turn: LoopTurn) -> bool:
        """Return whether a suggestion would hold the turn's transaction open for too long, if it takes as long as the last one.

        The first suggestion of a driver is assumed to be slow: a sampler may learn from all trials of the job first.
        """
        if self.learner.suggestion_ns is None:
            return True
        lasts_ns = self._clock.elapsed_ns() - turn.began_ns
        return lasts_ns + self.learner.suggestion_ns > SLOW_SUGGESTION_NS

    def _end_job(self, turn: LoopTurn, command: do.EndJob) -> None:
        again_at = self._deadlines.next_opening(turn.at) if command.reopens else None
        detail = command.detail
        if command.state == "failed" and command.reason in LIMITS:
            detail += self._spending_detail(turn.tx)
        turn.tx.put_job(
            command.state,
            command.reason,
            at=turn.at,
            detail=detail,
            again_at=again_at,
            waits_for=command.waits_for,
            requests=self.state.requests,
        )
        self.end = command

    def _spending_detail(self, tx: JournalTx) -> str:
        """Describe the main cost of a job that ended without a report, and suggest a larger budget. Return "" if the job spent nothing."""
        spent: Counter[CostKind] = Counter()
        for trial, attempts in self.attempts.items():
            for attempt in range(1, attempts + 1):
                spent.update({kind: cost.usd.micro_usd for kind, cost in tx.posted(trial, attempt).items()})
        total = sum(spent.values())
        if not total:
            return ""
        kind, most = spent.most_common(1)[0]
        start_ns = self.pace.longest_overhead_ns
        enough = 2 * max(total, self.state.rate.cost(start_ns).usd.micro_usd)
        return (
            f"; {100 * most / total:.1f} % of the {Money(total)} that was spent went to {kind}. Starting a trial took at least {start_ns / NS:.1f} s: "
            f"submit the job again with a budget of at least {Money(enough)}"
        )

    def _begin(self, turn: LoopTurn, command: do.Begin, places: Sequence[Place] = ()) -> list[ev.Event]:
        """Begin an attempt at the first of `places` that the budget can pay for. If it can pay for none, return the event `Refused` in a list.

        A place is an offer and its rate. If `places` is empty, the placement chooses them.
        """
        trial, attempt = command.trial, self.attempts.get(command.trial, 0) + 1
        request = self._lease_request(turn, self.pace.begin_need_ns(trial))
        places = places or self._placement.choose(self._snapshot(trial))
        opened = self.hold_service.open(turn.tx, trial, attempt, places, request)
        if opened is None and not self.leases:
            # A job must not end with money left only because the workers of earlier drivers warmed up slowly.
            request = self._lease_request(turn, self.pace.begin_need_ns(trial, warms_up=False))
            opened = self.hold_service.open(turn.tx, trial, attempt, places, request)
        if opened is None:
            return [self._refused(turn, trial, request, places[0].rate, running=False)]
        place, lease_ns, held = opened
        step, now_ns = self.saved.get(trial, 0), self._clock.elapsed_ns()
        lease = AttemptLease(
            trial, attempt, place, turn.at, lease_ns, 1, held, now_ns, command.target_step, step
        )
        not_before_ns = now_ns + pause_ns(self.state.trial(trial).preemptions_without_progress)
        # With offers, `node_assigned` records when the attempt gets a machine. Without them, an attempt for which a worker is free gets it at
        # once, which saves a transaction.
        if place.offer is None and not_before_ns <= now_ns and self._has_free_worker():
            lease.assigned_at = turn.at
        lease.base = (turn.tx.reached(trial, step) if step else None) or (FREE, 0)
        self.attempts[trial], self.leases[trial] = attempt, lease
        turn.tx.put_attempt(lease.row)
        work = (command.config, command.target_step, lease_ns, step or None)
        reported = self.state.trial(trial).steps
        assignment = Assignment(
            trial,
            attempt,
            *work,
            not_before_ns,
            place.offer,
            reported,
            self._job_best(),
            self.state.trial(trial).seed,
        )
        turn.commands.append(lambda: self._world.begin(assignment))
        return []

    def _has_free_worker(self) -> bool:
        # Waiting attempts count too, because they get the next free worker.
        return len(self.leases) < self._world.room()

    # Messages of workers

    def _on_saved(self, turn: LoopTurn, lease: AttemptLease, step: int) -> None:
        self.saved[lease.trial] = max(step, self.saved.get(lease.trial, 0))
        lease.trained_ns = {s: ns for s, ns in lease.trained_ns.items() if s >= step}

    def _on_report(
        self, turn: LoopTurn, lease: AttemptLease, report: StepReport, progress: WorkerMessage
    ) -> None:
        trained = report.meter.ns.get("train", 0)
        is_first = lease.last_step == 0
        train_ns = max(0, trained - lease.reported.ns.get("train", 0))
        train_ns += lease.last_message.carried_ns if is_first else 0
        if report.step - lease.last_step:
            self.pace.stepped(lease.trial, train_ns)
        lease.trained(report.step, trained)
        lease.reported = report.meter
        spec = self.state.spec
        row = lease.row_of(report, spec)
        turn.tx.put_report(row)
        # The event has the job's spend so far, and the machine's price if it differs from the job's usual one, because `decide` must not
        # read the ledger.
        spent = self.hold_service.spent(turn.tx, self.leases.values())
        price = lease.rate.price if lease.rate.price != self.state.rate.price else None
        lacks = spec.lacks(report.metrics)
        event = ev.Reported(
            report.at,
            lease.trial,
            report.step,
            row.value,
            spent,
            report.resumable,
            train_ns,
            price,
            report.names() if row.value is None or lacks is not None else None,
            duration_ns=None if spec.trial_limits is None else row.duration_ns,
            cost=None if spec.trial_limits is None else row.cost.usd,
            violation=row.violation if spec.constraints else None,
            lacks=lacks,
            warming_ns=progress.warming_ns if is_first else 0,
            start_ns=overhead_ns(report.meter, progress.outage_ns) if is_first else 0,
            last=report.last,
        )
        self._record_and_decide(turn, event)

    def _on_end(self, turn: LoopTurn, lease: AttemptLease, progress: WorkerMessage) -> None:
        trial, failure = lease.trial, progress.failure
        if progress.saved_step:
            self._on_saved(turn, lease, progress.saved_step)
        # Whether the lease ended before the attempt finished its first step. The trial's next attempt then needs a longer lease.
        starved = failure is not None and failure.kind == "lease" and lease.last_step == 0
        once_ns = {"warming_ns": progress.warming_ns, "outage_ns": progress.outage_ns}
        self.pace.ended(trial, lease.meter, **once_ns, starved=starved)
        reason, detail = (failure.summary, failure.traceback) if failure else ("", "")
        end = end_of(progress)
        # A hanging trial has failed, even if its worker or machine was lost while it was being stopped.
        if trial in self.stalled and end in ("lost", "preempted"):
            end = "failed"
        end, reason = ("lost", lease.wrong_machine) if lease.wrong_machine else (end, reason)
        self._end(turn, lease, end, reason, detail)

    def _keep_going(self, turn: LoopTurn, lease: AttemptLease, progress: WorkerMessage) -> None:
        """Renew the attempt's lease if half of it is used, or if the worker waits although the trial may train further.

        The renewal posts what the attempt has used so far, and places a new hold for the rest.

        The lease is also renewed while the trial is about to pause or finish, because its worker may still be saving. A
        trial that hangs is stopped instead.
        """
        trial = lease.trial
        status = self.state.trial(trial).status
        if status == "stopping" and self.state.ending is not None and self.state.ending.state == "cancelled":
            # The trial may have been stopped before, and still train until it can save its best step.
            turn.commands.append(lambda: self._world.stop(trial, keep_best=False))
        if status not in ("running", "pausing", "finishing") or trial in self.stalled or lease.wrong_machine:
            return
        hangs = self.pace.hangs(
            trained_ns=lease.since_report_ns("train"),
            overhead_ns=lease.since_report_ns(*OVERHEAD) - (progress.outage_ns - lease.reported_outage_ns),
            buys_ns=lease.rate.affords_ns(self.state.budget.limit),
        )
        if progress.state == "running" and hangs:
            self.stalled[trial] = hangs
            turn.commands.append(lambda: self._world.stop(trial, keep_best=False))
            return
        waits = (
            status == "running"
            and progress.state == "waiting"
            and (trial in turn.continued or lease.may_train_further)
        )
        used = lease.meter.total_ns - lease.settled.total_ns
        low = used * 2 > lease.lease_ns - lease.settled.total_ns
        if not waits and not low:
            return
        unused = lease.lease_ns - lease.meter.total_ns
        need = max(unused + progress.need_ns, self.pace.step_need_ns(trial)) if progress.need_ns else 0
        request = self._lease_request(turn, need)
        extended = self.hold_service.extend(turn.tx, lease, request)
        if extended or (waits and not progress.need_ns):
            best = self._job_best()
            turn.commands.append(
                lambda: self._world.continue_to(trial, lease.target_step, lease.lease_ns, best)
            )
        elif waits:
            self._record_and_decide(turn, self._refused(turn, trial, request, lease.rate, running=True))

    def _reconsider(self, turn: LoopTurn, lease: AttemptLease) -> None:
        """Pause a running trial if the placement prefers another offer for it and a checkpoint can be saved.

        The trial's next attempt then begins at once on the other offer.
        """
        if may_move(self.state.trial(lease.trial), lease) and lease.trial not in self.stalled:
            lease.moving = self._placement.relocation(self._snapshot(lease.trial))
            if lease.moving is not None:
                turn.commands.append(lambda: self._world.pause(lease.trial))

    def _end(self, turn: LoopTurn, lease: AttemptLease, end: Outcome, reason: str, detail: str = "") -> None:
        trial, saved = lease.trial, self.saved.get(lease.trial, 0)
        self._close(turn, lease, end, reason, detail)
        stalled = self.stalled.pop(trial, None)
        failed = ev.Failed(turn.at, trial, stalled) if stalled is not None else None
        in_step = lease.part_after == saved
        ended = event_of(end, turn.at, trial, saved=saved, reason=reason, in_step=in_step)
        self._record_and_decide(turn, failed or ended)

    def _close(
        self, turn: LoopTurn, lease: AttemptLease, end: Outcome, reason: str, detail: str = ""
    ) -> None:
        """Settle the attempt's hold and record the attempt's end.

        Two parts of the training count as lost: training that repeated earlier training, and training that the trial has
        to repeat because it was not saved.
        """
        saved = self.saved.get(lease.trial, 0)
        is_complete = self.state.is_complete(self.state.trial(lease.trial), saved)
        lost = lost_ns(lease, saved, done_again=end in DONE_AGAIN and not is_complete)
        self.hold_service.close(turn.tx, lease, lost_ns=lost, at=turn.at)
        gained, now = lease.meter.ns.get("train", 0) - lost, Instant(self._clock.elapsed_ns())
        self._placement.paid(lease.place, lease.meter.total_ns, gained_ns=gained, now=now)
        turn.tx.put_attempt(lease.ended(end, turn.at, reason=reason, detail=detail))
        del self.leases[lease.trial]

    # Money and time

    def _lease_request(self, turn: LoopTurn, need_ns: int) -> LeaseRequest:
        """Return the request for a lease of at least `need_ns` nanoseconds, with the job's current deadline."""
        active, sharers = max(1, len(self.state.active)), self.state.spec.resources.pack
        return LeaseRequest(need_ns, active, self._deadlines.left_ns(), turn.at, sharers)

    def _refused(
        self, turn: LoopTurn, trial: str, request: LeaseRequest, rate: Rate, *, running: bool
    ) -> ev.Event:
        """Return the event `Refused`, which names the limit that has no room for the hold. `running` says whether the attempt has begun."""
        limit, refused_by = self.hold_service.limit(
            turn.tx, rate, request, gpus=self.state.budget.gpu_ms is not None
        )
        return ev.Refused(turn.at, trial, self._deadlines.binding_limit(limit), running, refused_by)

    def _job_best(self) -> float | None:
        """Return the best score among all reports that satisfy the constraints, or None without such a report.

        Also return None if the job trains its lower rungs with proxies (less data or smaller images), because scores of different
        rungs are then not comparable.
        """
        state = self.state
        if (
            state.leader is None or state.spec.fidelity.proxies
        ):  # with proxies, scores of different rungs are not comparable
            return None
        return None if state.leader_violation else state.leader_score

    def _snapshot(self, trial: str) -> TrialSnapshot:
        """Return the trial's snapshot, from which the placement decides."""
        now, left_ns = Instant(self._clock.elapsed_ns()), self._deadlines.wall_clock_ns()
        return snapshot(self.state, trial, self.leases, self.saved, self.pace, now=now, time_ns=left_ns)
