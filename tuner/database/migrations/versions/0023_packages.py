"""Uploaded packages of user code"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0027"


def upgrade() -> None:
    op.create_table(
        "packages",
        sa.Column("project", sa.String(100), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "sha256", name="pk_packages"),
        sa.CheckConstraint("bytes > 0 AND files > 0", name="package_has_files"),
    )
    op.create_index("ix_packages_listing", "packages", ["project", "created_at", "sha256"])


def downgrade() -> None:
    op.drop_table("packages")
