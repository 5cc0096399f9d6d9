"""The loop of one job. For each event, the loop records the event, decides, records the decision, and then
carries the decision out.

The same code runs real jobs (`tuner.engine.ray_driver`) and simulated ones (`tuner.engine.simulated`). They differ in
their journal, world and clock.

One thread uses the loop. If a turn raises an exception, the state in memory may differ from the recorded one.
The process must then end, and a new one must rebuild the job from the record (`tuner.engine.recovery`).
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tuner.domain import commands as do
from tuner.domain import events as ev
from tuner.domain.budget import Budget
from tuner.domain.cost import CostKind, Meter
from tuner.domain.job import JobSpec
from tuner.domain.money import FREE, Rate
from tuner.domain.time import NS, Instant
from tuner.domain.trial import AttemptEnd
from tuner.engine.ends import DONE_AGAIN, end_of, event_of
from tuner.engine.heirs import NO_HEIRS, Heirs
from tuner.engine.holds import Purse, Treasury, Wanted
from tuner.engine.hours import Hours
from tuner.engine.journal import Journal, JournalTx, Turn
from tuner.engine.landing import Landing
from tuner.engine.learning import Learner
from tuner.engine.messages import ENDED, Progress, StepReport
from tuner.engine.pace import OVERHEAD, Pace
from tuner.engine.parting import pause_ns
from tuner.engine.placement import Anywhere, Machine, Place, Placement, Standing
from tuner.engine.standing import lost_ns, may_move, standing
from tuner.engine.world import Assignment, Clock, Terms, World
from tuner.tuning.decide import decide
from tuner.tuning.samplers import Sampler
from tuner.tuning.state import PUBLIC, State

# The limits of a budget that may end a job before its first report.
LIMITS = ("budget_usd", "budget_gpu_hours", "wall_clock")
# If the last suggestion took longer than this, the next one is made outside of a transaction.
SLOW_SUGGESTION_NS = 50_000_000
# A worker that sends nothing for this long after its lease ended, or after it was ordered to stop, is killed.
SILENT_NS = 5_000_000_000


class Loop:
    def __init__(
        self,
        spec: JobSpec,
        terms: Terms,
        *,
        sampler: Sampler,
        journal: Journal,
        world: World,
        clock: Clock,
        placement: Placement | None = None,
        landing: Landing | None = None,
        heirs: Heirs = NO_HEIRS,
    ) -> None:
        self.job = terms.job
        self.state = State.fresh(spec, concurrency=terms.concurrency, rate=terms.rate)
        self.learner = Learner(spec, sampler, heirs)
        self.pace = Pace()
        self.treasury = Treasury(terms.job, terms.slice_ns)
        self._placement, self._landing = placement or Anywhere(terms.rate), landing or Landing()
        # By trial: the money of its current attempt, and why its hanging attempt is being stopped.
        self.purses, self.stalled = dict[str, Purse](), dict[str, str]()
        # By trial: the number of its newest attempt, and the step of its newest checkpoint.
        self.attempts, self.saved = dict[str, int](), dict[str, int]()
        self.end: do.EndJob | None = None
        self.journal, self._world, self._clock = journal, world, clock
        self._hours = Hours(clock, journal.running_ns(), spec.window)

    # Events of the job

    def start(self, event: ev.Asked) -> None:
        """Carry out the user's request: resume, pause or cancel. Call `recover` first, which records `Launched`."""
        self._hours.limit(self.state.budget)
        self.happened(event)

    def happened(self, event: ev.Event) -> None:
        """Record an event, decide about it in one transaction, and carry the decisions out."""
        with self._turn() as turn:
            self._tell(turn, event)

    def budget_changed(self, budget: Budget) -> None:
        """Adopt a new budget. The caller must change the limit of the job's account first."""
        with self._turn() as turn:
            self._tell(turn, ev.BudgetChanged(turn.at, budget))
        self._hours.limit(self.state.budget)

    def tick(self) -> None:
        """End a job whose wall clock ran out, and pause one whose window closed. Called about once per second."""
        over = self._hours.over(self._clock.now())
        if over is not None and self.end is None and self.state.ending is None:
            self.happened(over)

    def progress(self, progress: Progress) -> None:
        """Handle a message of a worker.

        A message of an earlier attempt, or with a lower meter reading than the last one, is outdated and ignored.
        """
        purse = self._purse(progress.trial, progress.attempt)
        if purse is None or progress.meter.total_ns < purse.meter.total_ns:
            return
        with self._turn() as turn:
            purse.read(progress.meter, heard_ns=self._clock.elapsed_ns())
            if purse.began(turn.tx, progress.node, progress.from_step, progress.environment):
                self.saved[purse.trial] = purse.from_step
            purse.leaving, purse.usage, purse.trouble = progress.leaving, progress.usage, progress.trouble
            for saved in progress.checkpoints:
                self._on_saved(turn, purse, saved.step)
                purse.saved(turn.tx, saved, self.state.spec, turn.at)
            for report in progress.reports:
                self._on_report(turn, purse, report)
            if progress.state in ENDED:
                self._on_end(turn, purse, progress)
            else:
                self._keep_going(turn, purse, progress)
                self._reconsider(turn, purse)

    def landed(self, trial: str, attempt: int, machine: Machine | None = None) -> int:
        """Note that an attempt was given a machine, and return the length of its lease at that machine's price.

        The machine costs money from now on, so its start is recorded. A later driver bills from it if this
        one dies. Call this again when more is known about the machine.

        Args:
            trial: The trial.
            attempt: The number of its attempt.
            machine: The machine. None: nothing is known about it yet.

        Returns:
            The length of the attempt's whole lease in nanoseconds, or 0 if the attempt no longer runs.
        """
        if (purse := self._purse(trial, attempt)) is None:
            return 0
        purse.heard_ns = self._clock.elapsed_ns()
        if purse.waits or machine:
            with self._turn() as turn:
                purse.landed_at = turn.at if purse.waits else purse.landed_at
                self._look_at(turn, purse, machine)
        return purse.lease_ns

    def relocate(self, trial: str, attempt: int) -> bool:
        """Move an attempt that waits for a machine to another kind of machine.

        This is done if the placement prefers another kind and the budget allows it. The waiting attempt ends without
        cost, and the trial's next attempt waits for the other kind. Return False if the attempt should keep waiting.
        """
        purse = self._purse(trial, attempt)
        if purse is None or not purse.waits:
            return False
        place = self._placement.elsewhere(self._standing(trial))
        if place is None:
            return False
        with self._turn() as turn:
            wanted = self._wanted(turn, self.pace.begin_need_ns(trial))
            if not self.treasury.affords(turn.tx, place.rate, wanted, instead_of=purse):
                return False
            self._close(turn, purse, "paused", "no machine of this kind was to be had")
            order = do.Begin(trial, self.state.trial(trial).config, purse.until)
            for event in self._begin(turn, order, [place]):
                self._tell(turn, event)
        return True

    def lost(self, trial: str, attempt: int, reason: str, *, preempted: bool = False, node: str = "") -> None:
        """End an attempt whose worker is known to be dead.

        The time since the worker's last message is billed as lost, but not beyond the end of the lease.

        Args:
            trial: The trial.
            attempt: The number of its attempt.
            reason: Why the worker died.
            preempted: Its machine was taken away. This is assumed in any case if the machine had a notice.
            node: The worker's node, if the worker itself has not reported it.
        """
        purse = self._purse(trial, attempt)
        if purse is None:
            return
        with self._turn() as turn:
            silent = self._clock.elapsed_ns() - purse.heard_ns if not purse.waits else 0
            silent = min(silent, purse.lease_ns - purse.meter.total_ns)
            ns = purse.meter.ns
            purse.meter = Meter({**ns, "lost": ns.get("lost", 0) + max(0, silent)})
            purse.node = purse.node or node
            self.stalled.pop(trial, None)
            self._end(turn, purse, "preempted" if preempted or purse.leaving else "lost", reason)

    def overdue(self) -> list[tuple[str, int]]:
        """Return the attempts, by trial and number, whose worker must have ended by now or have sent something.

        A worker sends a heartbeat every second, but none while it stores its last checkpoint, which its lease
        pays for. So a worker is overdue if it sends nothing until `SILENT_NS` after the end of its lease. If
        it was ordered to stop, it is overdue after `SILENT_NS` of silence.
        """
        now, found = self._clock.elapsed_ns(), []
        for purse in self.purses.values():
            stops = self.state.trial(purse.trial).status == "stopping" or purse.trial in self.stalled
            unused = 0 if stops or purse.misplaced else max(0, purse.lease_ns - purse.meter.total_ns)
            if not purse.waits and now - purse.heard_ns > unused + SILENT_NS:
                found.append((purse.trial, purse.attempt))
        return found

    def runs(self, trial: str, attempt: int) -> bool:
        return self._purse(trial, attempt) is not None

    def _purse(self, trial: str, attempt: int) -> Purse | None:
        """Return the money of this attempt, or None if it no longer runs."""
        purse = self.purses.get(trial)
        return purse if purse is not None and purse.attempt == attempt else None

    # One turn

    @contextmanager
    def _turn(self) -> Iterator[Turn]:
        """Run the block in one transaction, and send its commands once the transaction is committed."""
        with self.journal.transaction() as tx:
            turn = Turn(tx, self._clock.now())
            yield turn
            self.record_touched(tx, turn.at)
        for order in turn.orders:
            order()
        if turn.suggest is not None:
            self.happened(self.learner.answer(self.state, turn.suggest, self._clock))

    def record_touched(self, tx: JournalTx, at: Instant) -> None:
        """Record the state of each trial that changed."""
        for number in sorted(self.state.touched):
            trial = self.state.trials[number]
            tx.put_trial(trial.id, PUBLIC[trial.status], at=at, config=trial.config, reason=trial.reason)
        self.state.touched.clear()

    def _tell(self, turn: Turn, event: ev.Event) -> None:
        """Record an event, decide on it, and carry out the resulting commands.

        Each event that a command produces is treated in the same way.
        """
        waiting = deque([event])
        while waiting:
            told = waiting.popleft()
            if isinstance(told, ev.Suggested) and told.inherited is not None:
                self.saved[told.trial] = self.learner.heirs.record(turn.tx, told)
            turn.tx.append(told)
            self.state, orders = decide(self.state, told)
            self.learner.learn(self.state, told)
            for order in orders:
                waiting.extend(self._carry_out(turn, order))

    def _carry_out(self, turn: Turn, order: do.Command) -> list[ev.Event]:
        """Carry out one command of `decide`, and return the events that follow from it."""
        match order:
            case do.Suggest() if self.learner.suggestion_ns > SLOW_SUGGESTION_NS:
                turn.suggest = order  # a slow sampler must not hold the transaction open
            case do.Suggest() | do.Consult():
                return [self.learner.answer(self.state, order, self._clock)]
            case do.Begin():
                return self._begin(turn, order)
            case do.Proceed(trial, until):
                self.purses[trial].until = until
                turn.go.add(trial)
            case do.Park(trial):
                turn.orders.append(lambda: self._world.park(trial))
            case do.Finish(trial):
                turn.orders.append(lambda: self._world.finish(trial))
            case do.Stop(trial):
                keep_best = self.state.ending is None  # a job that is cancelled ends at once
                turn.orders.append(lambda: self._world.stop(trial, keep_best=keep_best))
            case do.EndJob():
                self._end_job(turn, order)
        return []

    def _end_job(self, turn: Turn, order: do.EndJob) -> None:
        again_at = self._hours.next_opening(turn.at) if order.reopens else None
        detail = order.detail
        if order.state == "failed" and order.reason in LIMITS:
            detail += self._where_the_money_went(turn.tx)
        turn.tx.put_job(
            order.state, order.reason, at=turn.at, detail=detail, again_at=again_at, waits_for=order.waits_for
        )
        self.end = order

    def _where_the_money_went(self, tx: JournalTx) -> str:
        """Describe what a job without reports paid for, and suggest a larger budget. Return "" if it spent nothing."""
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
            f"; {100 * most / total:.1f} % of ${total / 1e6:.6f} was {kind}. Starting a trial took {start_ns / NS:.1f} s or more: submit "
            f"the job again with at least ${enough / 1e6:.6f}"
        )

    def _begin(self, turn: Turn, order: do.Begin, places: Sequence[Place] = ()) -> list[ev.Event]:
        """Begin an attempt at the first place that the budget allows. Return an event if it allows none of them."""
        trial, attempt = order.trial, self.attempts.get(order.trial, 0) + 1
        wanted = self._wanted(turn, self.pace.begin_need_ns(trial))
        places = places or self._placement.choose(self._standing(trial))
        opened = self.treasury.open(turn.tx, trial, attempt, places, wanted)
        if opened is None:
            return [self._refused(turn, trial, wanted, places[0].rate, running=False)]
        place, lease_ns, held = opened
        step, now_ns = self.saved.get(trial, 0), self._clock.elapsed_ns()
        purse = Purse(trial, attempt, place, turn.at, lease_ns, 1, held, now_ns, order.until, step)
        purse.landed_at = turn.at if place.offer is None else None
        purse.base = (turn.tx.reached(trial, step) if step else None) or (FREE, 0)
        self.attempts[trial], self.purses[trial] = attempt, purse
        turn.tx.put_attempt(purse.row)
        not_before_ns = now_ns + pause_ns(self.state.trial(trial).in_vain)
        work = (order.config, order.until, lease_ns, step or None)
        assignment = Assignment(trial, attempt, *work, not_before_ns, place.offer, self._job_best())
        turn.orders.append(lambda: self._world.begin(assignment))
        return []

    def _look_at(self, turn: Turn, purse: Purse, machine: Machine | None) -> None:
        """Have the attempt pay for the machine that it was given. Stop the attempt if it may not use that machine."""
        found = self._landing.settle(turn.tx, self.treasury, purse, machine, turn.at)
        turn.tx.put_attempt(purse.row)
        if found == "refused":
            refused = self._refused(turn, purse.trial, self._wanted(turn, 0), purse.rate, running=True)
            self._tell(turn, refused)
        elif found == "misplaced":
            turn.orders.append(lambda: self._world.stop(purse.trial, keep_best=False))

    # Messages of workers

    def _on_saved(self, turn: Turn, purse: Purse, step: int) -> None:
        self.saved[purse.trial] = max(step, self.saved.get(purse.trial, 0))
        purse.trained_ns = {s: ns for s, ns in purse.trained_ns.items() if s >= step}

    def _on_report(self, turn: Turn, purse: Purse, report: StepReport) -> None:
        trained = report.meter.ns.get("train", 0)
        train_ns = max(0, trained - purse.reported.ns.get("train", 0))
        if report.step - purse.last_step:
            self.pace.stepped(purse.trial, train_ns)
        purse.trained(report.step, trained)
        purse.reported = report.meter
        value = report.value(self.state.spec.objective.metric)
        turn.tx.put_report(purse.row_of(report, value))
        # A report carries the job's spend so far and, if the machine has another price than the job's usual one, that
        # price.
        spent = self.treasury.spent(turn.tx, self.purses.values())
        price = purse.rate.price if purse.rate.price != self.state.rate.price else None
        names = report.names() if value is None else None
        told = (report.at, purse.trial, report.step, value, spent, report.resumable, train_ns, price, names)
        self._tell(turn, ev.Reported(*told))

    def _on_end(self, turn: Turn, purse: Purse, progress: Progress) -> None:
        trial, trouble = purse.trial, progress.trouble
        if progress.saved_step:
            self._on_saved(turn, purse, progress.saved_step)
        # The lease ended before the attempt's first step did.
        starved = trouble is not None and trouble.kind == "lease" and purse.last_step == 0
        once_ns = {"warming_ns": progress.warming_ns, "outage_ns": progress.outage_ns}
        self.pace.ended(trial, purse.meter, **once_ns, starved=starved)
        reason, detail = (trouble.line, trouble.traceback) if trouble else ("", "")
        end = end_of(progress)
        # A hanging trial has failed, even if its worker or machine was lost while it was being stopped.
        if trial in self.stalled and end in ("lost", "preempted"):
            end = "failed"
        end, reason = ("lost", purse.misplaced) if purse.misplaced else (end, reason)
        self._end(turn, purse, end, reason, detail)

    def _keep_going(self, turn: Turn, purse: Purse, progress: Progress) -> None:
        """Renew the lease of a trial if it asks for that, was promoted, or has used half of its lease.

        A trial that is about to pause or finish gets its lease renewed too, because it may still be saving. A trial
        that hangs is stopped.
        """
        trial = purse.trial
        status = self.state.trial(trial).status
        if status not in ("running", "parking", "finishing") or trial in self.stalled or purse.misplaced:
            return
        hangs = self.pace.hangs(
            trained_ns=purse.since_report_ns("train"),
            overhead_ns=purse.since_report_ns(*OVERHEAD) - progress.outage_ns,
            buys_ns=purse.rate.affords_ns(self.state.budget.limit),
        )
        if progress.state == "running" and hangs:
            self.stalled[trial] = hangs
            turn.orders.append(lambda: self._world.stop(trial, keep_best=False))
            return
        waits = (
            status == "running" and progress.state == "waiting" and (trial in turn.go or purse.earned_more)
        )
        used = purse.meter.total_ns - purse.settled.total_ns
        low = used * 2 > purse.lease_ns - purse.settled.total_ns
        if not waits and not low:
            return
        unused = purse.lease_ns - purse.meter.total_ns
        need = max(unused + progress.need_ns, self.pace.step_need_ns(trial)) if progress.need_ns else 0
        wanted = self._wanted(turn, need)
        extended = self.treasury.extend(turn.tx, purse, wanted)
        if extended or (waits and not progress.need_ns):
            best = self._job_best()
            turn.orders.append(lambda: self._world.go(trial, purse.until, purse.lease_ns, best))
        elif waits:
            self._tell(turn, self._refused(turn, trial, wanted, purse.rate, running=True))

    def _reconsider(self, turn: Turn, purse: Purse) -> None:
        """Pause a trial that should be on another kind of machine, if it can be saved.

        Its next attempt begins at once.
        """
        if may_move(self.state.trial(purse.trial), purse) and purse.trial not in self.stalled:
            purse.moving = self._placement.elsewhere(self._standing(purse.trial))
            if purse.moving is not None:
                turn.orders.append(lambda: self._world.park(purse.trial))

    def _end(self, turn: Turn, purse: Purse, end: AttemptEnd, reason: str, detail: str = "") -> None:
        trial, saved = purse.trial, self.saved.get(purse.trial, 0)
        self._close(turn, purse, end, reason, detail)
        stalled = self.stalled.pop(trial, None)
        told = ev.Failed(turn.at, trial, stalled) if stalled is not None else None
        self._tell(turn, told or event_of(end, turn.at, trial, saved=saved, reason=reason))

    def _close(self, turn: Turn, purse: Purse, end: AttemptEnd, reason: str, detail: str = "") -> None:
        """Settle the attempt's money and record its end.

        Training counts as lost if it repeated earlier training, or if the trial has to repeat it because it
        was not saved.
        """
        lost = lost_ns(purse, self.saved.get(purse.trial, 0), done_again=end in DONE_AGAIN)
        self.treasury.close(turn.tx, purse, lost_ns=lost, at=turn.at)
        gained, now = purse.meter.ns.get("train", 0) - lost, Instant(self._clock.elapsed_ns())
        self._placement.paid(purse.place, purse.meter.total_ns, gained_ns=gained, now=now)
        turn.tx.put_attempt(purse.ended(end, turn.at, reason=reason, detail=detail))
        del self.purses[purse.trial]

    # Money and time

    def _wanted(self, turn: Turn, need_ns: int) -> Wanted:
        """Return the request for a lease of at least this length."""
        return Wanted(need_ns, max(1, len(self.state.active)), self._hours.left_ns(), turn.at)

    def _refused(self, turn: Turn, trial: str, wanted: Wanted, rate: Rate, *, running: bool) -> ev.Event:
        """Return the event that a hold was refused, with the limit that has no room for it."""
        limit, above = self.treasury.limit(turn.tx, rate, wanted, gpus=self.state.budget.gpu_ms is not None)
        return ev.Refused(turn.at, trial, self._hours.which(limit), running, above)

    def _job_best(self) -> float | None:
        """Return the best score that any trial reported, or None before the first."""
        return self.state.leader_score if self.state.leader is not None else None

    def _standing(self, trial: str) -> Standing:
        """Return the trial's snapshot for the placement."""
        now, left_ns = Instant(self._clock.elapsed_ns()), self._hours.wall_clock_ns()
        return standing(self.state, trial, self.purses, self.saved, self.pace, now=now, time_ns=left_ns)
