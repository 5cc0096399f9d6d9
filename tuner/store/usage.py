"""The measured machine usage of attempts: processor, memory and GPU."""

import json
from dataclasses import asdict

from sqlalchemy import Connection, bindparam, insert, update

from tuner.domain.usage import Usage
from tuner.store.tables import attempt_usage

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
