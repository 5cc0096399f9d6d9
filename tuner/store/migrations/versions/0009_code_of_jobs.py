"""The code with which the trials of a job ran: only the same goes on from their checkpoints"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0017"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("code", sa.String(64), nullable=True))


def downgrade() -> None:
    # Not by a new table in the place of the old one, which others refer to.
    op.execute("ALTER TABLE jobs DROP COLUMN code")
