"""The first tables"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("trainable", sa.String(length=300), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("budget", sa.Text(), nullable=False),
        sa.Column("budget_version", sa.Integer(), nullable=False),
        sa.Column("offer", sa.Text(), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("stop_reason", sa.String(length=30), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("wish", sa.String(length=10), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("running_since", sa.BigInteger(), nullable=True),
        sa.Column("ran_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index("ix_jobs_listing", ["project", "created_at", "id"], unique=False)
        batch_op.create_index("ix_jobs_state", ["state"], unique=False)
        batch_op.create_index("ix_jobs_trainable", ["project", "trainable"], unique=False)

    op.create_table(
        "accounts",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("limit_usd", sa.BigInteger(), nullable=False),
        sa.Column("posted_usd", sa.BigInteger(), nullable=False),
        sa.Column("held_usd", sa.BigInteger(), nullable=False),
        sa.Column("limit_gpu_ms", sa.BigInteger(), nullable=False),
        sa.Column("posted_gpu_ms", sa.BigInteger(), nullable=False),
        sa.Column("held_gpu_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "posted_gpu_ms + held_gpu_ms <= limit_gpu_ms", name=op.f("never_overspent_gpu_ms")
        ),
        sa.CheckConstraint("posted_gpu_ms >= 0 AND held_gpu_ms >= 0", name=op.f("no_negative_gpu_ms")),
        sa.CheckConstraint("posted_usd + held_usd <= limit_usd", name=op.f("never_overspent_usd")),
        sa.CheckConstraint("posted_usd >= 0 AND held_usd >= 0", name=op.f("no_negative_usd")),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_accounts_job")),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_accounts")),
    )
    op.create_table(
        "attempts",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("trial", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("began_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("end", sa.String(length=20), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("node", sa.String(length=100), nullable=False),
        sa.Column("from_step", sa.Integer(), nullable=False),
        sa.Column("to_step", sa.Integer(), nullable=False),
        sa.Column("costs", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_attempts_job")),
        sa.PrimaryKeyConstraint("job", "trial", "attempt", name=op.f("pk_attempts")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("trial", sa.String(length=40), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_checkpoints_job")),
        sa.PrimaryKeyConstraint("job", "trial", "step", name=op.f("pk_checkpoints")),
    )
    op.create_table(
        "entries",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("id", sa.String(length=160), nullable=False),
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("entry", sa.String(length=10), nullable=False),
        sa.Column("kind", sa.String(length=12), nullable=True),
        sa.Column("trial", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("slice", sa.Integer(), nullable=False),
        sa.Column("usd", sa.BigInteger(), nullable=False),
        sa.Column("gpu_ms", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "entry = 'correct' OR (usd >= 0 AND gpu_ms >= 0)", name=op.f("only_corrections_negative")
        ),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_entries_job")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_entries")),
        sa.UniqueConstraint("id", name=op.f("uq_entries_id")),
    )
    with op.batch_alter_table("entries", schema=None) as batch_op:
        batch_op.create_index("ix_entries_attempt", ["job", "trial", "attempt"], unique=False)
        batch_op.create_index("ix_entries_job", ["job", "seq"], unique=False)

    op.create_table(
        "events",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.String(length=20), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_events_job")),
        sa.PrimaryKeyConstraint("job", "seq", name=op.f("pk_events")),
    )
    op.create_table(
        "holds",
        sa.Column("id", sa.String(length=120), nullable=False),
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("trial", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("slice", sa.Integer(), nullable=False),
        sa.Column("usd", sa.BigInteger(), nullable=False),
        sa.Column("gpu_ms", sa.BigInteger(), nullable=False),
        sa.Column("placed_at", sa.BigInteger(), nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.CheckConstraint("state IN ('open', 'settled')", name=op.f("hold_state")),
        sa.CheckConstraint("usd >= 0 AND gpu_ms >= 0", name=op.f("no_negative_hold")),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_holds_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_holds")),
    )
    with op.batch_alter_table("holds", schema=None) as batch_op:
        batch_op.create_index("ix_holds_open", ["job", "state"], unique=False)

    op.create_table(
        "idempotency",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_idempotency_job")),
        sa.PrimaryKeyConstraint("project", "key", name=op.f("pk_idempotency")),
    )
    op.create_table(
        "job_tags",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=100), nullable=False),
        sa.Column("value", sa.String(length=300), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_job_tags_job")),
        sa.PrimaryKeyConstraint("job", "key", name=op.f("pk_job_tags")),
    )
    with op.batch_alter_table("job_tags", schema=None) as batch_op:
        batch_op.create_index("ix_job_tags_value", ["project", "key", "value"], unique=False)

    op.create_table(
        "launches",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("wanted_at", sa.BigInteger(), nullable=False),
        sa.Column("submitted_at", sa.BigInteger(), nullable=True),
        sa.Column("heartbeat_at", sa.BigInteger(), nullable=True),
        sa.Column("quick_deaths", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_launches_job")),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_launches")),
    )
    with op.batch_alter_table("launches", schema=None) as batch_op:
        batch_op.create_index("ix_launches_state", ["state"], unique=False)

    op.create_table(
        "reports",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("trial", sa.String(length=40), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("usd", sa.BigInteger(), nullable=False),
        sa.Column("gpu_ms", sa.BigInteger(), nullable=False),
        sa.Column("duration_ns", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_reports_job")),
        sa.PrimaryKeyConstraint("job", "trial", "step", name=op.f("pk_reports")),
    )
    with op.batch_alter_table("reports", schema=None) as batch_op:
        batch_op.create_index("ix_reports_value", ["job", "value"], unique=False)
        batch_op.create_index("ix_reports_seq", ["job", "seq"], unique=False)

    op.create_table(
        "trials",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("trial", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_trials_job")),
        sa.PrimaryKeyConstraint("job", "trial", name=op.f("pk_trials")),
    )
    with op.batch_alter_table("trials", schema=None) as batch_op:
        batch_op.create_index("ix_trials_number", ["job", "number"], unique=True)
        batch_op.create_index("ix_trials_seq", ["job", "seq"], unique=False)
    _make_append_only()


def _make_append_only() -> None:
    """Create triggers that refuse to change or delete rows of the ledger and the events, for every database user."""
    if op.get_bind().dialect.name != "sqlite":
        op.execute(
            "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
        )
    for table, same in (
        ("entries", "id = NEW.id OR seq = NEW.seq"),
        ("events", "job = NEW.job AND seq = NEW.seq"),
    ):
        if op.get_bind().dialect.name != "sqlite":
            op.execute(
                f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} "
                "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
            )
            continue
        refuse = f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        op.execute(f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} {refuse}")
        op.execute(f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {refuse}")
        # INSERT OR REPLACE deletes without a DELETE trigger.
        known = f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {same})"
        op.execute(f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} {known} {refuse}")


def downgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP TRIGGER entries_append_only ON entries")
        op.execute("DROP TRIGGER events_append_only ON events")
        op.execute("DROP FUNCTION refuse_change")
    with op.batch_alter_table("trials", schema=None) as batch_op:
        batch_op.drop_index("ix_trials_number")
        batch_op.drop_index("ix_trials_seq")

    op.drop_table("trials")
    with op.batch_alter_table("reports", schema=None) as batch_op:
        batch_op.drop_index("ix_reports_value")
        batch_op.drop_index("ix_reports_seq")

    op.drop_table("reports")
    with op.batch_alter_table("launches", schema=None) as batch_op:
        batch_op.drop_index("ix_launches_state")

    op.drop_table("launches")
    with op.batch_alter_table("job_tags", schema=None) as batch_op:
        batch_op.drop_index("ix_job_tags_value")

    op.drop_table("job_tags")
    op.drop_table("idempotency")
    with op.batch_alter_table("holds", schema=None) as batch_op:
        batch_op.drop_index("ix_holds_open")

    op.drop_table("holds")
    op.drop_table("events")
    with op.batch_alter_table("entries", schema=None) as batch_op:
        batch_op.drop_index("ix_entries_job")
        batch_op.drop_index("ix_entries_attempt")

    op.drop_table("entries")
    op.drop_table("checkpoints")
    op.drop_table("attempts")
    op.drop_table("accounts")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index("ix_jobs_state")
        batch_op.drop_index("ix_jobs_trainable")
        batch_op.drop_index("ix_jobs_listing")

    op.drop_table("jobs")
