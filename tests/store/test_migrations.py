"""Test that new and migrated databases have the schema that the code defines, also when processes migrate at once."""

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tests.store import hammer
from tests.store.crowd import crowd
from tests.upgrades import made_up
from tests.upgrades.schemas import described
from tuner.database import database as revisions
from tuner.database import migrations
from tuner.database.database import Database, newest_revision
from tuner.database.ledger_tables import metadata
from tuner.domain.errors import Unavailable


def test_migrations_of_the_first_release_give_the_schema_of_a_new_database(
    database: Database, tmp_path: Path
) -> None:
    """A change of the table definitions needs a migration that makes the same change."""
    old = made_up.first_release(tmp_path / "old.db")
    old.migrate()
    with old.read() as migrated, database.read() as created:
        for db in (migrated, created):
            context = MigrationContext.configure(
                db, opts={"compare_type": True, "compare_server_default": True}
            )
            assert compare_metadata(context, metadata) == []
        assert described(migrated) == described(created)
        triggers = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name"
        assert migrated.exec_driver_sql(triggers).all() == created.exec_driver_sql(triggers).all()
    old.dispose()


def test_database_is_at_the_single_newest_revision_that_alembic_knows(database: Database) -> None:
    folder = Path(migrations.__file__).parent
    scripts = ScriptDirectory(str(folder))
    read = {script.revision: script.down_revision for script in scripts.walk_revisions()}
    assert revisions.known(folder) == read
    with database.read() as db:
        recorded = db.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all()
    assert recorded == scripts.get_heads() == [revisions.newest(folder)]


def test_migrating_an_up_to_date_database_writes_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Database, "write", lambda *_: pytest.fail("it writes"))
    database.migrate()


def test_concurrent_migrations_of_an_empty_database_succeed(
    database: Database, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fresh = Database(f"sqlite:///{tmp_path_factory.mktemp('fresh')}/tuner.db")
    with crowd(hammer.migrate, fresh, [()] * 3):
        pass
    tables = "SELECT name, sql FROM sqlite_master ORDER BY name"
    with fresh.read() as migrated, database.read() as db:
        assert migrated.exec_driver_sql(tables).all() == db.exec_driver_sql(tables).all()
        assert migrated.exec_driver_sql("SELECT name FROM projects").scalars().all() == ["default"]
    fresh.dispose()


def test_database_of_a_newer_version_is_refused_and_unchanged(
    database: Database,
) -> None:
    with database.write() as db:
        db.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(
        Unavailable, match=f"at revision 9999.*only knows revisions up to {newest_revision()}"
    ):
        database.migrate()
    assert database.revision() == "9999"


def test_folder_of_a_new_database_has_mode_0700(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("home") / "of" / "tuner"
    Database(f"sqlite:///{folder}/tuner.db").dispose()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_sqlite_uses_a_write_ahead_log_and_full_synchronisation(tmp_path: Path) -> None:
    """If the file is locked, the code retries; SQLite itself does not sleep (tests/store/test_sqlite_locks.py)."""
    database = Database(f"sqlite:///{tmp_path}/tuner.db")
    database.migrate()
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 0}
    with database.read() as db:
        used = {name: db.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in wanted}
    assert used == wanted
