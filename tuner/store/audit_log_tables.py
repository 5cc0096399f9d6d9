"""The table of the audit log. Triggers in the database refuse to change or remove its rows."""

from sqlalchemy import BigInteger, Column, Index, Integer, String, Table, Text

from tuner.store.tables import metadata, of_project

audit_log = Table(
    "audit_log",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    of_project(),
    Column("at", BigInteger, nullable=False),
    Column("user", String(100), nullable=False),
    Column("key", String(40), nullable=False),
    Column("request", String(64), nullable=False),
    Column("action", String(40), nullable=False),
    Column("target", String(300), nullable=False),
    Column("before", Text),
    Column("after", Text),
    Index("ix_audit_log_project", "project", "seq"),
    Index("ix_audit_log_target", "project", "target", "seq"),
)
