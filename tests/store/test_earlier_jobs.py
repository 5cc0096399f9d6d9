"""Test which histories of earlier jobs are kept in memory."""

import pytest

from tests import fakes
from tests.copies import copy_job
from tests.fakes import FakeService
from tuner.database.database import Connection
from tuner.domain.errors import NotFound
from tuner.store import earlier_jobs
from tuner.store.earlier_jobs import HISTORIES_KEPT, Histories

service, client = fakes.fixtures("function")


def read_or_kept(histories: Histories, db: Connection, job: str) -> earlier_jobs.History:
    return histories.kept(db, [job]).get(job) or histories.read(db, job, "default")


def test_kept_history_is_returned_until_the_job_changes(
    service: FakeService, client: fakes.OneLoopClient
) -> None:
    job = fakes.submit(client)
    run = fakes.simulate(service, job, messages=30)
    histories = Histories()

    def read() -> earlier_jobs.History:
        with service.database.read() as db:
            return read_or_kept(histories, db, job)

    first = read()
    assert first.trials
    assert read() is first
    while len(read().attempts) == len(first.attempts):
        run.clock.run_next()
    second = read()
    assert second.attempts != first.attempts
    with service.database.read() as db:
        fresh = Histories().read(db, job, service.project)
        assert (second.trials, second.attempts) == (fresh.trials, fresh.attempts)
        with pytest.raises(NotFound):
            histories.read(db, job, "another-project")


def test_of_several_histories_only_the_kept_and_current_ones_are_returned(
    service: FakeService, client: fakes.OneLoopClient
) -> None:
    first, changing = fakes.submit(client), fakes.submit(client)
    fakes.simulate(service, first)
    run = fakes.simulate(service, changing, messages=30)
    unread = fakes.submit(client)
    histories = Histories()
    with service.database.read() as db:
        kept = histories.read(db, first, "default")
        histories.read(db, changing, "default")
    for _ in range(50):
        run.clock.run_next()
    with service.database.read() as db:
        assert histories.kept(db, [changing, unread, "job_unknown", first]) == {first: kept}


def test_only_the_histories_that_were_read_last_are_kept(
    service: FakeService, client: fakes.OneLoopClient
) -> None:
    job = fakes.submit(client)
    fakes.simulate(service, job, messages=30)
    copy_job(service.database, job, HISTORIES_KEPT, name="copy")
    histories = Histories()
    with service.database.read() as db:
        first = read_or_kept(histories, db, job)
        copies = [read_or_kept(histories, db, f"job_copy{n}") for n in range(1, HISTORIES_KEPT)]
        assert read_or_kept(histories, db, job) is first
        read_or_kept(histories, db, f"job_copy{HISTORIES_KEPT}")
        assert read_or_kept(histories, db, job) is first
        assert read_or_kept(histories, db, "job_copy1") is not copies[0]
        assert read_or_kept(histories, db, "job_copy3") is copies[2]
