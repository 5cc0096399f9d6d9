"""Fixtures: one journal of each implementation."""

import pytest

from tests.contracts.turns import in_memory, in_sql
from tests.store.builders import budget
from tuner.database.database import Database
from tuner.driver.ports import Journal


@pytest.fixture(params=["memory", "sql"])
def journal(request: pytest.FixtureRequest) -> Journal:
    """A journal with a budget of 100 micro-dollars and 100 GPU-milliseconds."""
    if request.param == "memory":
        return in_memory(budget(100, 100))
    database: Database = request.getfixturevalue("database")
    return in_sql(database, budget(100, 100))
