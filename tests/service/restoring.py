"""A service whose database is lost and restored, on SQLite and on PostgreSQL."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from starlette.testclient import TestClient

from tests import books, fakes
from tests.fakes import FakeService
from tuner.database.database import Database
from tuner.ledger import shared_budgets
from tuner.service.backup import BackedUp, Restored, backup, restore

ANSWERS = ("", "/bill", "/best", "/pareto", "/report", "/ledger", "/trials?limit=500", "/curves")


@contextmanager
def on_postgresql(home: Path, url: str) -> Iterator[FakeService]:
    """A service on the migrated database at `url`."""
    made = fakes.service_in(home)
    made.database.dispose()
    database = Database(url)
    yield replace(made, settings=replace(made.settings, database_url=url), database=database)
    database.dispose()


@contextmanager
def on_sqlite(home: Path) -> Iterator[FakeService]:
    made = fakes.service_in(home)
    yield made
    made.database.dispose()


def back_up(service: FakeService, file: Path) -> BackedUp:
    return backup(service.settings, file, now=service.now)


def put_back(service: FakeService, file: Path, *, replace: bool = True) -> Restored:
    return restore(service.settings, file, replace=replace, now=service.now)


def answers(client: TestClient, job: str) -> dict[str, bytes]:
    """Return the body of each of the job's answers, by path.

    The link to the launch's page in Ray's dashboard is removed, because a restore begins another launch.
    """
    responses = {path: client.get(f"/v1/jobs/{job}{path}") for path in ANSWERS}
    assert all(answer.status_code == 200 for answer in responses.values())
    link = re.compile(rb'"ray_dashboard":"[^"]*"')
    return {path: link.sub(b"", answer.content) for path, answer in responses.items()}


def check_books(service: FakeService) -> None:
    with service.database.write() as db:
        assert books.faults(db) == []
        shared_budgets.lock_exclusive(db)
        assert books.shared_faults(db, service.project, service.now()) == []
