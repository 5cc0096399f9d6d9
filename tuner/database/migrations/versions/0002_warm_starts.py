"""Warm starts: the earlier jobs that a job learns from, and the last event of each that it considers"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "warm_starts",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("source", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("until_seq", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_warm_starts_job")),
        sa.ForeignKeyConstraint(["source"], ["jobs.id"], name=op.f("fk_warm_starts_source")),
        sa.PrimaryKeyConstraint("job", "source", name=op.f("pk_warm_starts")),
    )


def downgrade() -> None:
    op.drop_table("warm_starts")
