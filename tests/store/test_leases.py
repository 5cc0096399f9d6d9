"""Test leases for work that only one of several services does at a time."""

import pytest

from tuner.database.database import Database
from tuner.domain.time import Instant
from tuner.store import leadership

NAME, TERM = "mirrors", 10


def take_lease(database: Database, holder: str, at: int, *, name: str = NAME) -> bool:
    with database.write() as db:
        return leadership.take(db, name, holder, now=Instant(at), until=Instant(at + TERM))


def give_back(database: Database, holder: str) -> None:
    with database.write() as db:
        leadership.give_back(db, NAME, holder)


def test_lease_is_exclusive_until_it_expires(database: Database) -> None:
    assert take_lease(database, "a", 100)
    assert not take_lease(database, "b", 101)
    assert not take_lease(database, "b", 100 + TERM - 1)
    assert take_lease(database, "b", 100 + TERM)
    assert not take_lease(database, "a", 100 + TERM + 1)


def test_holder_extends_its_lease_by_taking_it_again(database: Database) -> None:
    for at in (100, 105, 114):
        assert take_lease(database, "a", at)
    assert not take_lease(database, "b", 123)
    assert take_lease(database, "b", 124)


def test_leases_of_different_names_are_independent(database: Database) -> None:
    assert take_lease(database, "a", 100)
    assert take_lease(database, "b", 100, name="meter")


def test_lease_is_given_back_only_by_its_holder(database: Database) -> None:
    assert take_lease(database, "a", 100)
    give_back(database, "b")
    assert not take_lease(database, "b", 101)
    give_back(database, "a")
    assert take_lease(database, "b", 101)


@pytest.mark.parametrize("later", [1, 2 * TERM])
def test_lease_taken_before_the_clock_was_set_back_blocks_no_other_holder(
    database: Database, later: int
) -> None:
    """Such a lease seems to last longer than any lease can."""
    assert take_lease(database, "a", 100_000)
    assert take_lease(database, "b", 100)
    assert take_lease(database, "b", 100 + later)
