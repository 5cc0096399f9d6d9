"""Read the state of a deployment after a run: from the database, read-only and past the proxies, from REST, and
from its processes.
"""

from collections.abc import Callable
from typing import Any

from tests.chaos.checker import After, Entry, Found, Report
from tests.chaos.deployment import Deployment
from tests.system.books import Amount, amount
from tuner.client import ApiError, Client
from tuner.database.sqlite import sqlite3

Rows = list[tuple[Any, ...]]
Read = Callable[[str], Rows]


def reader(deployment: Deployment) -> Read:
    if deployment.database is not None:
        import psycopg

        server = psycopg.connect(deployment.database.direct, options="-c default_transaction_read_only=on")
        return lambda query: server.execute(query).fetchall()  # type: ignore[call-overload,no-any-return]
    file = sqlite3.connect(f"file:{deployment.disk.folder}/tuner.db?mode=ro", uri=True, timeout=30)
    return lambda query: file.execute(query).fetchall()


def states(read: Read) -> dict[str, str]:
    return dict(read("SELECT id, state FROM jobs"))


def attempts(read: Read) -> dict[tuple[str, str, int], int]:
    """Return the attempt that reported each (job, trial, step)."""
    return {
        (job, trial, step): n for job, trial, step, n in read("SELECT job, trial, step, attempt FROM reports")
    }


def after(deployment: Deployment, read: Read) -> After:
    keys = [(key, job) for key, job in read("SELECT key, job FROM idempotency")]
    with deployment.client(0) as client:
        jobs_after = [
            _found(client, read, row)
            for row in read(
                "SELECT j.id, j.state, a.limit_usd, a.limit_gpu_ms, a.posted_usd, a.posted_gpu_ms, a.held_usd, a.held_gpu_ms "
                "FROM jobs j JOIN accounts a ON a.job = j.id ORDER BY j.created_at"
            )
        ]
    return After(jobs_after, keys, deployment.left())


def _found(client: Client, read: Read, row: tuple[Any, ...]) -> Found:
    name, state, *amounts = row
    its = f"WHERE job = '{name}'"
    entries = read(
        f"SELECT id, entry, kind, trial, attempt, slice, usd, gpu_ms FROM entries {its} ORDER BY seq"
    )
    holds = read(f"SELECT trial, attempt, slice, usd, gpu_ms FROM holds {its} AND state = 'open'")
    reports = read(f"SELECT trial, step, attempt, value FROM reports {its} ORDER BY trial, step")
    ((running,),) = read(f'SELECT count(*) FROM attempts {its} AND "end" IS NULL')
    bill = client.bill(name)
    return Found(
        name,
        state,
        limit=Amount(*amounts[0:2]),
        posted=Amount(*amounts[2:4]),
        held=Amount(*amounts[4:6]),
        entries=[
            Entry(id, entry, kind, (trial, n, part), Amount(*units))
            for id, entry, kind, trial, n, part, *units in entries
        ],
        open_holds=[((trial, n, part), Amount(*units)) for trial, n, part, *units in holds],
        reports=[Report(*report_row) for report_row in reports],
        running=running,
        shown_state=client.job(name).state,
        shown_spend=amount(bill.total_usd, bill.gpu_hours),
        shown_best=_best(client, name),
        shown_curves={
            trial.id: [(point.step, point.metric) for point in client.trial(name, trial.id).curve]
            for trial in client.trials(name)
        },
    )


def _best(client: Client, job: str) -> tuple[str, int, float] | None:
    try:
        best = client.best(job, forecast=False)
    except ApiError as error:
        if error.status != 404:
            raise
        return None
    assert best.metric is not None
    return best.trial, best.step, best.metric
