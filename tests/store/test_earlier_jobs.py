"""Test which histories of earlier jobs are kept in memory."""

import pytest

from tests import fakes
from tests.copies import copy_job
from tests.fakes import FakeService
from tuner.domain.errors import NotFound
from tuner.store import earlier_jobs
from tuner.store.earlier_jobs import HISTORIES_KEPT, Histories

service, client = fakes.fixtures("function")


def test_kept_history_is_returned_until_the_job_changes(
    service: FakeService, client: fakes.OneLoopClient
) -> None:
    job = fakes.submit(client)
    run = fakes.simulate(service, job, messages=30)
    histories = Histories()

    def read() -> earlier_jobs.History:
        with service.database.read() as db:
            return histories.read(db, job, service.project)

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


def test_only_the_histories_that_were_read_last_are_kept(
    service: FakeService, client: fakes.OneLoopClient
) -> None:
    job = fakes.submit(client)
    fakes.simulate(service, job, messages=30)
    copy_job(service.database, job, HISTORIES_KEPT, name="copy")
    histories = Histories()
    with service.database.read() as db:
        first = histories.read(db, job, service.project)
        copies = [histories.read(db, f"job_copy{n}", service.project) for n in range(1, HISTORIES_KEPT)]
        assert histories.read(db, job, service.project) is first
        histories.read(db, f"job_copy{HISTORIES_KEPT}", service.project)
        assert histories.read(db, job, service.project) is first
        assert histories.read(db, "job_copy1", service.project) is not copies[0]
        assert histories.read(db, "job_copy3", service.project) is copies[2]
