"""A filled database is upgraded by a newer version and downgraded again, and keeps everything that each schema can hold."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, make_url

from tests import books, fakes
from tests.postgres import SharedServer
from tests.upgrades import made_up
from tests.upgrades.filled import fill
from tests.upgrades.schemas import Schema, described
from tuner.database.database import Database, newest_revision, older_revisions

ROOT = Path(__file__).parents[2]
Rows = list[dict[str, Any]]


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))]
)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a filled database to copy. Nothing is connected to it."""
    home = tmp_path_factory.mktemp("filled")
    if request.param == "sqlite":
        fakes.database_in(home).dispose()
        url = f"sqlite:///{home}/tuner.db"
    else:
        url = request.getfixturevalue("postgres_module_url")
    fill(url, home)
    return url


@pytest.fixture
def database(filled: str, postgres_server: SharedServer, tmp_path: Path) -> Iterator[Database]:
    """A copy of the filled database."""
    name = str(make_url(filled).database)
    if filled.startswith("sqlite"):
        copied_database = fakes.database_in(tmp_path)
        shutil.copyfile(name, tmp_path / "tuner.db")
        yield copied_database
        copied_database.dispose()
        return
    with postgres_server.database(copy_of=name) as url:
        copied_database = Database(url)
        yield copied_database
        copied_database.dispose()


def rows(database: Database) -> dict[str, Rows]:
    """The rows of each table, in the order of their primary keys."""
    with database.read() as db:
        keys = inspect(db).get_multi_pk_constraint()
        return {
            table: [dict(row) for row in db.exec_driver_sql(select(table, key)).mappings()]
            for (_, table), key in keys.items()
            if table != "alembic_version"
        }


def select(table: str, key: Any) -> str:
    return f"SELECT * FROM {table} ORDER BY {', '.join(key['constrained_columns'])}"


def schema(database: Database) -> Schema:
    with database.read() as db:
        return described(db)


@pytest.fixture
def newer(database: Database, tmp_path: Path) -> Iterator[Database]:
    """The database after a newer version has migrated it. This process is that version."""
    with made_up.known(tmp_path / "newer"):
        database.migrate()
        yield database


def test_every_table_is_filled(database: Database) -> None:
    empty = [table for table, filled in rows(database).items() if not filled]
    assert empty == [], "fill these tables in tests/upgrades/filled.py"


def test_rows_survive_upgrade_and_downgrade(database: Database, tmp_path: Path) -> None:
    before, defined, revision = rows(database), schema(database), newest_revision()
    with made_up.known(tmp_path / "newer"):
        for _ in range(2):
            database.migrate()
            assert database.revision() == made_up.REVISION
            assert cut(rows(database), before) == before
            database.downgrade(revision)
            assert rows(database) == before
            assert schema(database) == defined


@pytest.mark.extended
def test_service_answers_and_runs_jobs_as_before_after_upgrade_and_downgrade(
    newer: Database, tmp_path: Path
) -> None:
    made = fakes.service_in(tmp_path / "other")
    made.database.dispose()
    service = replace(made, database=newer)
    client = fakes.client_of(service)
    jobs = [job["id"] for job in client.get("/v1/jobs?limit=100").json()["items"]]
    paths = [f"/v1/jobs/{job}{path}" for job in jobs for path in ("/bill", "/best", "/pareto", "/ledger")]
    before = {path: client.get(path).content for path in paths}
    newer.downgrade(older_revisions(made_up.REVISION)[0])
    with newer.read() as db:
        assert books.faults(db) == []
    job = fakes.submit(client, budget={"usd": 0.001})
    fakes.simulate(service, job)
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "succeeded"
    after = {path: client.get(path).content for path in paths}
    assert [path for path in paths if after[path] != before[path]] == []


def cut(full: dict[str, Rows], to: dict[str, Rows]) -> dict[str, Rows]:
    """Reduce `full` to the tables and columns of `to`."""
    return {
        name: [{column: row[column] for column in kept[0] if column in row} for row in full[name]]
        if kept
        else []
        for name, kept in to.items()
        if name in full
    }


def test_docs_list_every_downgrade() -> None:
    listed = re.findall(r"^\| `(\d{4})` \|", (ROOT / "docs/upgrading.md").read_text(), re.MULTILINE)
    assert listed == [newest_revision(), *older_revisions(newest_revision())], (
        "add the revision to the table in docs/upgrading.md, newest first"
    )
