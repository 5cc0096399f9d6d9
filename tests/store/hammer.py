"""Functions ("acts") that the store's tests run in other processes: see tests/store/crowd.py.

Each act sends a message over its connection when it is ready. Acts with a fixed amount of work begin when they
receive a message.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from multiprocessing.connection import Connection
from random import Random

from sqlalchemy import select

from tests.store.builders import JOB, PROJECT, cost, hold
from tuner.database import postgresql
from tuner.database.database import Database
from tuner.domain.errors import Fenced, Unavailable
from tuner.domain.money import FREE
from tuner.domain.time import NS, Instant, system_now
from tuner.ledger import ledger, shared_budgets
from tuner.service.leading import Leading, Term
from tuner.store import launches

HELD, USED = cost(7, 3), cost(3, 1)
HOLDS_A_TRANSACTION = 4
FIRST_OF_A_VICTIM = 1_000_000
CONTINUE, REFUSED = signal.SIGCONT, 7


def hold_and_settle(test: Connection, url: str, first: int, last: int) -> None:
    """Place and settle one hold after another. Holds that do not fit are skipped."""
    for database, number in _slices(test, url, first, last):
        with database.write() as db:
            fits = ledger.place(db, PROJECT, JOB, hold(number, HELD))
        if fits:
            with database.write() as db:
                ledger.settle(db, PROJECT, JOB, hold(number, HELD).id, {"train": USED}, Instant(0))


def only_hold(test: Connection, url: str, first: int, last: int) -> None:
    """Place holds and never release them."""
    for database, number in _slices(test, url, first, last):
        with database.write() as db:
            ledger.place(db, PROJECT, JOB, hold(number, HELD))


def only_hold_for(test: Connection, url: str, job: int, count: int) -> None:
    """Place holds for the given job and never release them."""
    name = f"job_{job:016}"
    for database, number in _slices(test, url, 0, count):
        with database.write() as db:
            ledger.place(db, PROJECT, name, hold(number, HELD, job=name))


def renew_for(test: Connection, url: str, job: int, count: int) -> None:
    """Renew holds as a job's driver does: settle one and place the next within what is left, in one
    transaction.
    """
    name, held = f"job_{job:016}", None
    for database, number in _slices(test, url, 0, count):
        with database.write() as db:
            freed = FREE if held is None else held.cost - USED
            own = ledger.account(db, name).left + freed
            freeing = "" if held is None else held.id
            allowed = shared_budgets.allowance(
                db, PROJECT, name, Instant(0), own, freeing=freeing, freed=freed
            )
            if held is not None:
                ledger.settle(db, PROJECT, name, held.id, {"train": USED}, Instant(number))
            fits = HELD.fits(allowed.left)
            held = replace(hold(number, HELD, job=name), placed_at=Instant(0)) if fits else None
            assert held is None or ledger.place(db, PROJECT, name, held)


def _slices(test: Connection, url: str, first: int, last: int) -> Iterator[tuple[Database, int]]:
    database = Database(url)
    _wait(test)
    for number in range(first, last):
        yield database, number
    database.dispose()


def migrate(test: Connection, url: str) -> None:
    database = Database(url)
    _wait(test)
    database.migrate()
    database.dispose()


def hold_for_ever(test: Connection, url: str, victim: int) -> None:
    """Run transactions of four holds, three of which are settled, until the process is killed."""
    database = Database(url)
    for turn in count():
        first = (victim + 1) * FIRST_OF_A_VICTIM + turn * HOLDS_A_TRANSACTION
        with database.write() as db:
            for number in range(first, first + HOLDS_A_TRANSACTION):
                ledger.place(db, PROJECT, JOB, hold(number, HELD))
                if number > first:
                    ledger.settle(db, PROJECT, JOB, hold(number, HELD).id, {"train": USED}, Instant(turn))
        if turn == 0:
            test.send("committed")


def spill_and_stay(test: Connection, url: str) -> None:
    """Write half of a transaction to the database file and never commit it."""
    database = Database(url)
    with database.write() as db:
        db.exec_driver_sql("PRAGMA cache_size = 2")  # pages; what does not fit is written before the commit
        for number in range(400):
            ledger.place(db, PROJECT, JOB, hold(number, HELD))
        _wait(test)


def lead(test: Connection, url: str, seed: int, terms: int) -> None:
    """Lead `terms` times, with a clock that jumps ahead. Each time, try to write with the term after giving it
    up.
    """
    rng, database, ahead = Random(seed), Database(url), 0

    def now() -> Instant:
        return Instant(time.time_ns() + ahead * NS)

    _wait(test)
    for _ in range(terms):
        leading = Leading(database, now)
        while (term := leading.term()) is None:
            ahead += 1
            time.sleep(0.01)
        for late in [False] * 10 + [True] * 5:
            if late:
                leading.give_up()
            with suppress(Fenced):
                _note(leading, term)
            time.sleep(rng.choice((0, 0, 0, 0.01)))
        ahead += rng.randrange(5)
    database.dispose()


def stop_in_a_write(test: Connection, url: str) -> None:
    """Begin a write as the leader and stop in the middle of it. The exit status says whether the write was
    refused afterwards.
    """
    database = Database(url)
    leading = Leading(database, system_now)
    while (term := leading.term()) is None:
        time.sleep(0.05)
    try:
        with leading.write(term) as db:
            db.exec_driver_sql(f"INSERT INTO written (token, holder) VALUES ({term.token}, 'stopped')")
            test.send("stops")
            os.kill(os.getpid(), signal.SIGSTOP)
    except Unavailable:
        sys.exit(REFUSED)


def stop_in_a_turn(test: Connection, url: str, idle_ms: int) -> None:
    """Begin a turn as the driver of launch 1 and stop in the middle of it. The server waits `idle_ms` for the next statement.

    The exit status says whether the turn was rolled back.
    """
    postgresql.WRITE_IDLE_MS = idle_ms
    try:
        with Database(url).write() as db:
            launches.check(db, JOB, 1)
            test.send("stops")
            os.kill(os.getpid(), signal.SIGSTOP)
            db.execute(select(1))
    except Unavailable:
        sys.exit(REFUSED)


def _note(leading: Leading, term: Term) -> None:
    with leading.write(term) as db:
        db.exec_driver_sql(f"INSERT INTO written (token, holder) VALUES ({term.token}, '{leading.holder}')")


def _wait(test: Connection) -> None:
    test.send("ready")
    test.recv()
