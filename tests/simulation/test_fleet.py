"""Test workers that come and go: waiting for one costs nothing, and a worker with a notice saves its trial."""

from collections.abc import Iterator

from tests.simulation.test_simulated_jobs import Curves, ended, loop_config, spec
from tuner.domain import events as ev
from tuner.domain.money import Cost
from tuner.domain.time import NS
from tuner.simulator.invariants import watch
from tuner.simulator.traces import UpTimes
from tuner.simulator.worker import Overheads
from tuner.simulator.world import SimulatedRun, SpotMachines

EVEN = Overheads(setup_ns=0, restore_ns=0, save_ns=0)


def up(*spans: tuple[float, float | None]) -> Iterator[UpTimes]:
    return iter([UpTimes(round(a * NS), None if b is None else round(b * NS)) for a, b in spans])


def run_with(*up_times: Iterator[UpTimes], notice_s: float | None = None, **budget: object) -> SimulatedRun:
    run = SimulatedRun(
        spec("1", scheduler="none", **budget),
        loop_config(len(up_times)),
        Curves(),
        overheads=EVEN,
        machines=SpotMachines(
            up_times=list(up_times), notice_ns=None if notice_s is None else round(notice_s * NS)
        ),
    )
    watch(run)
    return run


def bill_of(run: SimulatedRun, trial: str) -> Cost:
    costs = [
        cost
        for (name, _), bill in run.journal.tables.bills.items()
        if name == trial
        for cost in bill.values()
    ]
    return sum(costs, Cost())


def test_attempt_waiting_for_worker_is_free_and_paused_at_job_end() -> None:
    """One of three workers exists. The wall clock ends the job."""
    run = run_with(up((0, None)), up(), up(), wall_clock_ns=8 * NS)
    run.run()
    assert ended(run) == "wall_clock"
    waited = [trial for trial in run.loop.state.trials if trial.steps == 0]
    assert waited
    for trial in waited:
        assert trial.status == "paused"
        assert bill_of(run, trial.id).nothing
    assert run.journal.account().held == Cost()


def test_waiting_attempts_are_cancelled_with_the_job() -> None:
    run = run_with(up((0, None)), up(), up())
    run.clock.after(5 * NS, lambda: run.loop.handle_event(ev.ControlRequested(run.clock.now(), "cancel")))
    run.run()
    assert [trial.status for trial in run.loop.state.trials] == ["stopped"] * 3
    assert run.journal.account().held == Cost()


def test_meter_starts_when_the_worker_does() -> None:
    run = run_with(up((100, None)), trials=1)
    run.run()
    assert run.clock.elapsed_ns() > 100 * NS
    trained = sum(Curves().step_ns(run.loop.state.trials[0].config, step) for step in range(1, 28))
    paid = run.loop_config.rate.cost(trained + NS)
    assert bill_of(run, "trial_00000").fits(paid)


def test_trial_preempted_with_notice_resumes_where_it_stopped() -> None:
    run = run_with(up((0, 20), (30, None)), notice_s=5, trials=1)
    run.run()
    attempts = list(run.journal.tables.attempts.values())
    assert [(row.end, row.from_step > 0) for row in attempts] == [("preempted", False), ("completed", True)]
    assert attempts[0].to_step == attempts[1].from_step
    assert run.preemptions == 1
    assert sum(e.cost.usd.micro_usd for e in run.journal.tables.entries.values() if e.kind == "lost") == 0


def test_trial_preempted_without_notice_restarts_from_scratch() -> None:
    run = run_with(up((0, 20), (30, None)), trials=1)
    run.run()
    attempts = list(run.journal.tables.attempts.values())
    assert [(row.end, row.from_step) for row in attempts] == [("preempted", 0), ("completed", 0)]
    assert run.preemptions == 1
    assert sum(e.cost.usd.micro_usd for e in run.journal.tables.entries.values() if e.kind == "lost") > 0


def test_worker_with_a_preemption_notice_gets_no_attempt() -> None:
    """The second period in which the worker is up is no longer than the notice."""
    run = run_with(up((0, 10), (12, 16), (40, None)), notice_s=5, trials=1)
    run.run()
    begun = [row.began_at - run.clock.offset_ns for row in run.journal.tables.attempts.values()]
    assert len(begun) == 2
    assert run.preemptions == 1
    assert run.clock.elapsed_ns() > 40 * NS


def test_crashed_worker_is_replaced_by_a_cold_worker() -> None:
    run = run_with(up((0, None)), trials=1)
    run.clock.run_next()
    attempt = run.fleet.workers[0].busy
    assert attempt is not None
    run.fleet.crashed(attempt)
    assert run.fleet.workers[0].cold
    assert run.fleet.workers[0].free_for(None)
