"""A migration only adds, so that the previous release keeps working: see docs/decisions/0012-one-of-several-leads.md."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import Script, ScriptDirectory

from tests.upgrades import made_up
from tests.upgrades.schemas import Schema, described
from tuner.database import database as store
from tuner.database.database import Database
from tuner.settings import release


def broken(before: Schema, after: Schema) -> list[str]:
    """Return the changes that break code written for the earlier schema."""
    breaks = [f"the table {table} is gone" for table in before.keys() - after.keys()]
    for table in sorted(before.keys() & after.keys()):
        old, new = before[table]["columns"], after[table]["columns"]
        breaks += [f"{table}.{name} is gone" for name in old.keys() - new.keys()]
        for name in old.keys() & new.keys():
            if old[name]["type"] != new[name]["type"]:
                breaks.append(f"{table}.{name} is of another type")
            if old[name]["nullable"] and not new[name]["nullable"]:
                breaks.append(f"{table}.{name} may not be null any more")
        for name in new.keys() - old.keys():
            if not new[name]["nullable"] and new[name]["default"] is None:
                breaks.append(f"{table}.{name} has to be given")
        for rule in ("checks", "unique", "foreign"):
            added = after[table][rule] - before[table][rule]
            breaks += [
                f"{table} has a new rule: {columns}"
                for columns in sorted(added, key=str)
                if not _is_of_new(columns, old, new)
            ]
    return breaks


def _is_of_new(rule: object, old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return whether a rule covers new columns alone, which older code leaves null or at their defaults."""
    return isinstance(rule, tuple) and set(rule) <= new.keys() - old.keys()


def steps() -> list[Script]:
    """Return the migrations after the first release, oldest first."""
    scripts = list(ScriptDirectory(str(store.MIGRATIONS)).walk_revisions())[::-1]
    return [script for script in scripts if script.down_revision is not None]


def breaking(database: Database, upto: str) -> list[str]:
    """Migrate the database to this revision, and return what its migration breaks."""
    with database.write() as db:
        config = Config()
        config.set_main_option("script_location", str(store.MIGRATIONS))
        config.attributes["connection"] = db
        (script,) = (script for script in steps() if script.revision == upto)
        command.upgrade(config, str(script.down_revision))
        before = described(db)
        command.upgrade(config, upto)
        after = described(db)
    return broken(before, after)


@pytest.fixture
def first_release(tmp_path: Path) -> Iterator[Database]:
    database = made_up.first_release(tmp_path / "tuner.db")
    yield database
    database.dispose()


def test_migrations_do_not_break_the_previous_release(first_release: Database) -> None:
    for script in steps():
        breaks = breaking(first_release, script.revision)
        unused_since = getattr(script.module, "unused_since", None)
        if unused_since is None:
            assert breaks == [], (
                "add now, and remove a release later, with unused_since naming the last release that used it"
            )
        else:
            assert numbers(unused_since) < numbers(release())


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@pytest.fixture
def newer(database: Database, tmp_path: Path) -> Iterator[Path]:
    """The file of the made-up migration. `database` is made before, so it is at the newest revision of this version."""
    with made_up.known(tmp_path / "newer"):
        yield store.MIGRATIONS / "versions" / f"{made_up.REVISION}_made_up.py"


def test_made_up_migration_follows_the_rules(newer: Path, database: Database) -> None:
    assert newer.exists()
    assert breaking(database, made_up.REVISION) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ('op.drop_column("jobs", "code")', "jobs.code is gone"),
        ('op.drop_table("leases")', "the table leases is gone"),
        (
            'with op.batch_alter_table("jobs") as jobs:\n        jobs.alter_column("code", nullable=False)',
            "jobs.code may not be null any more",
        ),
        (
            'with op.batch_alter_table("jobs") as jobs:\n        jobs.alter_column("name", type_=sa.Integer())',
            "jobs.name is of another type",
        ),
        (
            'with op.batch_alter_table("jobs") as jobs:\n        jobs.add_column(sa.Column("must", sa.Text(), nullable=False))',
            "jobs.must has to be given",
        ),
        ('op.create_index("ux", "jobs", ["name"], unique=True)', "jobs has a new rule: ('name',)"),
    ],
)
def test_breaking_migration_is_detected(newer: Path, database: Database, change: str, problem: str) -> None:
    newer.write_text(newer.read_text().replace("\n\n\ndef downgrade", f"\n    {change}\n\n\ndef downgrade"))
    assert problem in breaking(database, made_up.REVISION)
