"""The schema taken down step by step, and up again, with a filled database: what a schema can hold it holds unchanged."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from sqlalchemy import MetaData, inspect, select

from tests import fakes, postgres
from tests.upgrades.filled import fill
from tuner.store import database as store
from tuner.store import ledger
from tuner.store.database import Database, newest_revision

ROOT = Path(__file__).parents[2]
# What there was when this began to be held: the schema of the first database that anybody else had.
FILLED_UPTO = "0022"
Rows = list[dict[str, Any]]
with_postgresql = pytest.mark.skipif(postgres.programs() is None, reason="this machine has no PostgreSQL")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=with_postgresql)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        found = fakes.database_in(tmp_path / "home")
        fill(found.url.render_as_string(hide_password=False), tmp_path / "home")
        yield found
        found.dispose()
        return
    with postgres.server() as url:
        found = Database(url)
        found.migrate()
        fill(url, tmp_path / "home")
        yield found
        found.dispose()


def steps() -> list[Script]:
    """Newest first."""
    return list(ScriptDirectory(str(store.MIGRATIONS)).walk_revisions())


def step_up(database: Database, to: str) -> None:
    """One step up."""
    with database.write() as db:
        config = Config()
        config.set_main_option("script_location", str(store.MIGRATIONS))
        config.attributes["connection"] = db
        command.upgrade(config, to)


def rows(database: Database) -> dict[str, Rows]:
    """Of each table, by its own word of what it has, in the order of their keys."""
    known = MetaData()
    with database.read() as db:
        known.reflect(db)
        return {
            name: [dict(row) for row in db.execute(select(table).order_by(*table.primary_key)).mappings()]
            for name, table in known.tables.items()
            if name != "alembic_version"
        }


def constraints(database: Database) -> dict[str, Any]:
    with database.read() as db:
        found = inspect(db)
        return {
            table: (
                sorted((one["name"], str(one["type"]), one["nullable"]) for one in found.get_columns(table)),
                sorted(str((one["name"], one["sqltext"])) for one in found.get_check_constraints(table)),
                sorted(str((one["name"], one["column_names"])) for one in found.get_indexes(table)),
                sorted(
                    str((one["constrained_columns"], one["referred_table"]))
                    for one in found.get_foreign_keys(table)
                ),
                found.get_pk_constraint(table)["constrained_columns"],
            )
            for table in found.get_table_names()
        }


def cut(full: dict[str, Rows], to: dict[str, Rows]) -> dict[str, Rows]:
    """What of `full` the tables and columns of the other can hold."""
    return {
        name: [{column: row[column] for column in kept[0] if column in row} for row in full[name]]
        if kept
        else []
        for name, kept in to.items()
        if name in full
    }


def test_what_a_schema_can_hold_stays_as_it_is_on_the_way_down_and_up(database: Database) -> None:
    full, schemas = rows(database), {}
    assert database.revision() == newest_revision()
    for script in steps():
        schemas[script.revision] = constraints(database)
        there = rows(database)
        if script.revision == FILLED_UPTO:
            assert [name for name, found in there.items() if not found] == [], (
                "fill them: tests/upgrades/filled.py"
            )
        assert there == cut(full, there), script.revision
        if script.down_revision is not None:
            database.downgrade(str(script.down_revision))
    least = rows(database)
    assert {"jobs", "entries", "reports", "holds", "events", "launches"} <= least.keys()
    for script in steps()[::-1]:
        step_up(database, script.revision)
        there = rows(database)
        assert cut(there, least) == least, script.revision
        assert constraints(database) == schemas[script.revision]


def test_the_schema_before_and_the_newest_again_answer_as_before(database: Database, tmp_path: Path) -> None:
    """And what people and drivers do is taken as before."""
    made = fakes.service_in(tmp_path / "other")
    made.database.dispose()
    service = replace(made, database=database)
    client = fakes.client_of(service)
    jobs = [one["id"] for one in client.get("/v1/jobs?limit=100").json()["items"]]
    paths = [f"/v1/jobs/{job}{path}" for job in jobs for path in ("/bill", "/best", "/pareto", "/ledger")]
    before = {path: client.get(path).content for path in paths}
    for to in (str(steps()[0].down_revision), "0001"):
        database.downgrade(to)
        database.migrate()
        with database.read() as db:
            assert ledger.violations(db) == []
        job = fakes.submit(client)
        fakes.simulate(service, job)
        assert client.get(f"/v1/jobs/{job}").json()["state"] == "succeeded"
        after = {path: client.get(path).content for path in paths}
        assert [path for path in paths if after[path] != before[path]] == []


def test_the_first_step_down_leaves_nothing_and_the_way_up_leads_to_the_same(database: Database) -> None:
    meant = constraints(database)
    database.downgrade("base")
    assert rows(database) == {}
    database.migrate()
    assert constraints(database) == meant


def test_the_docs_tell_what_each_step_down_drops() -> None:
    told = re.findall(r"^\| `(\d{4})` \|", (ROOT / "docs/upgrading.md").read_text(), re.MULTILINE)
    assert told == [one.revision for one in steps()], (
        "tell it in the table of docs/upgrading.md, newest first"
    )
