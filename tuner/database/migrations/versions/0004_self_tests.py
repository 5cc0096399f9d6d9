"""Results of restore self-tests, by digest of the code"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "self_tests",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("trainable", sa.String(length=300), nullable=False),
        sa.Column("code", sa.String(length=64), nullable=False),
        sa.Column("passed", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("passed IN (0, 1)", name="self_test_passed"),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_self_tests_job")),
        sa.PrimaryKeyConstraint("project", "trainable", "code", name=op.f("pk_self_tests")),
    )


def downgrade() -> None:
    op.drop_table("self_tests")
