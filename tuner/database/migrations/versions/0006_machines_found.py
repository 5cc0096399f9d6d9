"""The machine that an attempt was given, and its price"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0009"
NAMES = ("instance_type", "region", "machine_price", "price_source")


def upgrade() -> None:
    op.add_column("attempts", sa.Column("instance_type", sa.String(200), nullable=True))
    op.add_column("attempts", sa.Column("region", sa.String(200), nullable=True))
    op.add_column("attempts", sa.Column("machine_price", sa.BigInteger(), nullable=True))
    op.add_column("attempts", sa.Column("price_source", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("attempts") as table:
        for name in NAMES:
            table.drop_column(name)
