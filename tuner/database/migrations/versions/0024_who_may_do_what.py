"""Projects, users, their roles, and API keys; existing rows are assigned to the project `default`"""

import time

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0025"


def upgrade() -> None:
    projects = op.create_table(
        "projects",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "users",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("disabled_at", sa.BigInteger()),
    )
    op.create_table(
        "members",
        sa.Column("project", sa.String(100), sa.ForeignKey("projects.name"), primary_key=True),
        sa.Column("user", sa.String(100), sa.ForeignKey("users.name"), primary_key=True),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("role IN ('viewer', 'submitter', 'admin')", name="role_is_one_there_is"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(20), primary_key=True),
        sa.Column("project", sa.String(100), sa.ForeignKey("projects.name"), nullable=False),
        sa.Column("user", sa.String(100), sa.ForeignKey("users.name"), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger()),
        sa.Column("replaced_by", sa.String(20)),
    )
    op.create_index("ix_api_keys_listing", "api_keys", ["project", "created_at", "id"])
    op.create_index("ix_api_keys_expires_at", "api_keys", ["expires_at"])
    assert projects is not None
    op.bulk_insert(projects, [{"name": "default", "created_at": time.time_ns()}])


def downgrade() -> None:
    for name in ("api_keys", "members", "users", "projects"):
        op.drop_table(name)
