"""A fictitious newer version: the existing migrations, and one that makes every kind of allowed addition."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tuner.database import database
from tuner.database.database import Database, newest_revision

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


@contextmanager
def known(folder: Path) -> Iterator[None]:
    """Make this process the newer version. `folder` holds its migrations, and is empty or was used for this before."""
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
