"""The time at which each attempt got its machine; before that, it costs nothing"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("landed_at", sa.BigInteger(), nullable=True))
    op.execute("UPDATE attempts SET landed_at = began_at")  # the earlier code billed from there


def downgrade() -> None:
    with op.batch_alter_table("attempts") as table:
        table.drop_column("landed_at")
