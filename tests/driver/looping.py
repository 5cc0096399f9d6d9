"""The real loop of a job with one trial. The test acts as its worker and chooses the messages."""

from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.test_simulated_jobs import loop_config, spec
from tuner.domain import events as ev
from tuner.domain.cost import CostKind, Meter
from tuner.domain.objective import Constraint, Objective
from tuner.domain.time import NS, Instant
from tuner.driver.loop import Loop
from tuner.driver.messages import Saved, StepReport, WorkerMessage
from tuner.driver.ports import Assignment
from tuner.driver.recovery import recover
from tuner.simulator.journal import MemoryJournal
from tuner.simulator.worker import SimulatedClock
from tuner.tuning.samplers import sampler_for
from tuner.worker.orders import ActorMessage, WorkerState


def actor_message(trial: str, attempt: int, state: WorkerState, **more: Any) -> ActorMessage:
    """Return a message of a worker's actor about an attempt that has reported nothing."""
    message: ActorMessage = {
        "trial": trial,
        "attempt": attempt,
        "state": state,
        "reports": [],
        "checkpoints": [],
        "meter": {},
        "need_ns": 0,
        "saved_step": None,
        "part": None,
        "carried_ns": 0,
        "warming_ns": 0,
        "leaving": False,
        "from_step": None,
        "outage_ns": 0,
        "rank_ends": [],
        "usage": None,
        "environment": None,
        "error": None,
        "node": "",
        "machine": {},
        "others": [],
        "retires": False,
    }
    return {**message, **more}  # type: ignore[typeddict-item]


@dataclass
class World:
    """Record what the loop orders."""

    begun: dict[str, Assignment] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    keeps_best: list[bool] = field(default_factory=list)  # of each stop
    workers: int = 1

    def room(self) -> int:
        return self.workers

    def begin(self, assignment: Assignment) -> None:
        self.begun[assignment.trial] = assignment

    def continue_to(self, trial: str, target_step: int | None, lease_ns: int, job_best: float | None) -> None:
        pass

    def pause(self, trial: str) -> None:
        pass

    def finish(self, trial: str) -> None:
        pass

    def stop(self, trial: str, *, keep_best: bool) -> None:
        self.stopped.append(trial)
        self.keeps_best.append(keep_best)


class Job:
    """A job of one trial, whose first attempt did a step, saved it, and was preempted."""

    trial = "trial_00000"
    concurrency = 1

    def __init__(self, *constraints: Constraint, second: Objective | None = None, **metrics: float) -> None:
        self.metrics = {"acc": 0.5, **metrics}
        self.world, self.clock = World(), SimulatedClock()
        self.spec = replace(spec("1", scheduler="none"), constraints=constraints, second=second)
        self.journal = MemoryJournal(loop_config(self.concurrency).job, self.spec.budget)
        self.launch()
        self.trains(1, 1)

    def launch(self) -> None:
        """Start a driver. The previous one, if any, is dead."""
        sampler = sampler_for(self.spec)
        self.loop = Loop(
            self.spec,
            loop_config(self.concurrency),
            sampler=sampler,
            journal=self.journal,
            world=self.world,
            clock=self.clock,
        )
        recover(self.loop, died_at=None, now=self.clock.now())
        self.loop.start(ev.ControlRequested(self.clock.now(), "resume"))

    def trains(self, attempt: int, *steps: int) -> None:
        """Train up to each of these steps and save it. Then preempt the attempt."""
        for number, step in enumerate(steps, start=1):
            meter = Meter({"setup": NS, "train": number * NS})
            report = StepReport(step, self.metrics, True, meter, Instant(1))
            saved = Saved(step, f"memory://{step}", 1, 0.1)
            self.loop.progress(WorkerMessage(self.trial, attempt, "running", meter, (report,), (saved,)))
        self.loop.progress(WorkerMessage(self.trial, attempt, "preempted", meter, saved_step=steps[-1]))

    def tells(self, kind: CostKind, seconds: range, *, outage: range | None = None) -> None:
        """Report once per second the time that attempt 2 has spent in `kind`, and how much of it was an outage."""
        for each, second in enumerate(seconds):
            outage_ns = (outage[min(each, len(outage) - 1)] if outage else 0) * NS
            meter = Meter({kind: second * NS})
            self.loop.progress(WorkerMessage(self.trial, 2, "running", meter, outage_ns=outage_ns))
