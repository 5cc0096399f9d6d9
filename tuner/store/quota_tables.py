"""The table of quotas. A project's limits in dollars and GPU-hours are stored as a shared budget instead."""

from sqlalchemy import BigInteger, CheckConstraint, Column, Integer, String, Table

from tuner.store.tables import metadata

quotas = Table(
    "quotas",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("concurrent_jobs", Integer),
    Column("concurrent_trials", Integer),
    Column("updated_at", BigInteger, nullable=False),
    CheckConstraint("concurrent_jobs > 0 AND concurrent_trials > 0", name="positive_quota"),
)
