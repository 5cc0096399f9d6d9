"""Test that migrations create the schema that the code defines, also when they run repeatedly or in several
processes at once.
"""

from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from tests.store import hammer
from tests.store.builders import JOB, create, new_job
from tests.store.crowd import crowd
from tuner.database import database as revisions
from tuner.database import migrations
from tuner.database.database import Database, newest_revision
from tuner.domain.errors import Unavailable
from tuner.ledger.tables import metadata
from tuner.store import jobs

TABLES = sorted(metadata.tables)


def schema(database: Database) -> list[tuple[str, str]]:
    """Return each table, index and trigger with its SQL."""
    with database.read() as db:
        rows = db.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
        return [(name, sql) for name, sql in rows]


def checks(db: Connection, table: str) -> dict[str | None, str]:
    return {check["name"]: check["sqltext"] for check in inspect(db).get_check_constraints(table)}


def keys(db: Connection, table: str) -> list[Any]:
    found = inspect(db)
    foreign = [
        (k["name"], k["constrained_columns"], k["referred_table"]) for k in found.get_foreign_keys(table)
    ]
    unique = sorted((str(k["name"]), k["column_names"]) for k in found.get_unique_constraints(table))
    return [found.get_pk_constraint(table), foreign, unique]


@pytest.fixture
def meant(tmp_path_factory: pytest.TempPathFactory) -> Database:
    """A database created from the table definitions, without migrations."""
    found = Database(f"sqlite:///{tmp_path_factory.mktemp('meant')}/meant.db")
    with found.write() as db:
        metadata.create_all(db)
    return found


def test_alembic_finds_nothing_to_change_in_the_migrated_schema(database: Database) -> None:
    with database.read() as db:
        context = MigrationContext.configure(db, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []


@pytest.mark.parametrize("table", TABLES)
def test_constraints_and_keys_match_the_table_definitions(
    database: Database, meant: Database, table: str
) -> None:
    with database.read() as migrated, meant.read() as defined:
        assert checks(migrated, table) == checks(defined, table)
        assert keys(migrated, table) == keys(defined, table)
    meant.dispose()


def test_database_is_at_the_single_newest_revision(database: Database) -> None:
    heads = ScriptDirectory(str(Path(migrations.__file__).parent)).get_heads()
    with database.read() as db:
        assert db.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all() == heads
    assert len(heads) == 1


def test_revisions_read_without_alembic_match_those_of_alembic() -> None:
    folder = Path(migrations.__file__).parent
    read = {one.revision: one.down_revision for one in ScriptDirectory(str(folder)).walk_revisions()}
    assert revisions.known(folder) == read
    assert [revisions.newest(folder)] == ScriptDirectory(str(folder)).get_heads()


def test_migrating_an_up_to_date_database_writes_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Database, "write", lambda *_: pytest.fail("it writes"))
    database.migrate()


def test_migrating_again_changes_nothing(database: Database) -> None:
    create(database, new_job())
    before = schema(database)
    database.migrate()
    assert schema(database) == before
    with database.read() as db:
        assert jobs.get(db, JOB).id == JOB


def test_concurrent_migrations_of_an_empty_database_succeed(
    database: Database, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fresh = Database(f"sqlite:///{tmp_path_factory.mktemp('fresh')}/tuner.db")
    with crowd(hammer.migrate, fresh, [()] * 3):
        pass
    assert schema(fresh) == schema(database)
    fresh.dispose()


def test_database_of_a_newer_version_is_refused_and_unchanged(
    database: Database,
) -> None:
    with database.write() as db:
        db.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(Unavailable, match=f"at revision 9999.*none after {newest_revision()}"):
        database.migrate()
    assert database.revision() == "9999"


def test_folder_of_a_new_database_has_mode_0700(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("home") / "of" / "tuner"
    Database(f"sqlite:///{folder}/tuner.db").dispose()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_sqlite_uses_a_rollback_journal_and_full_synchronisation(tmp_path: Path) -> None:
    """If the file is locked, the code retries; SQLite itself does not sleep (tests/store/test_sqlite_locks.py)."""
    database = Database(f"sqlite:///{tmp_path}/tuner.db")
    wanted = {"journal_mode": "truncate", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 0}
    with database.read() as db:
        found = {name: db.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in wanted}
    assert found == wanted
