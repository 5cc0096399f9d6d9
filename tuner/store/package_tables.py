"""The table of uploaded packages. Their bytes are in the storage, not in the database."""

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, String, Table

from tuner.store.tables import metadata

packages = Table(
    "packages",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("sha256", String(64), primary_key=True),
    Column("name", String(100), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("files", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    CheckConstraint("bytes > 0 AND files > 0", name="package_has_files"),
    Index("ix_packages_listing", "project", "created_at", "sha256"),
)
