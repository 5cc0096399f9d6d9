"""Run the real driver loop with simulated workers. All faults are drawn from one seed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from tuner.domain import events as ev
from tuner.domain.budget import Budget
from tuner.domain.job import JobSpec
from tuner.domain.offer import WorkerMachine
from tuner.domain.space import Config
from tuner.driver.loop import Loop
from tuner.driver.machine_check import MachineCheck
from tuner.driver.messages import WorkerMessage
from tuner.driver.placement import Placement, interruption_risk
from tuner.driver.ports import Assignment, LoopConfig
from tuner.driver.recovery import recover
from tuner.driver.warm_starts import NO_WARM_STARTS, WarmStarts
from tuner.simulator.fleet import Fleet, LossesSeen, Markets, SimulatedWorker
from tuner.simulator.journal import MemoryJournal
from tuner.simulator.traces import UpTimes
from tuner.simulator.worker import HEARTBEAT_NS, Overheads, SimulatedAttempt, SimulatedClock, Training
from tuner.tuning.samplers import Sampler, sampler_for
from tuner.worker.saves import Saves

MESSAGE_NS = 2_000_000
RETRY_NS = 1_000_000_000
LOOK_NS = 1_000_000_000
NOTICED_NS = 2_000_000_000
SLICE_STEPS = 8  # minimum number of steps of a simulated lease
HEARTBEAT_STEPS = 4  # steps between simulated heartbeats


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities of faults, each per message of a worker. A worker sends about one message per step."""

    crash: float = 0.0  #: The worker dies.
    repeat: float = 0.0  #: The message arrives a second time, late.
    driver_restart: float = 0.0  #: The driver and its workers die, and a new driver starts.
    clock_jump: float = 0.0  #: The wall clock jumps forward or back.
    clock_jump_ns: int = 86_400_000_000_000  #: The largest jump.
    #: A message in either direction is lost. It is sent again every second until it arrives. Later messages of the worker wait for it,
    #: because a real worker is asked for its next result only after the previous one arrived.
    loss: float = 0.0


NONE = Faults()
NORMAL = Overheads()


@dataclass(frozen=True, slots=True)
class SimulatedPace:
    """The intervals of messages between simulated workers and their driver."""

    heartbeat_ns: int  #: The time between heartbeats.
    #: The length of a lease. Callers set a minimum, because this is too short for very short steps.
    slice_ns: int


def pace_of(step_ns: float) -> SimulatedPace:
    """Return the pace of a simulation whose steps take `step_ns`.

    The intervals grow with the length of a step. Otherwise a simulation of long steps would send a message per simulated second.
    """
    return SimulatedPace(max(HEARTBEAT_NS, round(HEARTBEAT_STEPS * step_ns)), round(SLICE_STEPS * step_ns))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotMachines:
    """The machines of a run: their markets, and when they are up.

    By default they are always up and fit every offer.
    """

    #: The markets of the machines. Each offer has as many machines as the job may run trials at once.
    markets: Markets | None = None
    #: When each machine is up. None means that all are always up. With `markets` this applies to the spot machines. It is read once.
    up_times: list[Iterator[UpTimes]] | None = None
    #: The time from a machine's preemption notice to its preemption. None means no notice.
    notice_ns: int | None = None
    #: The time between checks of whether waiting trials should move to another market.
    look_ns: int = LOOK_NS


@dataclass(frozen=True, slots=True)
class MachineKnowledge:
    """What the driver learns about the machines that attempts are given. By default it learns nothing."""

    #: Returns the machine that an attempt is given. None means that it is not known.
    machine: Callable[[Assignment], WorkerMachine | None] = lambda _: None
    #: Compares the machine that an attempt is given with the attempt's offer, as in a real driver.
    check: MachineCheck | None = None


ALWAYS_UP = SpotMachines()
UNKNOWN_MACHINES = MachineKnowledge()


class SimulatedWorld:
    """The simulated workers as one driver sees them. It implements the driver's port `World`.

    Messages take time in both directions. A dead worker is noticed after two seconds.
    """

    def __init__(self, run: "SimulatedRun") -> None:
        self._run = run
        self.attempts: dict[str, SimulatedAttempt] = {}

    def room(self) -> int:
        return sum(worker.there for worker in self._run.fleet.workers)

    def begin(self, assignment: Assignment) -> None:
        self._run.fleet.begin(assignment)
        self._run.look_later()

    def continue_to(self, trial: str, target_step: int | None, lease_ns: int, job_best: float | None) -> None:
        self._send(trial, lambda attempt: attempt.continue_to(target_step, lease_ns))

    def pause(self, trial: str) -> None:
        called_off = self._run.fleet.call_off(trial, "paused")
        if called_off is None:
            self._send(trial, lambda attempt: attempt.pause())
        else:
            self._run.answer(called_off)

    def finish(self, trial: str) -> None:
        self._send(trial, lambda attempt: attempt.finish())

    def stop(self, trial: str, *, keep_best: bool) -> None:
        called_off = self._run.fleet.call_off(trial, "stopped")
        if called_off is None:
            self._send(trial, lambda attempt: attempt.stop())
        else:
            self._run.answer(called_off)

    def _send(self, trial: str, order: Callable[[SimulatedAttempt], None]) -> None:
        attempt = self.attempts[trial]
        self._run.clock.after(self._run.transit_ns(), lambda: None if attempt.over else order(attempt))


