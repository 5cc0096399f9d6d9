"""Test rare events of a job's loop: late messages, hanging trials, other machines, and trials that continue
those of earlier jobs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.driver.looping import Job, World
from tests.driver.test_clocks import after
from tests.simulation.test_simulated_jobs import QuickCurves, loop_config, spec
from tests.simulation.test_waiting_bills import SPOT, OnlySpot, passes
from tuner.domain import commands as do
from tuner.domain import events as ev
from tuner.domain.cost import Meter, total
from tuner.domain.job import Resources
from tuner.domain.ledger import lost_of
from tuner.domain.money import FREE, Price, Rate
from tuner.domain.objective import Constraint, Objective
from tuner.domain.offer import Offer, WorkerMachine
from tuner.domain.records import INHERITED, CheckpointRow, ReportRow, WarmStartTrial
from tuner.domain.time import NS, Instant
from tuner.domain.usage import Usage
from tuner.driver.learning import Learner
from tuner.driver.loop import SHARED_SILENT_NS, SUGGESTING_NS, Loop
from tuner.driver.machine_check import MachineCheck
from tuner.driver.messages import StepReport, WorkerMessage
from tuner.driver.placement import Place, TrialSnapshot
from tuner.driver.ports import LoopConfig
from tuner.driver.recovery import recover
from tuner.driver.replay import JobRecord, check
from tuner.driver.warm_starts import WarmStarts
from tuner.simulator.journal import MemoryJournal, MemoryTx
from tuner.simulator.worker import SimulatedClock
from tuner.simulator.world import SimulatedRun
from tuner.tuning.samplers import sampler_for
from tuner.tuning.state import State

EXPENSIVE = Offer("p5", Price(10**12), 1, 0, "spot")


def ended(job: Job, attempt: int) -> tuple[str | None, str | None]:
    row = job.journal.tables.attempts[job.trial, attempt]
    return row.end, row.cause


def test_messages_of_other_attempts_and_stale_messages_are_ignored() -> None:
    job = Job()
    job.loop.progress(WorkerMessage(job.trial, 2, "running", Meter({"restore": 3 * NS})))
    before = job.journal.account(), len(job.journal.events()), job.loop.leases[job.trial].meter
    job.loop.progress(WorkerMessage(job.trial, 1, "failed", Meter({"restore": 4 * NS})))
    job.loop.progress(WorkerMessage(job.trial, 2, "failed", Meter({"restore": 2 * NS})))
    job.loop.lost(job.trial, 1, "gone")
    assert job.loop.node_assigned(job.trial, 1) == 0
    assert not job.loop.relocate(job.trial, 2)
    assert not job.loop.runs(job.trial, 1)
    assert job.loop.runs(job.trial, 2)
    assert before == (job.journal.account(), len(job.journal.events()), job.loop.leases[job.trial].meter)


def test_only_the_running_attempt_can_be_on_a_wrong_machine() -> None:
    job = Job()
    assert not job.loop.is_on_wrong_machine(job.trial, 2)
    job.loop.leases[job.trial].wrong_machine = "its price is not known"
    assert job.loop.is_on_wrong_machine(job.trial, 2)
    assert not job.loop.is_on_wrong_machine(job.trial, 1)


def test_attempt_that_waits_for_any_worker_is_billed_from_when_it_gets_one() -> None:
    job = Job()
    job.world.workers = 0
    job.trains(2, 2)
    after(job.clock, 5 * NS)
    assert job.loop.leases[job.trial].waits
    job.launch()  # the driver died while attempt 3 waited
    assert ended(job, 3) == ("lost", "driver")
    assert job.journal.tables.attempts[job.trial, 3].costs == {}
    after(job.clock, 5 * NS)
    job.loop.node_assigned(job.trial, 4)
    after(job.clock, 2 * NS)
    job.launch()
    assert total(job.journal.tables.attempts[job.trial, 4].costs) == loop_config().rate.cost(2 * NS)


def test_attempt_for_which_a_worker_is_free_has_its_machine_at_once() -> None:
    job, committed = Job(), list[object]()
    job.trains(2, 2)
    assert not job.loop.leases[job.trial].waits
    job.journal.watchers.append(lambda _, records: committed.append(records))
    job.loop.node_assigned(job.trial, 3)
    assert committed == []


class TwoTrials(Job):
    """A job of two trials that has one worker."""

    concurrency = 2


def test_attempt_behind_a_waiting_one_costs_nothing() -> None:
    """The worker of the first trial's preempted attempt goes to the second trial, which has waited longer."""
    job = TwoTrials()
    assert job.loop.leases["trial_00001"].waits
    assert job.loop.leases[job.trial].waits
    after(job.clock, 5 * NS)
    job.launch()
    assert job.journal.tables.attempts[job.trial, 2].costs == {}


