"""Test several processes on one account, some of which are killed: the sum is exact, the limit is never
exceeded, and the file is intact.
"""

import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests import books
from tests.store import hammer
from tests.store.builders import JOB, budget, cost, create, new_job
from tests.store.crowd import Process, crowd, process
from tuner.database.database import Database
from tuner.domain.ledger import Account
from tuner.ledger import ledger

PROCESSES = 4


def account(database: Database) -> Account:
    with database.read() as db:
        return ledger.account(db, JOB)


def watch(database: Database, processes: list[Process]) -> None:
    """Check that the account stays within its limit until all processes have ended."""
    while any(running.is_alive() for running in processes):
        seen = account(database)
        assert (seen.posted + seen.held).fits(seen.limit)
        time.sleep(0.01)


def entries(database: Database) -> Counter[str]:
    with database.read() as db:
        return Counter(line.entry for line in ledger.lines(db, JOB, limit=10**6))


def check_books(database: Database) -> None:
    with database.read() as db:
        assert books.faults(db) == []
        assert db.exec_driver_sql("PRAGMA integrity_check").scalars().all() == ["ok"]
        assert db.exec_driver_sql("PRAGMA foreign_key_check").all() == []


def strides(each: int) -> list[tuple[int, int]]:
    """Return the first hold number, and the one after the last, for each process."""
    return [(first * each, (first + 1) * each) for first in range(PROCESSES)]


def test_concurrent_holds_and_settlements_add_up_to_the_exact_sum(database: Database) -> None:
    create(database, new_job(limits=budget(10_000, 10_000)))
    with crowd(hammer.hold_and_settle, database, strides(25)) as processes:
        watch(database, processes)
    assert account(database) == Account(cost(10_000, 10_000), posted=cost(3 * 100, 100))
    assert entries(database) == {"hold": 100, "post": 100, "release": 100}
    check_books(database)


@pytest.mark.parametrize(("usd", "gpu_ms"), [(150, 10_000), (10_000, 70)])
def test_concurrent_holds_beyond_the_budget_get_exactly_what_fits(
    database: Database, usd: int, gpu_ms: int
) -> None:
    create(database, new_job(limits=budget(usd, gpu_ms)))
    with crowd(hammer.only_hold, database, strides(15)) as processes:
        watch(database, processes)
    fit = min(usd // 7, gpu_ms // 3)
    assert account(database) == Account(cost(usd, gpu_ms), held=cost(7 * fit, 3 * fit))
    assert entries(database) == {"hold": fit}
    check_books(database)


def test_concurrent_processes_count_the_same_hold_once(database: Database) -> None:
    create(database, new_job(limits=budget(10_000, 10_000)))
    with crowd(hammer.hold_and_settle, database, [(0, 25)] * PROCESSES) as processes:
        watch(database, processes)
    assert account(database) == Account(cost(10_000, 10_000), posted=cost(3 * 25, 25))
    assert entries(database) == {"hold": 25, "post": 25, "release": 25}
    check_books(database)


def test_killed_process_leaves_only_whole_transactions(database: Database) -> None:
    create(database, new_job(limits=budget(10**9, 10**9)))
    moments = Random(0)
    for number in range(7):
        with process(hammer.hold_for_ever, database, number):
            time.sleep(moments.uniform(0, 0.05))
        check_books(database)
        counts = entries(database)
        turns = counts["hold"] // hammer.HOLDS_A_TRANSACTION
        assert turns > number
        assert counts == {"hold": 4 * turns, "post": 3 * turns, "release": 3 * turns}
        assert account(database).held == cost(7 * turns, 3 * turns)


def test_half_written_transaction_is_rolled_back_by_the_next_reader(
    database: Database,
) -> None:
    create(database, new_job(limits=budget(10**9, 10**9)))
    log = Path(f"{database.url.database}-wal")
    before = log.read_bytes()
    with process(hammer.spill_and_stay, database):
        assert log.read_bytes() != before
    assert account(database) == Account(cost(10**9, 10**9))
    assert entries(database) == {}
    check_books(database)
