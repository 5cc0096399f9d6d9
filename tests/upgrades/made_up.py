"""The schema of the first release, and a fictitious newer version: the existing migrations, and one that makes every kind of
allowed addition.
"""

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import patch

from tuner.database import database
from tuner.database.database import Database, newest_revision
from tuner.database.sqlite import sqlite3

FIRST_RELEASE = Path(__file__).with_name("schema_0028.sql")
REVISION = "9001"
SOURCE = '''"""What a newer version has in addition"""

import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"
GROWN = ("jobs", "launches", "accounts", "entries", "holds", "trials", "attempts", "reports", "events", "leadership")


def upgrade() -> None:
    op.create_table(
        "novelties",
        sa.Column("job", sa.String(40), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("what", sa.Text(), nullable=False),
    )
    for table in GROWN:
        op.add_column(table, sa.Column("novelty", sa.String(40), nullable=True))
        op.add_column(table, sa.Column("novelties", sa.BigInteger(), nullable=False, server_default="7"))
    op.create_index("ix_entries_novelty", "entries", ["novelty"])


def downgrade() -> None:
    op.drop_index("ix_entries_novelty", "entries")
    for table in GROWN:
        op.execute(f"ALTER TABLE {{table}} DROP COLUMN novelty")
        op.execute(f"ALTER TABLE {{table}} DROP COLUMN novelties")
    op.drop_table("novelties")
'''


def first_release(file: Path) -> Database:
    """Create a SQLite database with the schema of the first release, which later migrations build on."""
    with closing(sqlite3.connect(file)) as db:
        db.executescript(FIRST_RELEASE.read_text())
        db.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
        db.execute("INSERT INTO alembic_version VALUES ('0028')")
        db.commit()
    return Database(f"sqlite:///{file}")


@contextmanager
def known(folder: Path) -> Iterator[None]:
    """Make this process the newer version, which can upgrade a database but not create one: it has the tables of this version.

    `folder` holds its migrations, and is empty or was used for this before.
    """
    migrations = folder / "migrations"
    if not migrations.exists():
        before = newest_revision()
        shutil.copytree(database.MIGRATIONS, migrations, ignore=shutil.ignore_patterns("__pycache__"))
        text = SOURCE.format(revision=REVISION, before=before)
        (migrations / "versions" / f"{REVISION}_made_up.py").write_text(text)
    with patch.object(database, "MIGRATIONS", migrations):
        yield


def migrate(url: str, folder: Path) -> None:
    """Migrate the database as `tuner migrate` of the newer version does."""
    with known(folder):
        newer = Database(url)
        newer.migrate()
        newer.dispose()