class SimulatedRun:
    """The simulation of one job from start to end, with any number of driver restarts.

    Args:
        machines: The machines of the workers, and when they are up.
        placement: The placement policy. None means that of a real driver if the machines have markets.
        knowledge: What the driver learns about the machine of an attempt.
        journal: The record of the job. None means a record in memory. Tests pass a record in SQL.
        clock: The clock, or None for one that starts at 0.
        returns_at: Returns the step after which the user code of a configuration returns. None if it trains until the driver ends it.
    """

    def __init__(
        self,
        spec: JobSpec,
        loop_config: LoopConfig,
        training: Training,
        *,
        overheads: Overheads = NORMAL,
        faults: Faults = NONE,
        seed: int = 0,
        sampler: Callable[[], Sampler] | None = None,
        heartbeat_ns: int = HEARTBEAT_NS,
        machines: SpotMachines = ALWAYS_UP,
        placement: Placement | None = None,
        knowledge: MachineKnowledge = UNKNOWN_MACHINES,
        warm_starts: WarmStarts = NO_WARM_STARTS,
        journal: MemoryJournal | None = None,
        clock: SimulatedClock | None = None,
        returns_at: Callable[[Config], int] | None = None,
    ) -> None:
        self.sampler = sampler or (lambda: sampler_for(spec))
        self.spec, self.loop_config, self.training, self.overheads = spec, loop_config, training, overheads
        self.placement, self.warm_starts = placement, warm_starts
        self._markets, self._look_ns, self._knowledge = machines.markets, machines.look_ns, knowledge
        self.faults, self._rng, self.heartbeat_ns = faults, Random(f"faults/{seed}"), heartbeat_ns
        self.clock, self._returns_at = clock or SimulatedClock(), returns_at
        self.journal, self._losses = journal or MemoryJournal(loop_config.job, spec.budget), LossesSeen()
        self.journal.watchers.append(self._losses.recorded)
        self.budget = spec.budget
        self.on_turn: Callable[[], None] = lambda: None
        self.restarts = self.crashes = self.resent = self.repeated = self.clock_jumps = 0
        count, self._looks = loop_config.concurrency, False
        self.fleet = Fleet(
            self.clock,
            self._markets.workers(count) if self._markets else [SimulatedWorker() for _ in range(count)],
            make=self._attempt,
            on_preempted=lambda it: self._schedule_loss(it, preempted=True),
        )
        if machines.up_times is not None:
            self.fleet.follow(machines.up_times, notice_ns=machines.notice_ns)
        self._driver_started_ns = self.clock.elapsed_ns()
        self._launch(ev.ControlRequested(self.clock.now(), "resume"))

    @property
    def preemptions(self) -> int:
        """The number of preempted attempts, counted from the records as for a real job."""
        return sum(row.end == "preempted" for row in self.journal.tables.attempts.values())

    def run(self, *, turns_max: int = 1_000_000) -> None:
        """Run until the job ends.

        Raises:
            RuntimeError: The job has not ended, but nothing more is scheduled, or `turns_max` scheduled calls have run.
        """
        for _ in range(turns_max):
            if self.loop.end is not None:
                return
            if not self.clock.run_next():
                raise RuntimeError(
                    f"nothing more is scheduled, but the job has not ended: {self.loop.state.active=}"
                )
        raise RuntimeError(
            f"the job has not ended after {turns_max} scheduled calls; raise turns_max if it needs more"
        )

    def top_up(self, budget: Budget) -> None:
        """Set a higher budget for an ended or paused job, and resume the job with a new driver."""
        self.budget = budget
        with self.journal.transaction() as tx:
            tx.set_limit(budget)
            tx.append(ev.BudgetChanged(self.clock.now(), budget))
        self._launch(ev.ControlRequested(self.clock.now(), "resume"))

    def _launch(self, request: ev.ControlRequested) -> None:
        if self.journal.tables.job[0] != "running":
            with self.journal.transaction() as tx:
                tx.put_job("running", None, at=self.clock.now())
        self.journal.ran_ns += self.clock.elapsed_ns() - self._driver_started_ns
        self._driver_started_ns = self.clock.elapsed_ns()
        self.fleet.end_all()
        self._looks = False
        self.world = SimulatedWorld(self)
        self.loop = Loop(
            self.spec,
            self.loop_config,
            sampler=self.sampler(),
            journal=self.journal,
            world=self.world,
            clock=self.clock,
            placement=self.placement or (self._markets.placement(self.fleet) if self._markets else None),
            machine_check=self._knowledge.check,
            warm_starts=self.warm_starts,
        )
        recover(self.loop, died_at=None, now=self.clock.now())
        self.loop.start(request)
        if self.budget.wall_clock_ns is not None or self.spec.window is not None:
            self._tick(self.loop)

    def _tick(self, loop: Loop) -> None:
        if loop is self.loop and loop.end is None:
            loop.tick()
            self.on_turn()
            self.clock.after(self.heartbeat_ns, lambda: self._tick(loop))

    # Trials that wait for a machine

    def look_later(self) -> None:
        """Schedule a check, after `look_ns`, of whether waiting trials should move to another market.

        Do nothing if there is only one market, no trial waits, or a check is already scheduled.
        """
        several = self._markets is not None and self._markets.are_several
        if several and not self._looks and self.fleet.is_wanted:
            self._looks, loop = True, self.loop
            self.clock.after(self._look_ns, lambda: self._poll(loop))

    def _poll(self, loop: Loop) -> None:
        if loop is not self.loop or loop.end is not None:
            return
        self._looks = False
        for waiting in self.fleet.waiting():
            if loop.relocate(waiting.trial, waiting.attempt):
                self.on_turn()
        self.look_later()

    # Workers

    def _attempt(self, assignment: Assignment, cold: bool) -> SimulatedAttempt:
        attempt = SimulatedAttempt(
            assignment,
            self.training,
            self.overheads,
            self.clock,
            self.receive,
            self.spec.objective.metric,
            self.spec.fidelity.max,
            self._saves(assignment),
            self.overheads.warming_ns if cold else 0,
            self.heartbeat_ns,
            returns_at=self._returns_at(assignment.config) if self._returns_at else None,
        )
        self.world.attempts[assignment.trial] = attempt
        machine = self._knowledge.machine(assignment)
        lease_ns = self.loop.node_assigned(assignment.trial, assignment.attempt, machine)
        attempt.given = replace(assignment, lease_ns=lease_ns)
        return attempt

    def _saves(self, assignment: Assignment) -> Saves | None:
        every = self.overheads.save_every_ns
        if every is None:
            return None
        market = assignment.offer.market if assignment.offer is not None else "on_demand"
        seen = interruption_risk(market, self._losses.at(self.clock.now()), self.spec.resources.nodes)
        return Saves(seen, None if every == "auto" else every, self.clock.elapsed_ns())

    def transit_ns(self) -> int:
        """Draw how long a message takes to arrive, in nanoseconds. If the message is lost, the time includes that of sending it again."""
        ns = MESSAGE_NS
        while self._chance(self.faults.loss):
            self.resent += 1
            ns += RETRY_NS
        return ns

    def receive(self, attempt: SimulatedAttempt, progress: WorkerMessage) -> None:
        """Deliver a worker's message after its transit time, and draw the random faults for this message."""
        loop, now = self.loop, self.clock.elapsed_ns()
        attempt.line_ns = max(attempt.line_ns, now + self.transit_ns())
        self.clock.after(attempt.line_ns - now, lambda: self._arrive(loop, progress))
        if self._chance(self.faults.repeat):
            self.repeated += 1
            late_ns = attempt.line_ns + 2 * MESSAGE_NS
            self.clock.after(late_ns - now, lambda: self._arrive(loop, progress))
        if self._chance(self.faults.clock_jump):
            self.clock_jumps += 1
            self.clock.offset_ns += round(self._rng.uniform(-1, 1) * self.faults.clock_jump_ns)
        if self._chance(self.faults.crash) and not attempt.over:
            self.clock.after(self._rng.randrange(self.heartbeat_ns), lambda: self._crash(attempt))
        if self._chance(self.faults.driver_restart):
            self.clock.after(MESSAGE_NS // 2, lambda: self._restart(loop))
        if attempt.over:
            self.fleet.place()

    def answer(self, progress: WorkerMessage) -> None:
        """Deliver the final message of an attempt that never got a worker.

        The message does not cross the network, so it cannot be lost.
        """
        loop = self.loop
        self.clock.after(MESSAGE_NS, lambda: self._arrive(loop, progress))

    def _arrive(self, loop: Loop, progress: WorkerMessage) -> None:
        if loop is self.loop and loop.end is None:
            loop.progress(progress)
            self.on_turn()

    def _crash(self, attempt: SimulatedAttempt) -> None:
        if not attempt.over:
            self.crashes += 1
            self.fleet.crashed(attempt)
            self._schedule_loss(attempt, preempted=False)

    def _schedule_loss(self, attempt: SimulatedAttempt, *, preempted: bool) -> None:
        loop = self.loop
        self.clock.after(NOTICED_NS, lambda: self._notice_death(loop, attempt.given, preempted=preempted))

    def _notice_death(self, loop: Loop, given: Assignment, *, preempted: bool) -> None:
        if loop is self.loop and loop.end is None:
            why = "the machine was preempted" if preempted else "the worker died"
            loop.lost(given.trial, given.attempt, why, preempted=preempted)
            self.on_turn()

    def _restart(self, loop: Loop) -> None:
        """Kill the driver and its workers, and start a new driver from the records."""
        if loop is not self.loop or loop.end is not None:
            return
        self.restarts += 1
        self._launch(ev.ControlRequested(self.clock.now(), "resume"))
        self.on_turn()

    def _chance(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability
