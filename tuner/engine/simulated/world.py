"""Simulated workers under the real loop, with faults drawn from one seed."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tuner.domain import events as ev
from tuner.domain.budget import Budget
from tuner.domain.job import JobSpec
from tuner.engine.loop import Loop, Terms
from tuner.engine.messages import Progress
from tuner.engine.recovery import recover
from tuner.engine.simulated.clock import SimulatedClock
from tuner.engine.simulated.journal import MemoryJournal
from tuner.engine.simulated.worker import Overheads, SimulatedAttempt, Training
from tuner.engine.world import Assignment
from tuner.tuning.samplers import Sampler, sampler_for

MESSAGE_NS = 2_000_000


@dataclass(frozen=True, slots=True)
class Faults:
    """Chances, each per message of a worker; `clock_jump_ns` is the largest jump of the wall clock, either way."""

    crash: float = 0.0
    repeat: float = 0.0
    driver_restart: float = 0.0
    clock_jump: float = 0.0
    clock_jump_ns: int = 86_400_000_000_000


NONE = Faults()
NORMAL = Overheads()


class SimulatedWorld:
    """Fulfils `World`. Messages take time both ways; a crashed worker is noticed two seconds later."""

    def __init__(self, run: "SimulatedRun") -> None:
        self._run = run
        self.attempts: dict[str, SimulatedAttempt] = {}
        self.cold = run.terms.concurrency

    def begin(self, assignment: Assignment) -> None:
        run = self._run
        attempt = SimulatedAttempt(
            assignment,
            run.training,
            run.overheads,
            run.clock,
            run.hear,
            run.spec.objective.metric,
            run.spec.fidelity.max,
            run.overheads.warming_ns if self.cold else 0,
        )
        self.cold = max(0, self.cold - 1)
        self.attempts[assignment.trial] = attempt
        attempt.start()

    def go(self, trial: str, until: int | None, lease_ns: int) -> None:
        self._send(trial, lambda attempt: attempt.go(until, lease_ns))

    def park(self, trial: str) -> None:
        self._send(trial, lambda attempt: attempt.park())

    def finish(self, trial: str) -> None:
        self._send(trial, lambda attempt: attempt.finish())

    def stop(self, trial: str) -> None:
        self._send(trial, lambda attempt: attempt.stop())

    def _send(self, trial: str, order: Callable[[SimulatedAttempt], None]) -> None:
        attempt = self.attempts[trial]
        self._run.clock.after(MESSAGE_NS, lambda: None if attempt.over else order(attempt))


class SimulatedRun:
    """One job from its start to its end, through any number of drivers."""

    def __init__(
        self,
        spec: JobSpec,
        terms: Terms,
        training: Training,
        *,
        overheads: Overheads = NORMAL,
        faults: Faults = NONE,
        seed: int = 0,
        sampler: Callable[[], Sampler] | None = None,
    ) -> None:
        self.sampler = sampler or (lambda: sampler_for(spec))
        self.spec, self.terms, self.training, self.overheads = spec, terms, training, overheads
        self.faults, self._rng = faults, Random(f"faults/{seed}")
        self.clock = SimulatedClock()
        self.journal = MemoryJournal(terms.job, spec.budget)
        self.budget = spec.budget
        self.on_turn: Callable[[], None] = lambda: None
        self.restarts = self.crashes = 0
        self._driver_started_ns = 0
        self._launch(ev.Asked(self.clock.now(), "resume"))

    def run(self, *, turns_max: int = 1_000_000) -> None:
        """To the job's end. Raises RuntimeError where it comes to a halt before."""
        for _ in range(turns_max):
            if self.loop.end is not None:
                return
            if not self.clock.run_next():
                raise RuntimeError(f"the job came to a halt: {self.loop.state.active=}")
        raise RuntimeError(f"the job did not end in {turns_max} turns")

    def top_up(self, budget: Budget) -> None:
        """Raises the budget of a job that ended or is paused, and goes on with it."""
        self.budget = budget
        with self.journal.transaction() as tx:
            tx.set_limit(budget)
            tx.append(ev.BudgetChanged(self.clock.now(), budget))
        self._launch(ev.Asked(self.clock.now(), "resume"))

    def _launch(self, asked: ev.Asked) -> None:
        if self.journal.tables.job[0] != "running":
            with self.journal.transaction() as tx:
                tx.put_job("running", None, at=self.clock.now())
        self._driver_started_ns = self.clock.elapsed_ns()
        self.world = SimulatedWorld(self)
        self.loop = Loop(
            self.spec,
            self.terms,
            sampler=self.sampler(),
            journal=self.journal,
            world=self.world,
            clock=self.clock,
        )
        recover(self.loop, died_at=None, now=self.clock.now())
        self.loop.start(asked)
        self._tick(self.loop)

    def _tick(self, loop: Loop) -> None:
        if loop is self.loop and loop.end is None:
            loop.tick()
            self.on_turn()
            self.clock.after(1_000_000_000, lambda: self._tick(loop))

    def hear(self, progress: Progress) -> None:
        """A worker said something: it arrives a little later, perhaps twice; perhaps somebody dies of it."""
        world, loop = self.world, self.loop
        for delay in (1, 3) if self._chance(self.faults.repeat) else (1,):
            self.clock.after(delay * MESSAGE_NS, lambda: self._arrive(loop, progress))
        if self._chance(self.faults.clock_jump):
            self.clock.offset_ns += round(self._rng.uniform(-1, 1) * self.faults.clock_jump_ns)
        if self._chance(self.faults.crash) and not world.attempts[progress.trial].over:
            self._crash(world, loop, progress)
        if self._chance(self.faults.driver_restart):
            self.clock.after(MESSAGE_NS // 2, lambda: self._restart(loop))

    def _arrive(self, loop: Loop, progress: Progress) -> None:
        if loop is self.loop and loop.end is None:
            loop.progress(progress)
            self.on_turn()

    def _crash(self, world: SimulatedWorld, loop: Loop, progress: Progress) -> None:
        self.crashes += 1
        world.attempts[progress.trial].vanish()
        world.cold += 1
        self.clock.after(2_000_000_000, lambda: self._notice(loop, progress))

    def _notice(self, loop: Loop, progress: Progress) -> None:
        if loop is self.loop and loop.end is None:
            loop.lost(progress.trial, progress.attempt, "the worker died")
            self.on_turn()

    def _restart(self, loop: Loop) -> None:
        """The driver is killed; its workers die with it; another one begins from the record."""
        if loop is not self.loop or loop.end is not None:
            return
        self.restarts += 1
        self.journal.ran_ns += self.clock.elapsed_ns() - self._driver_started_ns
        for attempt in self.world.attempts.values():
            attempt.over = True
        self._launch(ev.Asked(self.clock.now(), "resume"))
        self.on_turn()

    def _chance(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability
