"""Test a storage outage of several minutes: the worker waits and reports it, and the driver does not take it
for a hang.
"""

from tests.driver.looping import Job


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
