"""The database tables.

Times are nanoseconds since 1970, money is in micro-dollars, GPU time in milliseconds of one GPU. The `seq` of a trial
or report is the number of the job's event with which it last changed. A client that has read everything up to an event
finds later changes in the rows with a higher `seq`. Every row that belongs to a project names it. Invariants that must hold
even if the code has a bug are constraints on the row. The tables with money are in `tuner.database.ledger_tables`, because
only the ledger may write them.

A new database is created from these definitions, and an existing one is changed by migrations. Therefore every change of a
definition needs a migration that makes the same change.
"""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    Connection,
    Float,
    ForeignKey,
    FromClause,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    event,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def of_project() -> Column[str]:
    return Column("project", String(100), nullable=False)


def of_job(*, primary_key: bool = False) -> Column[str]:
    return Column("job", String(40), ForeignKey("jobs.id"), primary_key=primary_key, nullable=False)


def append_only(table: Table, *, same: str) -> None:
    """Make a table append-only for every database user, by triggers that are created with the table.

    Args:
        same: The SQL condition under which an existing row has the same key as the inserted row, `NEW`. In SQLite, the insertion is then
            refused, because INSERT OR REPLACE would replace the existing row.
    """
    refuse = f"BEGIN SELECT RAISE(ABORT, '{table.name} is append-only'); END"
    # In SQLite, INSERT OR REPLACE deletes rows without firing the DELETE trigger, so another trigger refuses an INSERT that would replace a row.
    is_there = f"WHEN EXISTS (SELECT 1 FROM {table.name} WHERE {same})"
    sqlite = (
        f"CREATE TRIGGER {table.name}_no_update BEFORE UPDATE ON {table.name} {refuse}",
        f"CREATE TRIGGER {table.name}_no_delete BEFORE DELETE ON {table.name} {refuse}",
        f"CREATE TRIGGER {table.name}_no_replace BEFORE INSERT ON {table.name} {is_there} {refuse}",
    )
    postgresql = (
        f"CREATE TRIGGER {table.name}_append_only BEFORE UPDATE OR DELETE ON {table.name} "
        "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
    )

    @event.listens_for(table, "after_create")
    def create_triggers(_table: Table, connection: Connection, **_more: object) -> None:
        for statement in sqlite if connection.dialect.name == "sqlite" else [postgresql]:
            connection.execute(text(statement))


@event.listens_for(metadata, "before_create")
def _create_function(_metadata: MetaData, connection: Connection, **_more: object) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(
            text(
                "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
            )
        )


