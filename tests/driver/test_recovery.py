"""Test what a new driver bills for the attempts of a dead one, and what it knows of the job's pace."""

import pytest

from tests.driver.looping import Job
from tests.driver.test_clocks import after
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


@pytest.mark.parametrize("from_step", [0, 1])
def test_training_that_was_not_posted_is_billed_as_lost_only_once(from_step: int) -> None:
    """After a second of setup, ten steps of a second are saved and ten are not. The last post was after 18 seconds, and the driver dies
    after 22.
    """
    job = Job()
    job.loop.progress(WorkerMessage(job.trial, 2, "running", Meter(), from_step=from_step))
    after(job.clock, NS)
    for second in range(1, 21):
        after(job.clock, NS)
        report(job, 2, from_step + second, second, saves=second == 10)
    assert job.loop.leases[job.trial].settled.total_ns == 18 * NS
    after(job.clock, NS)
    job.launch()
    bill, rate = job.journal.tables.bills[job.trial, 2], job.loop.state.rate
    for kind, seconds in (("setup", 1), ("train", 10), ("lost", 11)):
        assert bill[kind].usd.micro_usd == pytest.approx(rate.cost(seconds * NS).usd.micro_usd, abs=1)


def test_new_driver_knows_how_long_a_start_and_a_step_take() -> None:
    """The start of attempt 2 took two seconds. During one of them, the storage failed."""
    job = Job()
    meter = Meter({"setup": 2 * NS, "train": 4 * NS})
    reports = (StepReport(2, job.metrics, True, meter, Instant(1)),)
    job.loop.progress(WorkerMessage(job.trial, 2, "running", meter, reports, outage_ns=NS))
    known = job.loop.pace
    job.launch()
    assert job.loop.pace is not known
    assert (job.loop.pace.step_ns, job.loop.pace.fastest_ns) == (known.step_ns, known.fastest_ns)
    assert job.loop.pace.least_overhead_ns == NS
