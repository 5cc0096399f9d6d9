"""Attempts and their measured usage, converted to and from rows of their tables."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, bindparam, insert, update

from tuner.database.tables import attempt_usage
from tuner.domain.cost import CostKind
from tuner.domain.environment import Environment
from tuner.domain.money import Cost, Money, Price
from tuner.domain.records import AttemptRow, MachineFound
from tuner.domain.usage import Usage

_U = attempt_usage.c
_UPDATE = update(attempt_usage).where(
    _U.job == bindparam("of_job"), _U.trial == bindparam("of_trial"), _U.attempt == bindparam("of_attempt")
)
_INSERT = insert(attempt_usage)


def put(db: Connection, project: str, where: tuple[str, str, int], used: Usage) -> None:
    """Create or replace the usage of an attempt.

    Args:
        where: (job, trial, attempt)
    """
    job, trial, attempt = where
    values = {**asdict(used), "facts": json.dumps(dict(used.facts), allow_nan=False)}
    mine = {"of_job": job, "of_trial": trial, "of_attempt": attempt}
    if db.execute(_UPDATE, {**values, **mine}).rowcount == 0:
        key = {"job": job, "trial": trial, "attempt": attempt, "project": project}
        db.execute(_INSERT, {**key, **values})


def attempt_row(found: Mapping[str, Any]) -> AttemptRow:
    costs = {kind: Cost(Money(usd), gpu_ms) for kind, (usd, gpu_ms) in json.loads(found["costs"]).items()}
    names = (
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
    )
    price, machine = Price(found["price"]), _machine(found)
    sent = found["environment"]
    return AttemptRow(
        **{name: found[name] for name in names},
        assigned_at=found["landed_at"],
        costs=costs,
        price=price,
        machine=machine,
        environment=None if sent is None else Environment.parse(json.loads(sent)),
    )


def _machine(found: Mapping[str, Any]) -> MachineFound | None:
    if found["instance_type"] is None:
        return None
    price = Price(found["machine_price"])
    return MachineFound(found["instance_type"], found["region"], price, found["price_source"])


def _machine_values(machine: MachineFound | None) -> dict[str, Any]:
    if machine is None:
        return {}
    return {
        "instance_type": machine.instance_type,
        "region": machine.region,
        "machine_price": machine.price.micro_usd_per_hour,
        "price_source": machine.source,
    }


def values_of(attempt: AttemptRow) -> dict[str, Any]:
    return {
        "began_at": attempt.began_at,
        "ended_at": attempt.ended_at,
        "end": attempt.end,
        "reason": attempt.reason,
        "detail": attempt.detail,
        "node": attempt.node,
        "from_step": attempt.from_step,
        "to_step": attempt.to_step,
        "costs": costs_text(attempt.costs),
        "market": attempt.market,
        "price": attempt.price.micro_usd_per_hour,
        "landed_at": attempt.assigned_at,
        "cause": attempt.cause,
        **_machine_values(attempt.machine),
        **({} if attempt.environment is None else {"environment": json.dumps(attempt.environment.message())}),
    }


def costs_text(costs: Mapping[CostKind, Cost]) -> str:
    return json.dumps({kind: (cost.usd.micro_usd, cost.gpu_ms) for kind, cost in costs.items()})
