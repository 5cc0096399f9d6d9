"""Shared budgets: their accounts, the holds that count in them, the jobs that wait for them, and their webhooks"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "budgets",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("secret", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "name", name=op.f("pk_budgets")),
    )
    op.create_table(
        "budget_accounts",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("began_at", sa.BigInteger(), nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=True),
        sa.Column("limit_usd", sa.BigInteger(), nullable=False),
        sa.Column("posted_usd", sa.BigInteger(), nullable=False),
        sa.Column("held_usd", sa.BigInteger(), nullable=False),
        sa.Column("limit_gpu_ms", sa.BigInteger(), nullable=False),
        sa.Column("posted_gpu_ms", sa.BigInteger(), nullable=False),
        sa.Column("held_gpu_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "posted_gpu_ms + held_gpu_ms <= limit_gpu_ms", name=op.f("above_never_overspent_gpu_ms")
        ),
        sa.CheckConstraint("posted_gpu_ms >= 0 AND held_gpu_ms >= 0", name=op.f("above_no_negative_gpu_ms")),
        sa.CheckConstraint("posted_usd + held_usd <= limit_usd", name=op.f("above_never_overspent_usd")),
        sa.CheckConstraint("posted_usd >= 0 AND held_usd >= 0", name=op.f("above_no_negative_usd")),
        sa.PrimaryKeyConstraint("project", "name", "began_at", name=op.f("pk_budget_accounts")),
    )
    op.create_table(
        "budget_holds",
        sa.Column("hold", sa.String(length=120), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("began_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["hold"], ["holds.id"], name=op.f("fk_budget_holds_hold")),
        sa.PrimaryKeyConstraint("hold", "name", name=op.f("pk_budget_holds")),
    )
    op.create_index("ix_budget_holds_budget", "budget_holds", ["project", "name", "began_at"], unique=False)
    op.create_table(
        "budget_waits",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("began_at", sa.BigInteger(), nullable=False),
        sa.Column("left_usd", sa.BigInteger(), nullable=False),
        sa.Column("left_gpu_ms", sa.BigInteger(), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_budget_waits_job")),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_budget_waits")),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(length=80), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("next_at", sa.BigInteger(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'given_up')", name=op.f("delivery_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
    )
    op.create_index("ix_deliveries_due", "deliveries", ["state", "next_at"], unique=False)
    op.create_index("ix_deliveries_budget", "deliveries", ["project", "name", "created_at"], unique=False)


def downgrade() -> None:
    for table in ("deliveries", "budget_waits", "budget_holds", "budget_accounts", "budgets"):
        op.drop_table(table)
