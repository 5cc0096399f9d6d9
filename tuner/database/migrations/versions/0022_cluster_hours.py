"""The time and price of the cluster's machines by hour, in total and while nothing ran on them"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.create_table(
        "cluster_hours",
        sa.Column("project", sa.String(100), nullable=False),
        sa.Column("hour", sa.BigInteger(), nullable=False),
        sa.Column("instance_type", sa.String(200), nullable=False),
        sa.Column("market", sa.String(20), nullable=False),
        sa.Column("price", sa.BigInteger(), nullable=False),
        sa.Column("alive_ms", sa.BigInteger(), nullable=False),
        sa.Column("idle_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "project", "hour", "instance_type", "market", "price", name="pk_cluster_hours"
        ),
    )
    op.create_table(
        "cluster_watch",
        sa.Column("project", sa.String(100), nullable=False),
        sa.Column("hour", sa.BigInteger(), nullable=False),
        sa.Column("watched_ms", sa.BigInteger(), nullable=False),
        sa.Column("unpriced_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "hour", name="pk_cluster_watch"),
    )
    op.create_table(
        "cluster_clock",
        sa.Column("project", sa.String(100), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", name="pk_cluster_clock"),
    )


def downgrade() -> None:
    for name in ("cluster_clock", "cluster_watch", "cluster_hours"):
        op.drop_table(name)
