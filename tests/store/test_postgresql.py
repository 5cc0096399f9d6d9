"""What production's database does as SQLite does: the schema, jobs and their fronts."""

from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import given, settings

from tests import postgres
from tests.store import test_front as fronts
from tuner.domain.money import Money
from tuner.domain.objective import Mode
from tuner.store import best
from tuner.store.best import Limits
from tuner.store.database import Database
from tuner.store.tables import metadata

pytestmark = pytest.mark.skipif(postgres.programs() is None, reason="this machine has no PostgreSQL")


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    pytest.importorskip("psycopg")
    with postgres.server() as url:
        found = Database(url)
        found.migrate()
        yield found
        found.dispose()


def test_alembic_finds_nothing_to_change_in_the_migrated_schema(database: Database) -> None:
    with database.read() as db:
        context = MigrationContext.configure(db, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_migrating_again_changes_nothing(database: Database) -> None:
    database.migrate()


@settings(deadline=None, max_examples=25, derandomize=True)
@given(found=fronts.REPORTS, mode=fronts.MODES)
def test_every_answer_is_that_of_a_search_through_all_reports(
    database: Database, found: list[fronts.Given], mode: Mode
) -> None:
    fronts.check_answers(database, found, mode)


@settings(deadline=None, max_examples=15, derandomize=True)
@given(found=fronts.REPORTS, mode=fronts.MODES)
def test_a_front_made_afterwards_is_the_one_that_reports_made_one_by_one(
    database: Database, found: list[fronts.Given], mode: Mode
) -> None:
    fronts.check_made_afterwards(database, found, mode)


def test_limits_are_answered_from_the_front(database: Database) -> None:
    job = fronts.job_with(
        database, "max", [fronts.Given(n % 5, n // 5 + 1, n / 10, n, n, n) for n in range(20)]
    )
    with database.read() as db:
        found = best.best(db, job, Limits(Money(7), 9, 11))
    assert found is not None
    assert found.value == 0.7
