"""How a job's best rose with its spend, and how far each of its trials came for how much."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, func, select, tuple_

from tuner.domain.events import Reported
from tuner.domain.money import Money
from tuner.domain.objective import Mode
from tuner.domain.trial import TrialState
from tuner.store.codec import decode
from tuner.store.database import Database
from tuner.store.tables import entries, events, reports, trials

PAGE = 10_000


@dataclass(frozen=True, slots=True)
class Improvement:
    """A report that was better than all before it; `spent` is what the job had spent by then."""

    spent: Money
    value: float
    trial: str
    step: int


@dataclass(frozen=True, slots=True)
class Trained:
    """A trial's reports with a metric, ascending by step: (step, value, micro-dollars up to it). `setup` is what of these was spent
    before the first step."""

    state: TrialState
    setup: int
    curve: tuple[tuple[int, float, int], ...]


def newest_event(db: Connection, job: str) -> int:
    return db.execute(select(func.max(events.c.seq)).where(events.c.job == job)).scalar() or 0


def improvements(db: Connection, job: str, mode: Mode) -> list[Improvement]:
    """In the order in which they were reported; `spent` never falls."""
    r, e = reports.c, events.c
    best = func.max(r.value) if mode == "max" else func.min(r.value)
    before = best.over(order_by=(r.seq, r.step), rows=(None, -1))
    ranked = (
        select(r.trial, r.step, r.value, r.seq, before.label("before"))
        .where(r.job == job, r.value.is_not(None))
        .subquery()
    )
    n = ranked.c
    better = n.value > n.before if mode == "max" else n.value < n.before
    query = (
        select(n.trial, n.step, n.value, e.body)
        .join(events, (e.job == job) & (e.seq == n.seq))
        .where(n.before.is_(None) | better)
        .order_by(n.seq, n.step)
    )
    found: list[Improvement] = []
    for row in db.execute(query):
        event = decode(row.body)
        assert isinstance(event, Reported)
        spent = max(event.spent, found[-1].spent) if found else event.spent
        found.append(Improvement(spent, row.value, row.trial, row.step))
    return found


def trained(database: Database, job: str, *, until_seq: int) -> list[Trained]:
    """Every trial that had reported a metric by event `until_seq`, by number.

    Read by pages, since with a rollback journal nobody can commit while somebody reads.
    """
    e, t = entries.c, trials.c
    setups = (
        select(e.trial, e.attempt, func.sum(e.usd).label("usd"))
        .where(e.job == job, e.kind == "setup")
        .group_by(e.trial, e.attempt)
    )
    with database.read() as db:
        setup = {(row.trial, row.attempt): int(row.usd) for row in db.execute(setups)}
        known = db.execute(select(t.trial, t.number, t.state).where(t.job == job)).all()
    found = {}
    for trial, rows in groupby(_reports(database, job, until_seq), key=lambda row: str(row.trial)):
        curve = list(rows)
        begun = min(setup.get((trial, curve[0].attempt), 0), curve[0].usd)
        found[trial] = begun, tuple((row.step, row.value, row.usd) for row in curve)
    ordered = sorted((row.number, row.state, row.trial) for row in known if row.trial in found)
    return [Trained(state, *found[trial]) for _, state, trial in ordered]


def _reports(database: Database, job: str, until_seq: int) -> Iterator[Any]:
    """With a metric, by trial and step."""
    r = reports.c
    counts = (r.job == job) & (r.seq <= until_seq) & r.value.is_not(None)
    query = select(r.trial, r.step, r.attempt, r.value, r.usd).where(counts).order_by(r.trial, r.step)
    last: tuple[str, int] | None = None
    while True:
        page = query if last is None else query.where(tuple_(r.trial, r.step) > last)
        with database.read() as db:
            rows = db.execute(page.limit(PAGE)).all()
        yield from rows
        if len(rows) < PAGE:
            return
        last = (rows[-1].trial, rows[-1].step)