def test_machines_of_several_nodes_are_recorded_before_work_begins() -> None:
    job, committed = Job(), list[object]()
    job.loop._machine_check = MachineCheck(find=lambda _: Offer("c7i", loop_config().rate.price, 1, 0))
    job.journal.watchers.append(lambda _, records: committed.append(records))
    job.loop.node_assigned(job.trial, 2, WorkerMachine({}, 1, 0, others=(WorkerMachine({}, 1, 0),)))
    assert len(committed) == 1


@pytest.mark.parametrize(("price", "turns"), [(loop_config().rate.price, 0), (Price(1), 1)])
def test_machine_at_the_expected_price_is_recorded_with_the_first_message(price: Price, turns: int) -> None:
    job, offer, committed = Job(), Offer("c7i", price, 1, 0), list[object]()
    job.loop._machine_check = MachineCheck(find=lambda _: offer)
    job.journal.watchers.append(lambda _, records: committed.append(records))
    job.loop.node_assigned(job.trial, 2, WorkerMachine({}, 1, 0))
    assert len(committed) == turns, "another price is recorded before any work begins"
    job.loop.progress(WorkerMessage(job.trial, 2, "running", Meter({"restore": NS}), node="n1"))
    (row,) = job.journal.attempts()
    assert row.machine is not None
    assert (row.machine.instance_type, row.price, row.node) == ("c7i", price, "n1")


def test_unknown_node_is_billed_as_the_most_expensive_known_node() -> None:
    job, offers = Job(), [Offer("c7i", Price(1), 1, 0), Offer("m6", Price(5), 2, 0)]
    job.loop._machine_check = MachineCheck(
        Resources(cpus=1, nodes=3), lambda machine: offers[int(machine.cpus) - 1]
    )
    job.loop.node_assigned(job.trial, 2, WorkerMachine({}, 1, 0, others=(WorkerMachine({}, 2, 0),)))
    assert job.loop.leases[job.trial].rate.price == Price(1 + 3 + 3)


def test_repeated_report_counts_as_one_step() -> None:
    job = Job()
    meter = Meter({"restore": NS, "train": NS})
    report = StepReport(2, {"acc": 0.5}, True, meter, Instant(1))
    for _ in range(2):
        job.loop.progress(WorkerMessage(job.trial, 2, "running", meter, (report,)))
    assert job.loop.state.trial(job.trial).steps == 2
    assert job.loop.state.steps == 2


def test_report_is_recorded_with_its_violation() -> None:
    limit = Constraint("latency_ms", max=20)
    job = Job(limit, latency_ms=25)
    (reported,) = [event for event in job.journal.events() if isinstance(event, ev.Reported)]
    assert (reported.violation, reported.lacks) == (0.25, None)
    assert job.journal.tables.reports[job.trial, 1].violation == 0.25
    assert job.world.begun[job.trial].job_best is None, "an infeasible score cannot be beaten"


@pytest.mark.parametrize(
    ("job", "user"),
    [
        (partial(Job, Constraint("latency_ms", max=20)), "a constraint"),
        (partial(Job, second=Objective("latency_ms", "min")), "the second objective"),
    ],
)
def test_trial_without_a_needed_metric_fails(job: Callable[[], Job], user: str) -> None:
    lacking = job()
    assert lacking.journal.tables.reports[Job.trial, 1].violation is None
    record = lacking.loop.state.trial(Job.trial)
    assert (record.status, record.value) == ("failed", None)
    assert f"did not report 'latency_ms' at step 1, which {user} of the job needs" in record.reason


