"""A filled database is downgraded step by step and upgraded again, and keeps everything that each schema can hold."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from sqlalchemy import inspect, make_url

from tests import fakes
from tests.postgres import SharedServer
from tests.upgrades.filled import fill
from tuner.database import database as store
from tuner.database.database import Database, newest_revision
from tuner.ledger import ledger

ROOT = Path(__file__).parents[2]
#: Every table must have rows from this revision on. It is the schema of the first database outside of development.
FILLED_UPTO = "0022"
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
        found = fakes.database_in(tmp_path)
        shutil.copyfile(name, tmp_path / "tuner.db")
        yield found
        found.dispose()
        return
    with postgres_server.database(copy_of=name) as url:
        found = Database(url)
        yield found
        found.dispose()


def revisions() -> list[Script]:
    """All revisions, newest first."""
    return list(ScriptDirectory(str(store.MIGRATIONS)).walk_revisions())


def upgrade(database: Database, to: str) -> None:
    with database.write() as db:
        config = Config()
        config.set_main_option("script_location", str(store.MIGRATIONS))
        config.attributes["connection"] = db
        command.upgrade(config, to)


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


def schema(database: Database) -> list[dict[Any, Any]]:
    """Columns, checks, indexes, foreign keys and primary keys, each by table."""
    with database.read() as db:
        found = inspect(db)
        parts: list[tuple[Any, tuple[str, ...]]] = [
            (found.get_multi_columns(), ("name", "type", "nullable")),
            (found.get_multi_check_constraints(), ("name", "sqltext")),
            (found.get_multi_indexes(), ("name", "column_names")),
            (found.get_multi_foreign_keys(), ("constrained_columns", "referred_table")),
        ]
        keys = found.get_multi_pk_constraint()
    by_table = [
        {table: sorted(str([one[name] for name in names]) for one in part[table]) for table in keys}
        for part, names in parts
    ]
    return [*by_table, {table: key["constrained_columns"] for table, key in keys.items()}]


def cut(full: dict[str, Rows], to: dict[str, Rows]) -> dict[str, Rows]:
    """Reduce `full` to the tables and columns of `to`."""
    return {
        name: [{column: row[column] for column in kept[0] if column in row} for row in full[name]]
        if kept
        else []
        for name, kept in to.items()
        if name in full
    }


@pytest.mark.parametrize(
    "filled",
    ["sqlite", pytest.param("postgresql", marks=[pytest.mark.needs("postgresql"), pytest.mark.extended])],
    indirect=True,
)
def test_rows_that_a_schema_can_hold_survive_downgrade_and_upgrade(database: Database) -> None:
    full, schemas = rows(database), {}
    assert database.revision() == newest_revision()
    for script in revisions():
        schemas[script.revision] = schema(database)
        kept = rows(database)
        if script.revision == FILLED_UPTO:
            empty = [name for name, found in kept.items() if not found]
            assert empty == [], "fill these tables in tests/upgrades/filled.py"
        assert kept == cut(full, kept), script.revision
        if script.down_revision is not None:
            database.downgrade(str(script.down_revision))
    least = rows(database)
    assert {"jobs", "entries", "reports", "holds", "events", "launches"} <= least.keys()
    for script in revisions()[::-1]:
        upgrade(database, script.revision)
        assert cut(rows(database), least) == least, script.revision
        assert schema(database) == schemas[script.revision]


@pytest.mark.extended
def test_service_answers_and_runs_jobs_as_before_after_downgrade_and_upgrade(
    database: Database, tmp_path: Path
) -> None:
    made = fakes.service_in(tmp_path / "other")
    made.database.dispose()
    service = replace(made, database=database)
    client = fakes.client_of(service)
    jobs = [job["id"] for job in client.get("/v1/jobs?limit=100").json()["items"]]
    paths = [f"/v1/jobs/{job}{path}" for job in jobs for path in ("/bill", "/best", "/pareto", "/ledger")]
    before = {path: client.get(path).content for path in paths}
    for to in (str(revisions()[0].down_revision), "0001"):
        database.downgrade(to)
        database.migrate()
        with database.read() as db:
            assert ledger.violations(db) == []
        job = fakes.submit(client, budget={"usd": 0.001})
        fakes.simulate(service, job)
        assert client.get(f"/v1/jobs/{job}").json()["state"] == "succeeded"
        after = {path: client.get(path).content for path in paths}
        assert [path for path in paths if after[path] != before[path]] == []


def test_downgrade_to_base_drops_everything_and_upgrade_restores_the_schema(database: Database) -> None:
    before = schema(database)
    database.downgrade("base")
    assert rows(database) == {}
    database.migrate()
    assert schema(database) == before


def test_docs_list_every_downgrade() -> None:
    listed = re.findall(r"^\| `(\d{4})` \|", (ROOT / "docs/upgrading.md").read_text(), re.MULTILINE)
    assert listed == [script.revision for script in revisions()], (
        "add the revision to the table in docs/upgrading.md, newest first"
    )
