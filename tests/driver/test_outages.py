"""Test a storage outage of several minutes: the worker waits and reports it, and the driver does not take it
for a hang.
"""

from tests.driver.looping import Job
from tuner.domain.cost import Meter
from tuner.domain.time import NS, Instant
from tuner.driver.messages import StepReport, WorkerMessage


def test_worker_waiting_for_storage_is_not_considered_hung() -> None:
    job = Job()
    assert job.world.begun[job.trial].attempt == 2
    job.tells("restore", range(300), outage=range(300))
    job.tells("restore", range(300, 400), outage=range(299, 300))
    assert not job.world.stopped


def test_worker_silent_long_after_an_outage_is_considered_hung() -> None:
    job = Job()
    job.tells("restore", range(300), outage=range(300))
    job.tells("restore", range(300, 430), outage=range(299, 300))
    assert job.world.stopped == [job.trial]


def test_outage_before_a_report_does_not_extend_the_limit_after_it() -> None:
    job = Job()
    job.tells("restore", range(300), outage=range(300))
    for second in range(130):
        meter = Meter({"restore": 300 * NS, "train": NS, "checkpoint": second * NS})
        reports = () if second else (StepReport(2, job.metrics, True, meter, Instant(1)),)
        job.loop.progress(WorkerMessage(job.trial, 2, "running", meter, reports, outage_ns=299 * NS))
    assert job.world.stopped == [job.trial]


def test_two_minutes_of_restoring_without_outage_count_as_a_hang() -> None:
    job = Job()
    job.tells("restore", range(130))
    assert job.world.stopped == [job.trial]