def test_hung_trial_fails_regardless_of_worker_outcome() -> None:
    for state in ("preempted", "stopped"):
        job = Job()
        job.tells("restore", range(130))
        assert job.world.stopped == [job.trial]
        job.tells("restore", range(130, 140))
        assert job.world.stopped == [job.trial], "once is enough"
        job.loop.progress(WorkerMessage(job.trial, 2, state, Meter({"restore": 140 * NS})))  # type: ignore[arg-type]
        assert job.loop.state.trial(job.trial).status == "failed"
        assert "may have been hanging" in job.loop.state.trial(job.trial).reason


def test_hung_attempt_whose_worker_vanishes_is_lost() -> None:
    job = Job()
    job.tells("restore", range(130))
    job.loop.lost(job.trial, 2, "node gone", node="n1")
    assert ended(job, 2) == ("lost", "worker")
    assert job.loop.runs(job.trial, 3)


def test_cause_of_preemption_records_whether_there_was_a_notice() -> None:
    for leaving, cause in ((True, "notice"), (False, "no_notice")):
        job = Job()
        job.loop.progress(WorkerMessage(job.trial, 2, "preempted", Meter(), has_notice=leaving))
        assert ended(job, 2) == ("preempted", cause)


def test_machine_usage_is_recorded_when_attempt_ends() -> None:
    job = Job()
    used = Usage(wall_ns=5, cpu_ns=4, facts={})
    job.loop.progress(WorkerMessage(job.trial, 2, "paused", Meter({"restore": NS}), usage=used))
    assert job.journal.tables.usages[job.trial, 2] == used


def test_cancelled_job_does_not_wait_until_a_stopped_trial_has_saved_its_best_step() -> None:
    job = Job()
    job.loop.progress(WorkerMessage(job.trial, 2, "running", Meter({"restore": 3 * NS})))
    job.loop.handle_event(ev.StopRequested(job.clock.now(), 1, job.trial))
    job.loop.progress(WorkerMessage(job.trial, 2, "running", Meter({"restore": 4 * NS})))
    assert job.world.keeps_best == [True]
    job.loop.handle_event(ev.ControlRequested(job.clock.now(), "cancel"))
    job.loop.progress(WorkerMessage(job.trial, 2, "running", Meter({"restore": 5 * NS})))
    assert job.world.keeps_best == [True, False]


def test_finished_job_ends_only_once() -> None:
    job = Job()
    job.loop.tick()
    assert job.loop.end is None
    job.loop.handle_event(ev.WallClockEnded(Instant(9)))
    job.loop.tick()
    job.loop.progress(WorkerMessage(job.trial, 2, "paused", Meter()))
    assert job.loop.end is not None
    job.loop.tick()


class AnotherMachine(OnlySpot):
    """A placement policy that wants to move every attempt to an offer that the budget cannot pay for."""

    def relocation(self, trial: TrialSnapshot) -> Place | None:
        return Place(EXPENSIVE, Rate(EXPENSIVE.price))


class Cheaper(OnlySpot):
    """A placement policy that chooses the cheap offer, and wants to move to the expensive one at a low price."""

    def choose(self, trial: TrialSnapshot) -> Sequence[Place]:
        return [Place(SPOT, Rate(SPOT.price))]

    def relocation(self, trial: TrialSnapshot) -> Place | None:
        return Place(EXPENSIVE, Rate(Price(1000)))


def waiting(placement: OnlySpot, *, wall_clock_ns: int | None = None) -> SimulatedRun:
    its = LoopConfig("job_0", Rate(SPOT.price), 1, 10 * NS)
    job = spec("0.02", seed=1, wall_clock_ns=wall_clock_ns)
    run = SimulatedRun(job, its, QuickCurves(), seed=1, placement=placement)
    for worker in run.fleet.workers:
        worker.up = False
    run._launch(ev.ControlRequested(run.clock.now(), "resume"))
    return run


def test_waiting_attempt_moves_only_to_an_affordable_offer() -> None:
    for placement, goes in ((OnlySpot(), False), (AnotherMachine(), False), (Cheaper(), True)):
        run = waiting(placement)
        (lease,) = run.loop.leases.values()
        assert run.loop.relocate(lease.trial, lease.attempt) is goes
        assert run.loop.runs(lease.trial, lease.attempt + int(goes))
        assert run.journal.tables.account.posted == FREE


