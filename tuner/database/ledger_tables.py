"""The tables that only `tuner.ledger` writes: the accounts, holds and entries of jobs, and the tables of shared budgets.

`lint-imports` lets no other package import this module. Queries elsewhere read the same tables through
`tuner.ledger.readable`. The units are those of `tuner.database.tables`. Every account has a CHECK for
`posted + held <= limit`, so that a bug cannot overspend it.
"""

from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKey, Index, Integer, String, Table, Text

from tuner.database.tables import append_only, of_job, of_project
from tuner.database.tables import metadata as metadata

accounts = Table(
    "accounts",
    metadata,
    of_job(primary_key=True),
    of_project(),
    Column("limit_usd", BigInteger, nullable=False),
    Column("posted_usd", BigInteger, nullable=False),
    Column("held_usd", BigInteger, nullable=False),
    Column("limit_gpu_ms", BigInteger, nullable=False),
    Column("posted_gpu_ms", BigInteger, nullable=False),
    Column("held_gpu_ms", BigInteger, nullable=False),
    CheckConstraint("posted_usd >= 0 AND held_usd >= 0", name="no_negative_usd"),
    CheckConstraint("posted_gpu_ms >= 0 AND held_gpu_ms >= 0", name="no_negative_gpu_ms"),
    CheckConstraint("posted_usd + held_usd <= limit_usd", name="never_overspent_usd"),
    CheckConstraint("posted_gpu_ms + held_gpu_ms <= limit_gpu_ms", name="never_overspent_gpu_ms"),
)

holds = Table(
    "holds",
    metadata,
    Column("id", String(120), primary_key=True),
    of_job(),
    of_project(),
    Column("trial", String(40), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("slice", Integer, nullable=False),
    Column("usd", BigInteger, nullable=False),
    Column("gpu_ms", BigInteger, nullable=False),
    Column("placed_at", BigInteger, nullable=False),
    Column("ends_at", BigInteger, nullable=False),
    Column("state", String(10), nullable=False),
    CheckConstraint("usd >= 0 AND gpu_ms >= 0", name="no_negative_hold"),
    CheckConstraint("state IN ('open', 'settled')", name="hold_state"),
    Index("ix_holds_open", "job", "state"),
)

entries = Table(
    "entries",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("id", String(160), nullable=False, unique=True),
    of_job(),
    of_project(),
    Column("entry", String(10), nullable=False),
    Column("kind", String(12)),
    Column("trial", String(40), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("slice", Integer, nullable=False),
    Column("usd", BigInteger, nullable=False),
    Column("gpu_ms", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    CheckConstraint("entry = 'correct' OR (usd >= 0 AND gpu_ms >= 0)", name="only_corrections_negative"),
    Index("ix_entries_job", "job", "seq"),
    Index("ix_entries_attempt", "job", "trial", "attempt"),
    Index("ix_entries_at", "project", "at"),
)
append_only(entries, same="id = NEW.id OR seq = NEW.seq")

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
