"""The front of each job: the reports that no other report of the job beats, in which `best` searches"""

import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0005"
PAGE = 5000


def upgrade() -> None:
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
    db = op.get_bind()
    for job, spec in db.execute(sa.text("SELECT id, spec FROM jobs")).all():
        minimised = json.loads(spec)["value"]["objective"]["mode"] == "min"
        if found := list(_front(db, job, 1.0 if minimised else -1.0)):
            db.execute(INSERT, found)


INSERT = sa.text(
    "INSERT INTO front (job, trial, step, project, loss, usd, gpu_ms, duration_ns, seq) "
    "VALUES (:job, :trial, :step, :project, :loss, :usd, :gpu_ms, :duration_ns, :seq)"
)


def _front(db: sa.Connection, job: str, sign: float) -> Iterator[dict[str, Any]]:
    """Yield the reports that no other one beats. The best metric is read first, so only an earlier report can beat a later one."""
    order = sa.text(
        "SELECT trial, step, project, value, usd, gpu_ms, duration_ns, seq FROM reports "
        "WHERE job = :job AND value IS NOT NULL "
        f"ORDER BY value {'ASC' if sign > 0 else 'DESC'}, usd, duration_ns, gpu_ms, seq"
    )
    kept: list[tuple[int, int, int]] = []
    for row in db.execute(order, {"job": job}).yield_per(PAGE):
        beater = next(
            (
                i
                for i, k in enumerate(kept)
                if k[0] <= row.usd and k[1] <= row.gpu_ms and k[2] <= row.duration_ns
            ),
            None,
        )
        if beater is None:
            kept.append((row.usd, row.gpu_ms, row.duration_ns))
            costs = {"usd": row.usd, "gpu_ms": row.gpu_ms, "duration_ns": row.duration_ns, "seq": row.seq}
            where = {"job": job, "trial": row.trial, "step": row.step, "project": row.project}
            yield {**where, **costs, "loss": sign * row.value}
        else:  # move it to the front, because a report that beats one is likely to beat others
            kept.insert(0, kept.pop(beater))


def downgrade() -> None:
    op.drop_table("front")
