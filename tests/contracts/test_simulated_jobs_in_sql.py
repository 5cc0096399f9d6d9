"""Whole simulated jobs with killed drivers end the same with a SQL journal as with one in memory."""

from typing import Any

import pytest

from tests import books
from tests.simulation.test_simulated_jobs import Curves, loop_config, outcome, spec
from tests.store.builders import OFFER, PROJECT, create
from tuner.database.database import Database
from tuner.domain.budget import Budget
from tuner.domain.cost import CostKind
from tuner.domain.money import Cost
from tuner.domain.time import Instant
from tuner.driver.ports import LoopConfig
from tuner.ledger import ledger
from tuner.simulator.journal import MemoryJournal, Tables
from tuner.simulator.world import Faults, SimulatedRun
from tuner.store import jobs
from tuner.store.journal import SqlJournal

FAULTS = Faults(crash=0.05, repeat=0.2, driver_restart=0.05)


class SimulatedSqlJournal(SqlJournal):
    """A SQL journal with the extra methods that a simulated run needs."""

    def __init__(self, database: Database, job: str, budget: Budget) -> None:
        new = jobs.NewJob(job, PROJECT, spec(), OFFER, 2, Instant(0))
        create(database, new)
        with database.write() as db:
            jobs.set_budget(db, job, budget)
            jobs.begin_running(db, job, at=Instant(0))
        super().__init__(database, job, PROJECT, 1, Instant(0))
        self.ran_ns, self.watchers = 0, list[Any]()

    @property
    def tables(self) -> Tables:
        return Tables(self.account())

    def running_ns(self) -> int:
        return self.ran_ns


def run(
    seed: int, job: str = "job_0", limits: str = "0.004", database: Database | None = None
) -> SimulatedRun:
    defaults = loop_config()
    mine = LoopConfig(job, defaults.rate, defaults.concurrency, defaults.slice_ns)
    job_spec = spec(limits, seed=seed)
    sql_journal: Any = None if database is None else SimulatedSqlJournal(database, job, job_spec.budget)
    simulated = SimulatedRun(job_spec, mine, Curves(), faults=FAULTS, seed=seed, journal=sql_journal)
    simulated.run(turns_max=100_000)
    return simulated


def bill_in_memory(journal: object) -> dict[CostKind, Cost]:
    assert isinstance(journal, MemoryJournal)
    sums: dict[CostKind, Cost] = {}
    for entry in journal.tables.entries.values():
        if entry.kind is not None:
            sums[entry.kind] = sums.get(entry.kind, Cost()) + entry.cost
    return {kind: amount for kind, amount in sums.items() if not amount.nothing}


def bill(database: Database, job: str) -> dict[CostKind, Cost]:
    with database.read() as db:
        assert books.faults(db) == []
        sums = ledger.posted_by_kind(db, job)
    return {kind: amount for kind, amount in sums.items() if not amount.nothing}


def check_alike(database: Database, simulated: SimulatedRun, kept: SimulatedRun) -> None:
    assert simulated.restarts == kept.restarts > 0
    assert outcome(kept) == outcome(simulated)
    # Compare texts, because in Python 3.13 dataclasses with NaN in a field are not equal.
    assert [repr(event) for event in kept.journal.events()] == [
        repr(event) for event in simulated.journal.events()
    ]
    assert kept.journal.account() == simulated.journal.account()
    assert bill(database, kept.loop_config.job) == bill_in_memory(simulated.journal)


@pytest.mark.parametrize("seed", [1, 2])
def test_simulated_job_ends_the_same_in_sql_and_in_memory(database: Database, seed: int) -> None:
    check_alike(database, run(seed), run(seed, database=database))


def test_jobs_sharing_a_database_end_the_same_as_alone(database: Database) -> None:
    in_memory = run(0)
    for job in ("job_0", "job_1"):
        check_alike(database, in_memory, run(0, job, database=database))