class GoesOnce(OnlySpot):
    """A placement policy that moves the first attempt once, when it runs."""

    gone = False

    def relocation(self, trial: TrialSnapshot) -> Place | None:
        if self.gone or trial.waited_ns is not None:
            return None
        self.gone = True
        return Place(EXPENSIVE, Rate(Price(1000)))


def test_relocated_attempt_is_saved_and_its_trial_resumes_from_checkpoint() -> None:
    its = LoopConfig("job_0", Rate(SPOT.price), 1, 10 * NS)
    run = SimulatedRun(
        spec("0.02", seed=1, trials=1, scheduler="none"), its, QuickCurves(), seed=1, placement=GoesOnce()
    )
    run.run()
    first, second = sorted(run.journal.tables.attempts.values(), key=lambda row: row.attempt)
    assert (first.end, second.end) == ("paused", "completed")
    assert first.to_step == second.from_step > 0
    assert "lost" not in first.costs


class TakesItsTime(Cheaper):
    """A placement policy during which a second passes, as on a busy database."""

    clock: SimulatedClock

    def paid(self, place: Place, paid_ns: int, *, gained_ns: int, now: Instant) -> None:
        self.clock._elapsed += NS


def test_attempt_out_of_time_during_relocation_is_refused_without_hold() -> None:
    placement = TakesItsTime()
    run = waiting(placement, wall_clock_ns=5 * NS)
    placement.clock = run.clock
    passes(run, 4 * NS)
    (lease,) = run.loop.leases.values()
    assert run.loop.relocate(lease.trial, lease.attempt)
    assert not run.loop.leases
    assert run.loop.end is not None
    assert run.loop.end.reason == "wall_clock"
    assert run.journal.tables.account.posted == run.journal.tables.account.held == FREE


def test_warm_started_trial_resumes_from_checkpoint_and_is_billed_from_there() -> None:
    job, its, world, clock = spec("1", scheduler="none"), loop_config(1), World(), SimulatedClock()
    name, config = "trial_00000", {"lr": 0.01, "width": 8}
    rows = tuple(
        ReportRow("trial_00007", 1, step, Instant(1), 0.5, {"acc": 0.5}, FREE, step * NS) for step in (1, 2)
    )
    kept = CheckpointRow(name, 2, INHERITED, "memory://2", 1, 0.1, Instant(1))
    journal = MemoryJournal(its.job, job.budget)
    loop = Loop(
        job,
        its,
        sampler=sampler_for(job),
        journal=journal,
        world=world,
        clock=clock,
        warm_starts=WarmStarts({0: WarmStartTrial("job_9", "trial_00007", config, rows, kept)}),
    )
    recover(loop, died_at=None, now=clock.now())
    loop.start(ev.ControlRequested(clock.now(), "resume"))
    assert (world.begun[name].config, world.begun[name].restore_step) == (config, 2)
    assert loop.leases[name].base == (FREE, 2 * NS)
    assert loop.state.trial(name).steps == 2
    assert loop.state.trained_ns == 0


