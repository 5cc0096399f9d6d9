"""Attempts and their measured usage: queries, and the conversion to and from rows of their tables."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from tuner.database.prepared import PreparedStatement
from tuner.database.tables import attempt_usage, attempts, same_attempt
from tuner.domain.cost import CostKind
from tuner.domain.environment import Environment
from tuner.domain.money import Cost, Money, Price
from tuner.domain.records import AttemptRow, MachineFound
from tuner.domain.usage import COUNTS, Usage

_A, _U = attempts.c, attempt_usage.c
_UPDATE = PreparedStatement(
    update(attempt_usage).where(
        _U.job == bindparam("of_job"),
        _U.trial == bindparam("of_trial"),
        _U.attempt == bindparam("of_attempt"),
    )
)
_INSERT = PreparedStatement(insert(attempt_usage))
# Fields of an attempt that are stored unchanged, in columns of the same name.
_SAME = [
    "trial",
    "attempt",
    "began_at",
    "ended_at",
    "end",
    "reason",
    "detail",
    "node",
    "from_step",
    "to_step",
    "market",
    "cause",
]
_WITH_USAGE = select(attempts, _U.facts, *(_U[name] for name in COUNTS)).outerjoin(
    attempt_usage, same_attempt(attempt_usage, attempts)
)


def of_trials(db: Connection, job: str, names: Collection[str]) -> Iterator[tuple[AttemptRow, Usage | None]]:
    """Yield every attempt of these trials with its measured usage, ordered by trial and attempt.

    The usage is None if nothing was measured.
    """
    query = _WITH_USAGE.where(_A.job == job, _A.trial.in_(names)).order_by(_A.trial, _A.attempt)
    return _with_usage(db.execute(query))


def newest_ended(db: Connection, job: str, limit: int) -> list[tuple[AttemptRow, Usage | None]]:
    """Return the job's newest `limit` attempts that have ended, oldest first, each with its measured usage.

    The usage is None if nothing was measured.
    """
    ended = _WITH_USAGE.where(_A.job == job, _A.ended_at.is_not(None))
    return [*_with_usage(db.execute(ended.order_by(_A.began_at.desc()).limit(limit)))][::-1]


def _with_usage(rows: Iterable[Row[Any]]) -> Iterator[tuple[AttemptRow, Usage | None]]:
    for row in rows:
        columns = dict(row._mapping)
        measured = {name: columns[name] for name in COUNTS}
        usage = None if columns["facts"] is None else Usage(**measured, facts=json.loads(columns["facts"]))
        yield attempt_row(columns), usage


def put(db: Connection, project: str, where: tuple[str, str, int], used: Usage) -> None:
    """Create or replace the recorded usage of an attempt.

    Args:
        where: The attempt, as (job, trial, attempt number).
    """
    job, trial, attempt = where
    values = {**asdict(used), "facts": json.dumps(dict(used.facts), allow_nan=False)}
    mine = {"of_job": job, "of_trial": trial, "of_attempt": attempt}
    if _UPDATE.run(db, {**values, **mine}) == 0:
        key = {"job": job, "trial": trial, "attempt": attempt, "project": project}
        _INSERT.run(db, {**key, **values})


def attempt_row(columns: Mapping[str, Any]) -> AttemptRow:
    sent, machine = columns["environment"], None
    if columns["instance_type"] is not None:
        price = Price(columns["machine_price"])
        machine = MachineFound(columns["instance_type"], columns["region"], price, columns["price_source"])
    return AttemptRow(
        **{name: columns[name] for name in _SAME},
        assigned_at=columns["landed_at"],
        costs={
            kind: Cost(Money(usd), gpu_ms) for kind, (usd, gpu_ms) in json.loads(columns["costs"]).items()
        },
        price=Price(columns["price"]),
        machine=machine,
        environment=None if sent is None else Environment.parse(json.loads(sent)),
    )


def values_of(attempt: AttemptRow) -> dict[str, Any]:
    """Convert an attempt to the columns of its row.

    If the attempt's `machine` or `environment` is None, its columns are left out, so that an update keeps their stored values.
    """
    values = {name: getattr(attempt, name) for name in _SAME if name not in ("trial", "attempt")}
    values |= {
        "costs": costs_text(attempt.costs),
        "price": attempt.price.micro_usd_per_hour,
        "landed_at": attempt.assigned_at,
    }
    if attempt.machine is not None:
        values |= {
            "instance_type": attempt.machine.instance_type,
            "region": attempt.machine.region,
            "machine_price": attempt.machine.price.micro_usd_per_hour,
            "price_source": attempt.machine.source,
        }
    if attempt.environment is not None:
        values["environment"] = json.dumps(attempt.environment.message())
    return values


def costs_text(costs: Mapping[CostKind, Cost]) -> str:
    return json.dumps({kind: (cost.usd.micro_usd, cost.gpu_ms) for kind, cost in costs.items()})
