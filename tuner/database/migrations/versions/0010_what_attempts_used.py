"""Machine usage of attempts: processor time, memory, GPUs, and waiting for data; unknown for earlier attempts"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0011"
COUNTS = (
    "wall_ns",
    "cpu_ns",
    "memory_peak_bytes",
    "gpu_samples",
    "gpu_percent",
    "gpu_memory_peak_bytes",
    "data_wait_ns",
    "compute_ns",
    "saves",
    "saved_bytes",
)


def upgrade() -> None:
    op.create_table(
        "attempt_usage",
        sa.Column("job", sa.String(40), nullable=False),
        sa.Column("trial", sa.String(40), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("project", sa.String(100), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=True) for name in COUNTS),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_attempt_usage_job"),
        sa.PrimaryKeyConstraint("job", "trial", "attempt", name="pk_attempt_usage"),
    )


def downgrade() -> None:
    op.drop_table("attempt_usage")
