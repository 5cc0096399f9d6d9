"""The causes of the ends of attempts, and indexes for counting jobs, trials and attempts"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0018"
INDEXES = {
    "ix_attempts_end": ("attempts", ["end", "cause", "market"]),
    "ix_trials_state": ("trials", ["state", "steps"]),
    "ix_jobs_ended": ("jobs", ["ended_at"]),
    "ix_jobs_started": ("jobs", ["started_at", "created_at"]),
}


def upgrade() -> None:
    op.add_column("attempts", sa.Column("cause", sa.String(20), nullable=True))
    for name, (table, columns) in INDEXES.items():
        op.create_index(name, table, columns, unique=False)


def downgrade() -> None:
    for name, (table, _) in INDEXES.items():
        op.drop_index(name, table_name=table)
    with op.batch_alter_table("attempts") as attempts:
        attempts.drop_column("cause")
