"""The environment that an attempt trained in"""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0023"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("environment", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("attempts") as table:
        table.drop_column("environment")
