"""Quotas: the jobs and trials that a project may run at once"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0022"


def upgrade() -> None:
    op.create_table(
        "quotas",
        sa.Column("project", sa.String(100), nullable=False),
        sa.Column("concurrent_jobs", sa.Integer()),
        sa.Column("concurrent_trials", sa.Integer()),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("concurrent_jobs > 0 AND concurrent_trials > 0", name="positive_quota"),
        sa.PrimaryKeyConstraint("project", name="pk_quotas"),
    )


def downgrade() -> None:
    op.drop_table("quotas")
