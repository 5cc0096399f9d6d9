"""A storage that fails for minutes: its worker waits and says so, and its driver does not take that for hanging."""

from dataclasses import dataclass, field

from tests.simulation.test_simulated_jobs import spec, terms
from tuner.domain import events as ev
from tuner.domain.cost import CostKind, Meter
from tuner.domain.time import NS, Instant
from tuner.engine.loop import Loop
from tuner.engine.messages import Progress, StepReport
from tuner.engine.recovery import recover
from tuner.engine.simulated.clock import SimulatedClock
from tuner.engine.simulated.journal import MemoryJournal
from tuner.engine.world import Assignment
from tuner.tuning.samplers import sampler_for


@dataclass
class World:
    """Writes down what is ordered."""

    begun: dict[str, Assignment] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)

    def begin(self, assignment: Assignment) -> None:
        self.begun[assignment.trial] = assignment

    def go(self, trial: str, until: int | None, lease_ns: int) -> None:
        pass

    def park(self, trial: str) -> None:
        pass

    def finish(self, trial: str) -> None:
        pass

    def stop(self, trial: str) -> None:
        self.stopped.append(trial)


class Job:
    """One trial, which has done a step after a second of setup and was lost then: its next attempt restores."""

    trial = "trial_00000"

    def __init__(self) -> None:
        self.world, clock = World(), SimulatedClock()
        job, its = spec("1", scheduler="none"), terms(1)
        journal = MemoryJournal(its.job, job.budget)
        self.loop = Loop(job, its, sampler=sampler_for(job), journal=journal, world=self.world, clock=clock)
        recover(self.loop, died_at=None, now=clock.now())
        self.loop.start(ev.Asked(clock.now(), "resume"))
        meter = Meter({"setup": NS, "train": NS})
        report = StepReport(1, {"acc": 0.5}, True, meter, Instant(1))
        self.loop.progress(Progress(self.trial, 1, "running", meter, (report,)))
        self.loop.progress(Progress(self.trial, 1, "preempted", meter, saved_step=1))

    def tells(self, kind: CostKind, seconds: range, *, outage: range | None = None) -> None:
        """Every second, of how long its attempt has been at it, and how much of that was an outage."""
        for each, second in enumerate(seconds):
            outage_ns = (outage[min(each, len(outage) - 1)] if outage else 0) * NS
            meter = Meter({kind: second * NS})
            self.loop.progress(Progress(self.trial, 2, "running", meter, outage_ns=outage_ns))


def test_a_worker_that_waits_for_its_storage_does_not_hang() -> None:
    job = Job()
    assert job.world.begun[job.trial].attempt == 2
    job.tells("restore", range(300), outage=range(300))
    job.tells("restore", range(300, 400), outage=range(299, 300))
    assert not job.world.stopped


def test_it_hangs_when_it_is_silent_for_long_after_the_outage() -> None:
    job = Job()
    job.tells("restore", range(300), outage=range(300))
    job.tells("restore", range(300, 430), outage=range(299, 300))
    assert job.world.stopped == [job.trial]


def test_without_an_outage_two_minutes_of_restoring_are_too_long() -> None:
    job = Job()
    job.tells("restore", range(130))
    assert job.world.stopped == [job.trial]