def test_dead_worker_is_billed_for_at_most_its_elapsed_time() -> None:
    job = Job()
    hold = next(iter(job.journal.open_holds()))
    ten_s, begins = hold.ends_at - hold.placed_at, hold.placed_at
    assert lost_of(hold, {}, begins, begins) == {}
    assert lost_of(hold, {}, Instant(hold.ends_at + 99 * NS), Instant(hold.ends_at + 99 * NS)) == {
        "lost": hold.cost
    }
    half = lost_of(hold, {}, Instant(begins + ten_s // 2), Instant(begins + ten_s // 2))["lost"]
    assert half.usd.micro_usd == -(-hold.cost.usd.micro_usd // 2)


def test_dead_worker_is_billed_only_from_its_node_assignment() -> None:
    job = Job()
    hold = next(iter(job.journal.open_holds()))
    whose, lease_ns = (hold.trial, hold.attempt), hold.ends_at - hold.placed_at
    late = Instant(hold.placed_at + lease_ns)
    assert lost_of(hold, {whose: None}, late, late) == {}
    assert lost_of(hold, {whose: late}, late, late) == {}
    assert lost_of(hold, {whose: late}, Instant(late + lease_ns), Instant(late + lease_ns)) == {
        "lost": hold.cost
    }
    # A hold that renews a lease is billed from when it was placed, not again from the attempt's beginning.
    assert lost_of(hold, {whose: Instant(hold.placed_at - lease_ns)}, hold.placed_at, hold.placed_at) == {}


def test_dead_worker_is_billed_until_now_if_the_heartbeats_of_its_driver_were_late() -> None:
    job = Job()
    hold = next(iter(job.journal.open_holds()))
    lease_ns, second = hold.ends_at - hold.placed_at, Instant(hold.placed_at + NS)
    late = Instant(hold.placed_at - 3 * NS)
    (lost,) = lost_of(hold, {}, late, second).values()
    assert lost.usd.micro_usd == -(-hold.cost.usd.micro_usd * NS // lease_ns)
    assert lost_of(hold, {}, late, Instant(hold.ends_at + NS)) == {"lost": hold.cost}


@pytest.mark.parametrize("placed_before_the_change", [True, False])
def test_dead_worker_is_billed_for_its_lease_if_the_clock_was_set_back(
    placed_before_the_change: bool,
) -> None:
    job = Job()
    hold = next(iter(job.journal.open_holds()))
    assigned_at, an_hour = {(hold.trial, hold.attempt): hold.placed_at}, 3600 * NS
    if not placed_before_the_change:
        hold = replace(
            hold, placed_at=Instant(hold.placed_at - an_hour), ends_at=Instant(hold.ends_at - an_hour)
        )
    died_at = Instant(hold.placed_at + NS - (an_hour if placed_before_the_change else 0))
    assert lost_of(hold, assigned_at, died_at, died_at) == {"lost": hold.cost}


def test_trials_of_a_dead_worker_share_its_last_time() -> None:
    """Two trials shared the worker for the two seconds since its last message. Each is billed one of them."""
    job = Job()
    job.loop.node_assigned(job.trial, 2)
    job.loop.progress(WorkerMessage(job.trial, 2, "running", Meter({"restore": NS})))
    before = job.journal.account().posted.usd.micro_usd
    after(job.clock, 2 * NS)
    job.loop.lost(job.trial, 2, "gone", sharers=2)
    cost = job.loop.leases[job.trial].rate.cost(2 * NS).usd.micro_usd
    assert job.journal.account().posted.usd.micro_usd - before == cost


def test_attempt_that_dies_with_a_worker_on_a_wrong_machine_names_the_machine_as_the_reason() -> None:
    job = Job()
    job.loop.node_assigned(job.trial, 2)
    job.loop.leases[job.trial].wrong_machine = "the price of this machine is not known"
    job.loop.lost(job.trial, 2, "the worker died", preempted=True)
    (attempt,) = [row for row in job.journal.tables.attempts.values() if row.attempt == 2]
    assert (attempt.end, attempt.reason) == ("lost", "the price of this machine is not known")


def test_lease_of_a_trial_that_shares_its_worker_may_last_longer() -> None:
    job = Job()
    job.loop.state.spec = replace(job.spec, resources=Resources(pack=3))
    job.loop.node_assigned(job.trial, 2)
    job.loop.progress(WorkerMessage(job.trial, 2, "running", Meter({"restore": NS})))
    left_ns = job.loop.leases[job.trial].lease_ns - NS
    after(job.clock, 3 * left_ns + SHARED_SILENT_NS)
    assert job.loop.overdue() == []
    after(job.clock, 1)
    assert job.loop.overdue() == [(job.trial, 2)]


class ManyTrials(Job):
    """A job of 400 trials at once. `suggested` has the number of suggestions that each transaction recorded."""

    concurrency = 400

    def launch(self) -> None:
        self.suggested = list[int]()
        self.journal.watchers.append(
            lambda _, new: self.suggested.append(sum(isinstance(event, ev.Suggested) for event in new.events))
        )
        super().launch()


def test_any_number_of_slow_suggestions_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.driver.loop.SLOW_SUGGESTION_NS", -1)
    assert len(ManyTrials().world.begun) == 400


def test_first_suggestion_of_a_driver_is_computed_outside_of_a_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sampler may learn from all trials of the job before it suggests the first configuration."""
    open_transactions, suggested_inside = list[MemoryJournal](), list[bool]()
    transaction, suggest = MemoryJournal.transaction, Learner.suggest

    @contextmanager
    def recorded(journal: MemoryJournal) -> Iterator[MemoryTx]:
        with transaction(journal) as tx:
            open_transactions.append(journal)
            yield tx
            open_transactions.pop()

    def watched(learner: Learner, state: State, trial: str, at: Instant) -> ev.Suggested | ev.Predicted:
        suggested_inside.append(bool(open_transactions))
        return suggest(learner, state, trial, at)

    monkeypatch.setattr(MemoryJournal, "transaction", recorded)
    monkeypatch.setattr(Learner, "suggest", watched)
    ManyTrials()
    assert suggested_inside[:2] == [False, True], (
        "the simulated clock says that the first suggestion took no time"
    )


def delay_suggestions(monkeypatch: pytest.MonkeyPatch, taken_ns: int) -> None:
    answer = Learner.answer

    def slow(self: Learner, state: State, order: do.Suggest | do.Predict, clock: Any) -> Any:
        answered = answer(self, state, order, clock)
        if isinstance(order, do.Suggest):
            after(clock, taken_ns)
            self.suggestion_ns = taken_ns
        return answered

    monkeypatch.setattr(Learner, "answer", slow)


def test_pending_suggestion_adds_no_trial_above_a_lowered_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    delay_suggestions(monkeypatch, NS)
    job = ManyTrials()
    known = len(job.loop.state.trials)
    assert job.loop._suggestion is not None
    job.loop.budget_changed(replace(job.spec.budget, trials=known))
    job.loop.answer_suggestions()
    assert len(job.loop.state.trials) == known
    job.loop.budget_changed(replace(job.spec.budget, trials=known + 2))
    job.loop.answer_suggestions()
    assert len(job.loop.state.trials) == known + 2


@pytest.mark.parametrize("ms", [40, 60])
def test_slow_suggestions_delay_neither_messages_nor_requests(
    ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All suggestions together take 16 or 24 s. The job is paused before most of them are computed."""
    taken_ns = ms * 10**6
    delay_suggestions(monkeypatch, taken_ns)
    job = ManyTrials()
    assert max(job.suggested) <= 2
    began, at_ns = len(job.world.begun), job.clock.elapsed_ns()
    job.loop.answer_suggestions()
    assert began < len(job.world.begun) < 100
    assert job.clock.elapsed_ns() - at_ns <= SUGGESTING_NS + 2 * taken_ns
    job.loop.handle_event(ev.ControlRequested(job.clock.now(), "pause"))
    *_, request, last = events = job.journal.events()
    assert isinstance(request, ev.ControlRequested)
    assert isinstance(last, ev.Suggested)
    record, its = JobRecord(list(enumerate(events, 1))), loop_config(job.concurrency)
    replay = check(
        record, job.spec, lambda _: sampler_for(job.spec), rate=its.rate, concurrency=its.concurrency
    )
    assert (replay.difference, replay.events) == (None, len(events))


@pytest.mark.parametrize("end", ["paused", "preempted", "lost", "driver"])
def test_training_of_a_function_that_has_returned_is_not_lost(end: str) -> None:
    """The function of attempt 2 returned after two seconds of training, and a post followed. Then its attempt ended early."""
    job = Job()
    meter = Meter({"setup": NS, "train": 2 * NS})
    report = StepReport(2, job.metrics, False, meter, Instant(1), last=True)
    job.loop.progress(WorkerMessage(job.trial, 2, "running", meter, (report,), saved_step=1))
    lease = job.loop.leases[job.trial]
    later = Meter({**meter.ns, "idle": lease.lease_ns // 2})
    job.loop.progress(WorkerMessage(job.trial, 2, "running", later))
    assert lease.settled == later
    if end == "lost":
        job.loop.lost(job.trial, 2, "the worker died")
    elif end == "driver":
        job.launch()
    else:
        job.loop.progress(WorkerMessage(job.trial, 2, "paused" if end == "paused" else "preempted", later))
    assert job.loop.state.trial(job.trial).status == "completed"
    bill = job.journal.tables.bills[job.trial, 2]
    assert bill["train"].usd.micro_usd == pytest.approx(loop_config().rate.cost(2 * NS).usd.micro_usd, abs=1)
    assert bill.get("lost", FREE) == FREE
