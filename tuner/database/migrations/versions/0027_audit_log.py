"""The audit log"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0024"


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False, autoincrement=True
        ),
        sa.Column("project", sa.String(100), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("user", sa.String(100), nullable=False),
        sa.Column("key", sa.String(40), nullable=False),
        sa.Column("request", sa.String(64), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("target", sa.String(300), nullable=False),
        sa.Column("before", sa.Text()),
        sa.Column("after", sa.Text()),
        sa.PrimaryKeyConstraint("seq", name="pk_audit_log"),
    )
    op.create_index("ix_audit_log_project", "audit_log", ["project", "seq"])
    op.create_index("ix_audit_log_target", "audit_log", ["project", "target", "seq"])
    if op.get_bind().dialect.name != "sqlite":
        op.execute(
            "CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE ON audit_log "
            "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
        )
        return
    refuse = "BEGIN SELECT RAISE(ABORT, 'audit_log is append-only'); END"
    op.execute(f"CREATE TRIGGER audit_log_no_update BEFORE UPDATE ON audit_log {refuse}")
    op.execute(f"CREATE TRIGGER audit_log_no_delete BEFORE DELETE ON audit_log {refuse}")
    # INSERT OR REPLACE deletes without a DELETE trigger.
    known = "WHEN EXISTS (SELECT 1 FROM audit_log WHERE seq = NEW.seq)"
    op.execute(f"CREATE TRIGGER audit_log_no_replace BEFORE INSERT ON audit_log {known} {refuse}")


def downgrade() -> None:
    op.drop_index("ix_audit_log_target", "audit_log")
    op.drop_index("ix_audit_log_project", "audit_log")
    op.drop_table("audit_log")
