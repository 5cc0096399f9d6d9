"""Create thousands of copies of a job and its rows."""

from sqlalchemy import Table, text

from tuner.database.database import Database
from tuner.database.ledger_tables import metadata

MOMENTS = {"at", *(f"{what}_at" for what in ("began", "created", "ended", "ends", "heartbeat", "landed"))}
MOMENTS |= {f"{what}_at" for what in ("placed", "started", "submitted", "updated", "wanted")}


def copy_job(database: Database, job: str, count: int, *, name: str = "copy", apart_ns: int = 0) -> None:
    """Copy a job `count` times, each copy `apart_ns` older than the one before. The oldest copy is written first.

    Rows that do not belong to the job alone, such as its shares of shared budgets, are not copied.
    """
    with database.write() as db:
        if database.is_sqlite:
            db.execute(text("PRAGMA defer_foreign_keys = ON"))
        for table in metadata.sorted_tables:
            if "job" in table.c or table.name == "jobs":
                db.execute(
                    text(_copying(table)), {"job": job, "count": count, "name": name, "apart": apart_ns}
                )


def _copying(table: Table) -> str:
    suffix = "CAST(:name AS TEXT) || CAST(n AS TEXT)"
    own = {"job": f"'job_' || {suffix}"}
    own["id"] = own["job"] if table.name == "jobs" else f"id || {suffix}"
    names = [column.name for column in table.c if not (table.name == "entries" and column.name == "seq")]
    own |= {name: f'"{name}" - n * CAST(:apart AS BIGINT)' for name in names if name in MOMENTS}
    quoted = ", ".join(f'"{name}"' for name in names)
    values = ", ".join(own.get(name, f'"{name}"') for name in names)
    whose = "id" if table.name == "jobs" else "job"
    series = (
        "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < CAST(:count AS INTEGER))"
    )
    # The rows of one copy are written together, as a driver writes them. Otherwise PostgreSQL may scatter them over the table.
    order = ", ".join(["n DESC", *(f'"{table.name}"."{column.name}"' for column in table.primary_key)])
    rows = f'SELECT {values} FROM s, "{table.name}" WHERE "{whose}" = :job ORDER BY {order}'
    return f'{series} INSERT INTO "{table.name}" ({quoted}) {rows}'
