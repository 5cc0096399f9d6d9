"""Queries for the advice about a job: its attempts with their measured usage and cost, and its metrics at given steps."""

import json
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, and_, bindparam, func, select

from tuner.domain.cost import CostKind
from tuner.domain.money import Money
from tuner.domain.records import AttemptRow
from tuner.domain.trial import TrialState
from tuner.domain.usage import COUNTS, Usage
from tuner.store.attempt_rows import attempt_row
from tuner.store.tables import attempt_usage, attempts, entries, reports, self_tests, trials


def attempts_of(
    db: Connection, job: str, names: Collection[str]
) -> Iterator[tuple[AttemptRow, Usage | None]]:
    """Yield every attempt of these trials with its measured usage, ordered by trial and attempt.

    The usage is None if nothing was measured.
    """
    for row in db.execute(_attempts(), {"of": job, "trials": list(names)}):
        found = dict(row._mapping)
        facts = found["used_facts"]
        measured = {name: found[f"used_{name}"] for name in COUNTS}
        yield attempt_row(found), None if facts is None else Usage(**measured, facts=json.loads(facts))


@cache
def _attempts() -> Select[Any]:
    a, u = attempts.c, attempt_usage.c
    same = and_(u.job == a.job, u.trial == a.trial, u.attempt == a.attempt)
    counts = [u[name].label(f"used_{name}") for name in COUNTS]
    return (
        select(attempts, u.facts.label("used_facts"), *counts)
        .outerjoin(attempt_usage, same)
        .where(a.job == bindparam("of"), a.trial.in_(bindparam("trials", expanding=True)))
        .order_by(a.trial, a.attempt)
    )


def trials_of(db: Connection, job: str) -> dict[str, tuple[TrialState, int]]:
    """Return the state of each trial and the last step that it reported (0 if it has not reported)."""
    t = trials.c
    rows = db.execute(select(t.trial, t.state, t.steps).where(t.job == job))
    return {trial: (state, steps) for trial, state, steps in rows}


def values_at(
    db: Connection, job: str, names: Collection[str], steps: Collection[int]
) -> Iterator[tuple[str, int, float | None, Money]]:
    """Yield (trial, step, metric, dollars spent up to the step) for each report of these trials at these steps."""
    r = reports.c
    query = select(r.trial, r.step, r.value, r.usd).where(r.job == job, r.trial.in_(names), r.step.in_(steps))
    for trial, step, value, usd in db.execute(query.order_by(r.trial, r.step)):
        yield trial, step, value, Money(usd)


def self_test(db: Connection, project: str, trainable: str) -> tuple[bool, str] | None:
    """Return the newest restore self-test of the trainable: whether it passed, and if not, why.

    Return None if the trainable was never tested.
    """
    t = self_tests.c
    mine = (t.project == project) & (t.trainable == trainable)
    row = db.execute(select(t.passed, t.reason).where(mine).order_by(t.at.desc()).limit(1)).first()
    return None if row is None else (bool(row.passed), row.reason)


def bills(db: Connection, job: str, names: Collection[str]) -> dict[tuple[str, int], dict[CostKind, Money]]:
    """Return what each attempt of these trials was billed, by kind of cost. Keys are (trial, attempt)."""
    e = entries.c
    query = (
        select(e.trial, e.attempt, e.kind, func.sum(e.usd))
        .where(e.job == job, e.trial.in_(names), e.kind.is_not(None))
        .group_by(e.trial, e.attempt, e.kind)
    )
    found: dict[tuple[str, int], dict[CostKind, Money]] = {}
    for trial, attempt, kind, usd in db.execute(query):
        found.setdefault((trial, attempt), {})[kind] = Money(int(usd))
    return found
