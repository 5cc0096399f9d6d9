"""Test what a new driver bills for the attempts of a dead one."""

from tests.driver.looping import Job
from tuner.domain.cost import Meter
from tuner.domain.money import FREE
from tuner.domain.time import NS, Instant
from tuner.driver.messages import Saved, StepReport, WorkerMessage


def report(job: Job, attempt: int, step: int, train_s: int, *, saves: bool = False) -> None:
    """Report a step, after `train_s` seconds of training in this attempt."""
    meter = Meter({"setup": NS, "train": train_s * NS})
    saved = (Saved(step, f"memory://{step}", 1, 0.1),) if saves else ()
    reports = (StepReport(step, job.metrics, True, meter, Instant(1)),)
    job.loop.progress(WorkerMessage(job.trial, attempt, "running", meter, reports, saved))


def test_no_negative_amount_is_billed_after_a_repetition_cheaper_than_the_first_attempt() -> None:
    """Step 2 took 30 seconds and was not saved. It is repeated in one second and saved, and then the driver dies again."""
    job = Job()
    report(job, 2, 2, 30)
    job.launch()
    report(job, 3, 2, 1, saves=True)
    report(job, 3, 3, 2)
    job.launch()
    assert all(FREE.fits(cost) for cost in job.journal.tables.bills[job.trial, 3].values())
