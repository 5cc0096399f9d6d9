"""The measured machine usage of attempts: processor, memory and GPU."""

import json
from dataclasses import asdict

from sqlalchemy import Connection, insert, update

from tuner.domain.usage import Usage
from tuner.store.tables import attempt_usage


def put(db: Connection, project: str, where: tuple[str, str, int], used: Usage) -> None:
    """Create or replace the usage of an attempt.

    Args:
        where: (job, trial, attempt)
    """
    u = attempt_usage.c
    job, trial, attempt = where
    values = {**asdict(used), "facts": json.dumps(dict(used.facts), allow_nan=False)}
    mine = (u.job == job) & (u.trial == trial) & (u.attempt == attempt)
    if db.execute(update(attempt_usage).where(mine).values(values)).rowcount == 0:
        key = {"job": job, "trial": trial, "attempt": attempt, "project": project}
        db.execute(insert(attempt_usage).values(**key, **values))
