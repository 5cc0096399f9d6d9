"""The code with which the trials of a job ran: only the same goes on from their checkpoints"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0017"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("code", sa.String(64), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("jobs") as table:
        table.drop_column("code")
