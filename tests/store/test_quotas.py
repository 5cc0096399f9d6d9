"""Test what counts towards a project's quota: only its own jobs at work."""

from tests.store.builders import PROJECT, create, new_job
from tuner.database.database import Database
from tuner.domain.budget import UNLIMITED, Quota
from tuner.domain.time import NS, Instant
from tuner.service.cluster_room import is_full
from tuner.store import jobs, launches, queue

AT = Instant(5)
OTHER = "other"


def job(number: int) -> str:
    return f"job_{number:016}"


def test_quota_of_a_project_is_replaced(database: Database) -> None:
    with database.write() as db:
        queue.put(db, PROJECT, Quota(1, 2), AT)
        queue.put(db, PROJECT, Quota(3, None), AT)
        queue.put(db, OTHER, Quota(None, 4), AT)
        assert (queue.get(db, PROJECT), queue.get(db, OTHER)) == (Quota(3, None), Quota(None, 4))
        assert queue.of_projects(db, [OTHER, "nobody"]) == {OTHER: Quota(None, 4)}
        queue.put(db, PROJECT, UNLIMITED, AT)
        assert queue.get(db, PROJECT) == UNLIMITED
        assert list(queue.of_projects(db)) == [OTHER]


def test_jobs_with_a_driver_or_a_lost_driver_count_as_running(
    database: Database,
) -> None:
    """Four jobs of one project: one waits, one has a driver, one lost its driver while running, and one has
    ended. A job of another project has a driver.
    """
    for number in range(5):
        create(database, new_job(job(number), project=OTHER if number == 4 else PROJECT))
    with database.write() as db:
        for number in (1, 4):
            assert launches.submitted(db, job(number), 1, AT)
        for number in (2, 3):
            jobs.begin_running(db, job(number), at=AT)
        jobs.move(db, job(3), "cancelled", "cancelled", at=AT)
        launches.end(db, job(3), 1)
        assert len(queue.at_work(db, PROJECT)) == 2
        assert len(queue.at_work(db, OTHER)) == 1
        assert queue.at_work(db, "nobody") == []


def test_changed_concurrency_of_unfinished_jobs_is_read(database: Database) -> None:
    """One of three jobs has ended, and the concurrency of another was changed."""
    for number in range(3):
        create(database, new_job(job(number)))
    with database.write() as db:
        jobs.move(db, job(2), "cancelled", "cancelled", at=AT)
        launches.end(db, job(2), 1)
        before = queue.concurrency_of_unfinished(db)
        assert set(before) == {job(0), job(1)}
        jobs.set_concurrency(db, job(1), 7, 9)
        assert queue.concurrency_of_unfinished(db) == {job(0): before[job(0)], job(1): 7}


def test_jobs_of_another_project_do_not_use_the_quota(database: Database) -> None:
    for number, project in enumerate((PROJECT, OTHER, PROJECT)):
        create(database, new_job(job(number), project=project))
    with database.read() as db:
        mine, others, new = (jobs.get(db, job(number)) for number in range(3))
    assert is_full(Quota(1), [mine], new)
    assert not is_full(Quota(1), [others], new)
    assert not is_full(None, [mine], new)


def test_places_in_the_queue_are_read_once_per_period_and_after_a_change(database: Database) -> None:
    for number in range(2):
        create(database, new_job(job(number)))
    places, now = queue.QueuePlaces(), Instant(100 * NS)
    with database.write() as db:
        assert places.of(db, {job(0): AT}, now) == {job(0): 1, job(1): 2}
        jobs.set_priority(db, job(1), 5)
        assert places.of(db, {job(0): AT}, now)[job(0)] == 1
        places.forget()
        assert places.of(db, {job(0): AT}, now)[job(0)] == 2
