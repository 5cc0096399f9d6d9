"""Journal transactions that make a single change each, and a summary of a journal's content."""

from collections.abc import Mapping

from tests.store.builders import JOB, PROJECT, cost, create, hold, new_job
from tuner.database.database import Database
from tuner.domain.budget import Budget
from tuner.domain.cost import CostKind
from tuner.domain.events import Event
from tuner.domain.job import JobState
from tuner.domain.money import Cost
from tuner.domain.records import AttemptRow, CheckpointRow, OpenHold, ReportRow
from tuner.domain.time import Instant
from tuner.driver.ports import Journal
from tuner.simulator.journal import MemoryJournal
from tuner.store import jobs
from tuner.store.journal import SqlJournal

AT = Instant(9)
FIRST, SECOND = "trial_00000", "trial_00001"


def in_memory(limits: Budget) -> Journal:
    return MemoryJournal(JOB, limits)


def in_sql(database: Database, limits: Budget) -> Journal:
    """Return a journal of a running job."""
    create(database, new_job(limits=limits))
    with database.write() as db:
        jobs.move(db, JOB, "running", None, at=Instant(0))
    return SqlJournal(database, JOB, PROJECT, 1, Instant(0))


def append(journal: Journal, event: Event) -> int:
    with journal.transaction() as tx:
        return tx.append(event)


def place(journal: Journal, wanted: OpenHold) -> bool:
    with journal.transaction() as tx:
        return tx.hold(wanted)


def settle(journal: Journal, name: str, used: Mapping[CostKind, Cost]) -> None:
    with journal.transaction() as tx:
        tx.settle(name, used, at=AT)


def correct(journal: Journal, name: str, costs: Mapping[CostKind, Cost]) -> None:
    with journal.transaction() as tx:
        tx.correct(name, trial=FIRST, attempt=1, costs=costs, at=AT)


def posted(journal: Journal, trial: str = FIRST, attempt: int = 1) -> dict[CostKind, Cost]:
    with journal.transaction() as tx:
        return {kind: amount for kind, amount in tx.posted(trial, attempt).items() if not amount.nothing}


def spend(journal: Journal, number: int, used: Mapping[CostKind, Cost], **where: int) -> None:
    spent = hold(number, cost(30, 30), **where)  # type: ignore[arg-type]
    assert place(journal, spent)
    settle(journal, spent.id, used)


def put_report(journal: Journal, report: ReportRow) -> bool:
    with journal.transaction() as tx:
        return tx.put_report(report)


def put_attempt(journal: Journal, attempt: AttemptRow) -> None:
    with journal.transaction() as tx:
        tx.put_attempt(attempt)


def put_checkpoint(journal: Journal, trial: str, step: int, uri: str = "s3://a") -> None:
    with journal.transaction() as tx:
        tx.put_checkpoint(CheckpointRow(trial, step, 1, uri, 10, 0.5, AT))


def forget_checkpoints(journal: Journal, trial: str, *, after_step: int) -> None:
    with journal.transaction() as tx:
        tx.forget_checkpoints(trial, after_step=after_step)


def put_job(journal: Journal, state: JobState) -> None:
    with journal.transaction() as tx:
        tx.put_job(state, None, at=AT)


def report(step: int = 1, value: float | None = 0.5, usd: int = 3, trial: str = FIRST) -> ReportRow:
    return ReportRow(trial, 1, step, AT, value, {"acc": value}, cost(usd, 2 * usd), 1000 * usd)


def set_limit(journal: Journal, limits: Budget) -> None:
    with journal.transaction() as tx:
        tx.set_limit(limits)


def seen(journal: Journal) -> list[object]:
    return [
        list(journal.events()),
        journal.open_holds(),
        journal.attempts(),
        journal.newest_checkpoints(),
        journal.account(),
    ]