jobs = Table(
    "jobs",
    metadata,
    Column("id", String(40), primary_key=True),
    of_project(),
    Column("name", String(100), nullable=False),
    Column("trainable", String(300), nullable=False),
    Column("spec", Text, nullable=False),
    Column("budget", Text, nullable=False),
    Column("budget_version", Integer, nullable=False),
    Column("offer", Text, nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("max_concurrent_trials", Integer),  # as the user last set it
    Column("priority", Integer, nullable=False),
    Column("state", String(20), nullable=False),
    Column("stop_reason", String(30)),
    Column("detail", Text, nullable=False),
    Column("wish", String(10)),
    Column("created_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("running_since", BigInteger),
    Column("ran_ns", BigInteger, nullable=False),
    Column("code", String(64)),
    Index("ix_jobs_listing", "project", "created_at", "id"),
    Index("ix_jobs_state", "state"),
    Index("ix_jobs_ended", "ended_at"),
    Index("ix_jobs_started", "started_at", "created_at"),
    Index("ix_jobs_trainable", "project", "trainable", "started_at"),
)

job_tags = Table(
    "job_tags",
    metadata,
    of_job(primary_key=True),
    Column("key", String(100), primary_key=True),
    Column("value", String(300), nullable=False),
    of_project(),
    Index("ix_job_tags_value", "project", "key", "value"),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("body_sha256", String(64), nullable=False),
    of_job(),
    Column("created_at", BigInteger, nullable=False),
)

launches = Table(
    "launches",
    metadata,
    of_job(primary_key=True),
    of_project(),
    Column("epoch", Integer, nullable=False),
    Column("state", String(20), nullable=False),
    Column("wanted_at", BigInteger, nullable=False),
    Column("submitted_at", BigInteger),
    Column("heartbeat_at", BigInteger),
    Column("quick_deaths", Integer, nullable=False),
    Column("not_before", BigInteger, nullable=False),
    Column("tuner_version", String(40)),
    Column("ray_version", String(40)),
    Column("python_version", String(40)),
    Index("ix_launches_state", "state"),
)

trials = Table(
    "trials",
    metadata,
    of_job(primary_key=True),
    Column("trial", String(40), primary_key=True),
    of_project(),
    Column("number", Integer, nullable=False),
    Column("config", Text, nullable=False),
    Column("state", String(20), nullable=False),
    Column("reason", Text, nullable=False),
    Column("steps", Integer, nullable=False),
    Column("value", Float),
    # The total violation of the constraints in the report that `value` comes from.
    Column("violation", Float, server_default="0"),
    Column("seq", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Index("ix_trials_number", "job", "number", unique=True),
    Index("ix_trials_seq", "job", "seq"),
    Index("ix_trials_state", "state", "steps"),
)

attempts = Table(
    "attempts",
    metadata,
    of_job(primary_key=True),
    Column("trial", String(40), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    of_project(),
    Column("began_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("end", String(20)),
    Column("reason", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("node", String(100), nullable=False),
    Column("from_step", Integer, nullable=False),
    Column("to_step", Integer, nullable=False),
    Column("costs", Text, nullable=False),
    Column("market", String(20), nullable=False, server_default="on_demand"),
    Column("price", BigInteger, nullable=False, server_default="0"),
    Column("landed_at", BigInteger),  # when a node was assigned to the attempt; billing begins here
    Column("instance_type", String(200)),
    Column("region", String(200)),
    Column("machine_price", BigInteger),
    Column("price_source", Text),
    Column("cause", String(20)),
    Column("environment", Text),
    Index("ix_attempts_end", "end", "cause", "market"),
    Index("ix_attempts_ended_at", "ended_at"),
)

attempt_usage = Table(
    "attempt_usage",
    metadata,
    of_job(primary_key=True),
    Column("trial", String(40), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    of_project(),
    Column("wall_ns", BigInteger),
    Column("cpu_ns", BigInteger),
    Column("memory_peak_bytes", BigInteger),
    Column("gpu_samples", BigInteger),
    Column("gpu_percent", BigInteger),
    Column("gpu_memory_peak_bytes", BigInteger),
    Column("data_wait_ns", BigInteger),
    Column("compute_ns", BigInteger),
    Column("saves", BigInteger),
    Column("saved_bytes", BigInteger),
    Column("restored_bytes", BigInteger),
    Column("artifact_bytes", BigInteger),
    Column("data_read_bytes", BigInteger),
    Column("data_bucket_bytes", BigInteger),
    Column("facts", Text, nullable=False),
)

reports = Table(
    "reports",
    metadata,
    of_job(primary_key=True),
    Column("trial", String(40), primary_key=True),
    Column("step", Integer, primary_key=True),
    of_project(),
    Column("attempt", Integer, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("value", Float),
    # The total violation of the job's constraints: 0 for a feasible report, NULL if one of their metrics is missing.
    Column("violation", Float, server_default="0"),
    Column("metrics", Text, nullable=False),
    Column("usd", BigInteger, nullable=False),
    Column("gpu_ms", BigInteger, nullable=False),
    Column("duration_ns", BigInteger, nullable=False),
    Column("seq", Integer, nullable=False),
    Index("ix_reports_value", "job", "value"),
    Index("ix_reports_seq", "job", "seq"),
)

# The Pareto front of each job: the reports that no other report beats in both the cost and the one or two metrics of the objectives.
# `tuner.store.pareto_front` updates it with each row of `reports`.
front = Table(
    "front",
    metadata,
    of_job(primary_key=True),
    Column("trial", String(40), primary_key=True),
    Column("step", Integer, primary_key=True),
    of_project(),
    Column("loss", Float, nullable=False),
    # The metric of the second objective as a loss. It is 0 if the job has none.
    Column("second_loss", Float, nullable=False, server_default="0"),
    Column("usd", BigInteger, nullable=False),
    Column("gpu_ms", BigInteger, nullable=False),
    Column("duration_ns", BigInteger, nullable=False),
    Column("seq", Integer, nullable=False),
    Index("ix_front_best", "job", "loss", "usd", "second_loss", "duration_ns", "gpu_ms", "seq"),
    Index("ix_front_cheapest", "job", "usd", "loss", "second_loss", "duration_ns", "gpu_ms", "seq"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    of_job(primary_key=True),
    Column("trial", String(40), primary_key=True),
    Column("step", Integer, primary_key=True),
    of_project(),
    Column("attempt", Integer, nullable=False),
    Column("uri", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("at", BigInteger, nullable=False),
)

events = Table(
    "events",
    metadata,
    of_job(primary_key=True),
    Column("seq", Integer, primary_key=True),
    of_project(),
    Column("at", BigInteger, nullable=False),
    Column("type", String(20), nullable=False),
    Column("body", Text, nullable=False),
)
append_only(events, same="job = NEW.job AND seq = NEW.seq")

# Requests of users about single trials. The driver records each request as an event that contains the request's number.
trial_requests = Table(
    "trial_requests",
    metadata,
    of_job(primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    of_project(),
    Column("at", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
)

warm_starts = Table(
    "warm_starts",
    metadata,
    of_job(primary_key=True),
    Column("source", String(40), ForeignKey("jobs.id"), primary_key=True),
    of_project(),
    Column("number", Integer, nullable=False),
    Column("until_seq", Integer, nullable=False),
)

teachers = Table(
    "teachers",
    metadata,
    of_job(primary_key=True),
    Column("source", String(40), ForeignKey("jobs.id"), nullable=False),
    of_project(),
)

self_tests = Table(
    "self_tests",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("trainable", String(300), primary_key=True),
    Column("code", String(64), primary_key=True),
    Column("passed", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    of_job(),
    Column("at", BigInteger, nullable=False),
    CheckConstraint("passed IN (0, 1)", name="self_test_passed"),
)

exports = Table(
    "exports",
    metadata,
    of_job(primary_key=True),
    Column("export", String(20), primary_key=True),
    of_project(),
    Column("trial", String(40), nullable=False),
    Column("step", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("wanted", Text, nullable=False),
    Column("state", String(20), nullable=False),
    Column("code", String(40)),
    Column("detail", Text, nullable=False),
    Column("offer", Text),
    Column("result", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("submitted_at", BigInteger),
    Column("heartbeat_at", BigInteger),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    CheckConstraint("state IN ('queued', 'running', 'succeeded', 'failed')", name="export_state"),
    Index("ix_exports_state", "state"),
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("holder", String(100), nullable=False),
    Column("until", BigInteger, nullable=False),
)

leadership = Table(
    "leadership",
    metadata,
    Column("role", String(40), primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("holder", String(100), nullable=False),
    Column("version", String(40), nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
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
append_only(audit_log, same="seq = NEW.seq")


deliveries = Table(
    "deliveries",
    metadata,
    Column("id", String(80), primary_key=True),
    of_project(),
    Column("name", String(100), nullable=False),
    Column("url", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("state", String(12), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("next_at", BigInteger, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("answer", Text, nullable=False),
    CheckConstraint("state IN ('pending', 'delivered', 'given_up')", name="delivery_state"),
    Index("ix_deliveries_due", "state", "next_at"),
    Index("ix_deliveries_budget", "project", "name", "created_at"),
)
# `hour` counts hours since 1970 UTC. `price` is in micro-dollars per hour of a whole machine.
cluster_hours = Table(
    "cluster_hours",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("instance_type", String(200), primary_key=True),
    Column("market", String(20), primary_key=True),
    Column("price", BigInteger, primary_key=True, autoincrement=False),
    Column("alive_ms", BigInteger, nullable=False),
    Column("idle_ms", BigInteger, nullable=False),
)

# How much of each hour was observed, and the time of machines whose price is unknown.
cluster_watch = Table(
    "cluster_watch",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("watched_ms", BigInteger, nullable=False),
    Column("unpriced_ms", BigInteger, nullable=False),
)

# When observation began, and until when machine time has been counted.
cluster_clock = Table(
    "cluster_clock",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("since", BigInteger, nullable=False),
    Column("until", BigInteger, nullable=False),
)
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
# Trials whose checkpoints and artifacts are being removed from the storage. The files of attempts up to `up_to_attempt` are
# removed. The row is deleted after the last file.
removals = Table(
    "removals",
    metadata,
    of_job(primary_key=True),
    Column("trial", String(40), primary_key=True),
    of_project(),
    Column("up_to_attempt", Integer, nullable=False),
    Column("ordered_at", BigInteger, nullable=False),
)

# The size of a job's files over time. `until` is null in the newest row of a job, which was last measured at `seen_at`.
storage_spans = Table(
    "storage_spans",
    metadata,
    of_job(primary_key=True),
    Column("since", BigInteger, primary_key=True, autoincrement=False),
    of_project(),
    Column("until", BigInteger),
    Column("bytes", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    CheckConstraint("bytes >= 0", name="stored_bytes"),
    Index("ix_storage_spans_project", "project", "until"),
)
quotas = Table(
    "quotas",
    metadata,
    Column("project", String(100), primary_key=True),
    Column("concurrent_jobs", Integer),
    Column("concurrent_trials", Integer),
    Column("updated_at", BigInteger, nullable=False),
    CheckConstraint("concurrent_jobs > 0 AND concurrent_trials > 0", name="positive_quota"),
)


def same_trial(one: FromClause, other: FromClause) -> ColumnElement[bool]:
    """Return the condition that rows of two tables or subqueries belong to the same trial of the same job."""
    return (one.c.job == other.c.job) & (one.c.trial == other.c.trial)


def same_attempt(one: FromClause, other: FromClause) -> ColumnElement[bool]:
    """Return the condition that rows of two tables or subqueries belong to the same attempt of the same trial and job."""
    return same_trial(one, other) & (one.c.attempt == other.c.attempt)


def same_step(one: FromClause, other: FromClause) -> ColumnElement[bool]:
    """Return the condition that rows of two tables or subqueries belong to the same step of the same trial and job."""
    return same_trial(one, other) & (one.c.step == other.c.step)
