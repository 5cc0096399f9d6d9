"""An index of ledger entries by time, for spend reports"""

from alembic import op

revision = "0007"
down_revision = "0010"


def upgrade() -> None:
    op.create_index("ix_entries_at", "entries", ["project", "at"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_entries_at", table_name="entries")
