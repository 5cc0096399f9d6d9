"""Results of restore self-tests: whether each version of a trainable's code has passed, and why if it has not."""

import hashlib
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from tuner.database.tables import self_tests
from tuner.domain.records import SelfTestRow
from tuner.domain.text import storable
from tuner.domain.time import Instant


def get(db: Connection, project: str, trainable: str, code: str) -> SelfTestRow | None:
    t = self_tests.c
    mine = (t.project == project) & (t.trainable == trainable) & (t.code == code)
    return _self_test(db.execute(select(self_tests).where(mine)).first())


def newest(db: Connection, project: str, trainable: str) -> SelfTestRow | None:
    """Return the result of the trainable's newest self-test, or None if the trainable was never tested."""
    t = self_tests.c
    mine = (t.project == project) & (t.trainable == trainable)
    return _self_test(db.execute(select(self_tests).where(mine).order_by(t.at.desc()).limit(1)).first())


def _self_test(row: Row[Any] | None) -> SelfTestRow | None:
    if row is None:
        return None
    return SelfTestRow(row.trainable, row.code, bool(row.passed), row.reason, row.job, Instant(row.at))


def as_submitted(seen: str) -> str:
    """Return the key (`SelfTestRow.code`) under which the service finds the self-test result of a trainable when a job is submitted.

    Each result is stored under two keys. Drivers find the result under the digest of the code on the cluster, where the test ran. The
    service cannot compute this digest. It finds the result under the key that this function derives from the digest of its own files.

    Args:
        seen: Digest of the trainable's code in the service's files.
    """
    return hashlib.sha256(f"at the door {seen}".encode()).hexdigest()


def put(db: Connection, project: str, result: SelfTestRow) -> None:
    """Record the result of a self-test. Replace an earlier result for the same code."""
    t = self_tests.c
    mine = (t.project == project) & (t.trainable == result.trainable) & (t.code == result.code)
    reason = storable(result.reason)  # it may contain the message of an error in user code
    values = {"passed": int(result.passed), "reason": reason, "job": result.job, "at": result.at}
    replace = update(self_tests).where(mine).values(values)
    if db.execute(replace).rowcount:
        return
    key = {"project": project, "trainable": result.trainable, "code": result.code}
    try:
        with db.begin_nested():
            db.execute(insert(self_tests).values(**key, **values))
    except IntegrityError:  # A self-test of the same code in another job has just ended.
        db.execute(replace)


def refusal(reason: str) -> str:
    """Return the error text for a job that requests spot machines although its trainable failed the restore self-test."""
    return (
        f"the trainable failed the restore self-test that spot machines require: {reason}. "
        "Use on_demand, or fix the trainable: changed code is tested again"
    )
