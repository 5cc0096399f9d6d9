"""The market and the price of each attempt"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column(
        "attempts", sa.Column("market", sa.String(length=20), nullable=False, server_default="on_demand")
    )
    op.add_column("attempts", sa.Column("price", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    with op.batch_alter_table("attempts") as table:
        table.drop_column("price")
        table.drop_column("market")
