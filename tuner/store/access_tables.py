"""Tables of projects, users, members and API keys; see `tuner.store.access`."""

from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKey, Index, String, Table

from tuner.store.tables import metadata

projects = Table(
    "projects",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("created_at", BigInteger, nullable=False),
)

users = Table(
    "users",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    Column("disabled_at", BigInteger),
)

members = Table(
    "members",
    metadata,
    Column("project", String(100), ForeignKey("projects.name"), primary_key=True),
    Column("user", String(100), ForeignKey("users.name"), primary_key=True),
    Column("role", String(20), nullable=False),
    Column("since", BigInteger, nullable=False),
    CheckConstraint("role IN ('viewer', 'submitter', 'admin')", name="role_is_one_there_is"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(20), primary_key=True),
    Column("project", String(100), ForeignKey("projects.name"), nullable=False),
    Column("user", String(100), ForeignKey("users.name"), nullable=False),
    Column("name", String(100), nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
    Column("replaced_by", String(20)),
    Index("ix_api_keys_listing", "project", "created_at", "id"),
    Index("ix_api_keys_expires_at", "expires_at"),
)
