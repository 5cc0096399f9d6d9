"""The digest of the code of each job; only a job with the same code may continue its checkpoints"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0017"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("code", sa.String(64), nullable=True))


def downgrade() -> None:
    # Not with batch_alter_table, which replaces the table, because other tables have foreign keys to it.
    op.execute("ALTER TABLE jobs DROP COLUMN code")
