"""When attempts had their machines: only from then on do they cost money"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("landed_at", sa.BigInteger(), nullable=True))
    op.execute("UPDATE attempts SET landed_at = began_at")  # as was taken for granted before


def downgrade() -> None:
    with op.batch_alter_table("attempts") as table:
        table.drop_column("landed_at")
