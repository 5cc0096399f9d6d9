"""Tables of shared budgets, their accounts by period, and their webhooks. `tuner.store.shared_budgets` explains them."""

from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKey, Index, Integer, String, Table, Text

from tuner.store.tables import metadata, of_job, of_project

budgets = Table(
    "budgets",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("spec", Text, nullable=False),
    Column("secret", String(100), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

budget_accounts = Table(
    "budget_accounts",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("began_at", BigInteger, primary_key=True),
    Column("ends_at", BigInteger),
    *(
        Column(f"{what}_{unit}", BigInteger, nullable=False)
        for unit in ("usd", "gpu_ms")
        for what in ("limit", "posted", "held")
    ),
    CheckConstraint("posted_usd >= 0 AND held_usd >= 0", name="above_no_negative_usd"),
    CheckConstraint("posted_gpu_ms >= 0 AND held_gpu_ms >= 0", name="above_no_negative_gpu_ms"),
    CheckConstraint("posted_usd + held_usd <= limit_usd", name="above_never_overspent_usd"),
    CheckConstraint("posted_gpu_ms + held_gpu_ms <= limit_gpu_ms", name="above_never_overspent_gpu_ms"),
)

budget_holds = Table(
    "budget_holds",
    metadata,
    Column("hold", String(120), ForeignKey("holds.id"), primary_key=True),
    Column("name", String(100), primary_key=True),
    of_project(),
    Column("began_at", BigInteger, nullable=False),
    Index("ix_budget_holds_budget", "project", "name", "began_at"),
)

budget_waits = Table(
    "budget_waits",
    metadata,
    of_job(primary_key=True),
    of_project(),
    Column("name", String(100), nullable=False),
    Column("began_at", BigInteger, nullable=False),
    Column("left_usd", BigInteger, nullable=False),
    Column("left_gpu_ms", BigInteger, nullable=False),
    Column("not_before", BigInteger, nullable=False),
    Column("tries", Integer, nullable=False),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", String(80), primary_key=True),
    of_project(),
    Column("name", String(100), nullable=False),
    Column("url", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("state", String(12), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("next_at", BigInteger, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("answer", Text, nullable=False),
    CheckConstraint("state IN ('pending', 'delivered', 'given_up')", name="delivery_state"),
    Index("ix_deliveries_due", "state", "next_at"),
    Index("ix_deliveries_budget", "project", "name", "created_at"),
)
