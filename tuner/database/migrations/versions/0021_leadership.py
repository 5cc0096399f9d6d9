"""The leader among several services, and the software versions of each driver"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
VERSIONS = ("tuner_version", "ray_version", "python_version")


def upgrade() -> None:
    op.create_table(
        "leadership",
        sa.Column("role", sa.String(40), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(100), nullable=False),
        sa.Column("version", sa.String(40), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("role", name="pk_leadership"),
    )
    for name in VERSIONS:
        op.add_column("launches", sa.Column(name, sa.String(40), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("launches") as launches:
        for name in VERSIONS:
            launches.drop_column(name)
    op.drop_table("leadership")
