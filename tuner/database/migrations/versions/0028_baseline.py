"""Create all tables. This is the schema of the first release."""

import time

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("user", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=40), nullable=False),
        sa.Column("request", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=40), nullable=False),
        sa.Column("target", sa.String(length=300), nullable=False),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_audit_log")),
    )
    with op.batch_alter_table("audit_log", schema=None) as batch_op:
        batch_op.create_index("ix_audit_log_project", ["project", "seq"], unique=False)
        batch_op.create_index("ix_audit_log_target", ["project", "target", "seq"], unique=False)

    op.create_table(
        "budget_accounts",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("began_at", sa.BigInteger(), nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=True),
        sa.Column("limit_usd", sa.BigInteger(), nullable=False),
        sa.Column("posted_usd", sa.BigInteger(), nullable=False),
        sa.Column("held_usd", sa.BigInteger(), nullable=False),
        sa.Column("limit_gpu_ms", sa.BigInteger(), nullable=False),
        sa.Column("posted_gpu_ms", sa.BigInteger(), nullable=False),
        sa.Column("held_gpu_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "posted_gpu_ms + held_gpu_ms <= limit_gpu_ms", name=op.f("above_never_overspent_gpu_ms")
        ),
        sa.CheckConstraint("posted_gpu_ms >= 0 AND held_gpu_ms >= 0", name=op.f("above_no_negative_gpu_ms")),
        sa.CheckConstraint("posted_usd + held_usd <= limit_usd", name=op.f("above_never_overspent_usd")),
        sa.CheckConstraint("posted_usd >= 0 AND held_usd >= 0", name=op.f("above_no_negative_usd")),
        sa.PrimaryKeyConstraint("project", "name", "began_at", name=op.f("pk_budget_accounts")),
    )
    op.create_table(
        "budgets",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("secret", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "name", name=op.f("pk_budgets")),
    )
    op.create_table(
        "cluster_clock",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", name=op.f("pk_cluster_clock")),
    )
    op.create_table(
        "cluster_hours",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("instance_type", sa.String(length=200), nullable=False),
        sa.Column("market", sa.String(length=20), nullable=False),
        sa.Column("price", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("alive_ms", sa.BigInteger(), nullable=False),
        sa.Column("idle_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "project", "hour", "instance_type", "market", "price", name=op.f("pk_cluster_hours")
        ),
    )
    op.create_table(
        "cluster_watch",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("watched_ms", sa.BigInteger(), nullable=False),
        sa.Column("unpriced_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", "hour", name=op.f("pk_cluster_watch")),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(length=80), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("next_at", sa.BigInteger(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'given_up')", name=op.f("delivery_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
    )
    with op.batch_alter_table("deliveries", schema=None) as batch_op:
        batch_op.create_index("ix_deliveries_budget", ["project", "name", "created_at"], unique=False)
        batch_op.create_index("ix_deliveries_due", ["state", "next_at"], unique=False)

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
        sa.Column("code", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index("ix_jobs_ended", ["ended_at"], unique=False)
        batch_op.create_index("ix_jobs_listing", ["project", "created_at", "id"], unique=False)
        batch_op.create_index("ix_jobs_started", ["started_at", "created_at"], unique=False)
        batch_op.create_index("ix_jobs_state", ["state"], unique=False)
        batch_op.create_index("ix_jobs_trainable", ["project", "trainable"], unique=False)

    op.create_table(
        "leadership",
        sa.Column("role", sa.String(length=40), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String(length=100), nullable=False),
        sa.Column("version", sa.String(length=40), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("role", name=op.f("pk_leadership")),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("holder", sa.String(length=100), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "packages",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("bytes > 0 AND files > 0", name=op.f("package_has_files")),
        sa.PrimaryKeyConstraint("project", "sha256", name=op.f("pk_packages")),
    )
    with op.batch_alter_table("packages", schema=None) as batch_op:
        batch_op.create_index("ix_packages_listing", ["project", "created_at", "sha256"], unique=False)

    projects = op.create_table(
        "projects",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_projects")),
    )
    op.create_table(
        "quotas",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("concurrent_jobs", sa.Integer(), nullable=True),
        sa.Column("concurrent_trials", sa.Integer(), nullable=True),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("concurrent_jobs > 0 AND concurrent_trials > 0", name=op.f("positive_quota")),
        sa.PrimaryKeyConstraint("project", name=op.f("pk_quotas")),
    )
    op.create_table(
        "users",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("disabled_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_users")),
    )
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
        "api_keys",
        sa.Column("id", sa.String(length=20), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("user", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("replaced_by", sa.String(length=20), nullable=True),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name=op.f("fk_api_keys_project")),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name=op.f("fk_api_keys_user")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    with op.batch_alter_table("api_keys", schema=None) as batch_op:
        batch_op.create_index("ix_api_keys_expires_at", ["expires_at"], unique=False)
        batch_op.create_index("ix_api_keys_listing", ["project", "created_at", "id"], unique=False)

    op.create_table(
        "attempt_usage",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("trial", sa.String(length=40), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("wall_ns", sa.BigInteger(), nullable=True),
        sa.Column("cpu_ns", sa.BigInteger(), nullable=True),
        sa.Column("memory_peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("gpu_samples", sa.BigInteger(), nullable=True),
        sa.Column("gpu_percent", sa.BigInteger(), nullable=True),
        sa.Column("gpu_memory_peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("data_wait_ns", sa.BigInteger(), nullable=True),
        sa.Column("compute_ns", sa.BigInteger(), nullable=True),
        sa.Column("saves", sa.BigInteger(), nullable=True),
        sa.Column("saved_bytes", sa.BigInteger(), nullable=True),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_attempt_usage_job")),
        sa.PrimaryKeyConstraint("job", "trial", "attempt", name=op.f("pk_attempt_usage")),
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
        sa.Column("market", sa.String(length=20), server_default="on_demand", nullable=False),
        sa.Column("price", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("landed_at", sa.BigInteger(), nullable=True),
        sa.Column("instance_type", sa.String(length=200), nullable=True),
        sa.Column("region", sa.String(length=200), nullable=True),
        sa.Column("machine_price", sa.BigInteger(), nullable=True),
        sa.Column("price_source", sa.Text(), nullable=True),
        sa.Column("cause", sa.String(length=20), nullable=True),
        sa.Column("environment", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_attempts_job")),
        sa.PrimaryKeyConstraint("job", "trial", "attempt", name=op.f("pk_attempts")),
    )
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.create_index("ix_attempts_end", ["end", "cause", "market"], unique=False)

    op.create_table(
        "budget_waits",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("began_at", sa.BigInteger(), nullable=False),
        sa.Column("left_usd", sa.BigInteger(), nullable=False),
        sa.Column("left_gpu_ms", sa.BigInteger(), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_budget_waits_job")),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_budget_waits")),
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
        batch_op.create_index("ix_entries_at", ["project", "at"], unique=False)
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
        "front",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("trial", sa.String(length=40), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("loss", sa.Float(), nullable=False),
        sa.Column("usd", sa.BigInteger(), nullable=False),
        sa.Column("gpu_ms", sa.BigInteger(), nullable=False),
        sa.Column("duration_ns", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_front_job")),
        sa.PrimaryKeyConstraint("job", "trial", "step", name=op.f("pk_front")),
    )
    with op.batch_alter_table("front", schema=None) as batch_op:
        batch_op.create_index(
            "ix_front_best", ["job", "loss", "usd", "duration_ns", "gpu_ms", "seq"], unique=False
        )
        batch_op.create_index(
            "ix_front_cheapest", ["job", "usd", "loss", "duration_ns", "gpu_ms", "seq"], unique=False
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
        sa.Column("tuner_version", sa.String(length=40), nullable=True),
        sa.Column("ray_version", sa.String(length=40), nullable=True),
        sa.Column("python_version", sa.String(length=40), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_launches_job")),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_launches")),
    )
    with op.batch_alter_table("launches", schema=None) as batch_op:
        batch_op.create_index("ix_launches_state", ["state"], unique=False)

    op.create_table(
        "members",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("user", sa.String(length=100), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("role IN ('viewer', 'submitter', 'admin')", name=op.f("role_is_one_there_is")),
        sa.ForeignKeyConstraint(["project"], ["projects.name"], name=op.f("fk_members_project")),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name=op.f("fk_members_user")),
        sa.PrimaryKeyConstraint("project", "user", name=op.f("pk_members")),
    )
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
        batch_op.create_index("ix_reports_seq", ["job", "seq"], unique=False)
        batch_op.create_index("ix_reports_value", ["job", "value"], unique=False)

    op.create_table(
        "self_tests",
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("trainable", sa.String(length=300), nullable=False),
        sa.Column("code", sa.String(length=64), nullable=False),
        sa.Column("passed", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("passed IN (0, 1)", name=op.f("self_test_passed")),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_self_tests_job")),
        sa.PrimaryKeyConstraint("project", "trainable", "code", name=op.f("pk_self_tests")),
    )
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
        batch_op.create_index("ix_trials_state", ["state", "steps"], unique=False)

    op.create_table(
        "warm_starts",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("source", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("until_seq", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_warm_starts_job")),
        sa.ForeignKeyConstraint(["source"], ["jobs.id"], name=op.f("fk_warm_starts_source")),
        sa.PrimaryKeyConstraint("job", "source", name=op.f("pk_warm_starts")),
    )
    op.create_table(
        "budget_holds",
        sa.Column("hold", sa.String(length=120), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("project", sa.String(length=100), nullable=False),
        sa.Column("began_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["hold"], ["holds.id"], name=op.f("fk_budget_holds_hold")),
        sa.PrimaryKeyConstraint("hold", "name", name=op.f("pk_budget_holds")),
    )
    with op.batch_alter_table("budget_holds", schema=None) as batch_op:
        batch_op.create_index("ix_budget_holds_budget", ["project", "name", "began_at"], unique=False)
    op.bulk_insert(projects, [{"name": "default", "created_at": time.time_ns()}])
    if op.get_bind().dialect.name != "sqlite":
        op.execute(
            "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
        )
    _make_append_only("entries", "id = NEW.id OR seq = NEW.seq")
    _make_append_only("events", "job = NEW.job AND seq = NEW.seq")
    _make_append_only("audit_log", "seq = NEW.seq")


def _make_append_only(table: str, same: str) -> None:
    """Create triggers that refuse to change or delete rows of the table, for every database user.

    `same` is the condition under which a new row would replace an existing one.
    """
    if op.get_bind().dialect.name != "sqlite":
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
        )
        return
    refuse = f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
    op.execute(f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} {refuse}")
    op.execute(f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {refuse}")
    # INSERT OR REPLACE deletes without a DELETE trigger.
    known = f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {same})"
    op.execute(f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} {known} {refuse}")


def downgrade() -> None:
    """Drop all tables with their triggers."""
    connection, found = op.get_bind(), sa.MetaData()
    found.reflect(connection)
    found.drop_all(connection, [table for table in found.sorted_tables if table.name != "alembic_version"])
    if connection.dialect.name != "sqlite":
        op.execute("DROP FUNCTION refuse_change")
