"""The contract of every journal on money, in memory and in SQL: holds, settlement and corrections."""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import NoResultFound

from tests import fakes
from tests.contracts.turns import (
    FIRST,
    SECOND,
    correct,
    in_memory,
    in_sql,
    place,
    posted,
    seen,
    set_limit,
    settle,
    spend,
)
from tests.store.builders import budget, cost, hold
from tests.strategies import examples
from tuner.domain.cost import KINDS, CostKind
from tuner.domain.errors import BudgetRefused, Conflict
from tuner.domain.ledger import Account
from tuner.domain.money import FREE, Cost
from tuner.driver.ports import Journal

Act = Callable[[Journal], object]


# Holds


def test_hold_reduces_what_is_left_and_is_open(journal: Journal) -> None:
    wanted = hold(1, cost(30, 20))
    assert place(journal, wanted)
    assert journal.account() == Account(cost(100, 100), held=cost(30, 20))
    assert journal.open_holds() == [wanted]


def test_holds_fit_up_to_the_last_micro_dollar(journal: Journal) -> None:
    assert place(journal, hold(1, cost(40, 40)))
    assert place(journal, hold(2, cost(60, 60)))
    assert place(journal, hold(3, FREE))
    assert not place(journal, hold(4, cost(1)))
    assert journal.account().left == FREE


@pytest.mark.parametrize("wanted", [cost(71), cost(0, 71), cost(71, 71), cost(10**18)])
def test_refused_hold_changes_nothing(journal: Journal, wanted: Cost) -> None:
    place(journal, hold(1, cost(30, 30)))
    assert not place(journal, hold(2, wanted))
    assert journal.account() == Account(cost(100, 100), held=cost(30, 30))
    assert journal.open_holds() == [hold(1, cost(30, 30))]


def test_refused_hold_can_be_placed_once_there_is_enough(journal: Journal) -> None:
    place(journal, hold(1, cost(30, 30)))
    assert not place(journal, hold(2, cost(80)))
    settle(journal, hold(1, FREE).id, {})
    assert place(journal, hold(2, cost(80)))


def test_repeated_hold_succeeds_and_changes_nothing_even_if_it_no_longer_fits(
    journal: Journal,
) -> None:
    for _ in range(3):
        assert place(journal, hold(1, cost(60, 60)))
    assert journal.account().held == cost(60, 60)
    assert journal.open_holds() == [hold(1, cost(60, 60))]


def test_settled_hold_is_accepted_again_but_not_reopened(journal: Journal) -> None:
    spend(journal, 1, {"train": cost(10)})
    assert place(journal, hold(1, cost(30, 30)))
    assert journal.open_holds() == []
    assert journal.account() == Account(cost(100, 100), posted=cost(10))


# Settling


def test_settling_posts_cost_by_kind_and_releases_the_rest(journal: Journal) -> None:
    spend(journal, 1, {"setup": cost(5, 1), "train": cost(10, 20)})
    assert journal.account() == Account(cost(100, 100), posted=cost(15, 21))
    assert posted(journal) == {"setup": cost(5, 1), "train": cost(10, 20)}


@pytest.mark.parametrize("used", [{}, {"train": cost(30, 30)}])
def test_none_or_all_of_a_hold_can_be_used(journal: Journal, used: dict[CostKind, Cost]) -> None:
    spend(journal, 1, used)
    assert journal.account() == Account(cost(100, 100), posted=used.get("train", FREE))
    assert posted(journal) == used


def test_settling_twice_changes_nothing(journal: Journal) -> None:
    spend(journal, 1, {"train": cost(10, 10)})
    settle(journal, hold(1, FREE).id, {"train": cost(10, 10)})
    settle(journal, hold(1, FREE).id, {"lost": cost(29, 29)})
    settle(journal, hold(1, FREE).id, {"lost": cost(10**9)})
    assert journal.account() == Account(cost(100, 100), posted=cost(10, 10))
    assert posted(journal) == {"train": cost(10, 10)}


@pytest.mark.parametrize("used", [{"train": cost(31)}, {"train": cost(0, 16), "lost": cost(0, 15)}])
def test_settling_more_than_was_held_is_refused(journal: Journal, used: dict[CostKind, Cost]) -> None:
    place(journal, hold(1, cost(30, 30)))
    with pytest.raises(ValueError, match="was held"):
        settle(journal, hold(1, FREE).id, used)
    assert journal.account() == Account(cost(100, 100), held=cost(30, 30))
    assert journal.open_holds() == [hold(1, cost(30, 30))]
    assert posted(journal) == {}


def test_posted_cost_is_recorded_per_attempt(journal: Journal) -> None:
    spend(journal, 1, {"train": cost(1)})
    spend(journal, 2, {"train": cost(2), "idle": cost(0, 3)})
    spend(journal, 1, {"train": cost(4)}, attempt=2)
    spend(journal, 1, {"train": cost(5)}, trial=1)
    assert posted(journal, FIRST, 1) == {"train": cost(3), "idle": cost(0, 3)}
    assert posted(journal, FIRST, 2) == {"train": cost(4)}
    assert posted(journal, SECOND, 1) == {"train": cost(5)}
    assert posted(journal, SECOND, 2) == {}


# Corrections


def test_correction_moves_cost_between_kinds_and_keeps_the_total(journal: Journal) -> None:
    spend(journal, 1, {"train": cost(10, 8)})
    before = journal.account()
    correct(journal, "c", {"train": cost(-4, -2), "lost": cost(4, 2)})
    assert posted(journal) == {"train": cost(6, 6), "lost": cost(4, 2)}
    assert journal.account() == before


@pytest.mark.parametrize("costs", [{"lost": cost(1)}, {"train": cost(-2, -2), "lost": cost(2, 1)}])
def test_correction_that_does_not_sum_to_zero_is_refused(
    journal: Journal, costs: dict[CostKind, Cost]
) -> None:
    spend(journal, 1, {"train": cost(10, 8)})
    with pytest.raises(ValueError, match="moves cost between kinds"):
        correct(journal, "c", costs)
    assert posted(journal) == {"train": cost(10, 8)}


def test_repeated_correction_changes_nothing(journal: Journal) -> None:
    spend(journal, 1, {"train": cost(10, 8)})
    for again in (4, 4, 5):
        correct(journal, "c", {"train": cost(-again), "lost": cost(again)})
    assert posted(journal) == {"train": cost(6, 8), "lost": cost(4)}


def test_corrections_with_different_names_add_up(journal: Journal) -> None:
    spend(journal, 1, {"train": cost(10)})
    for name in ("a", "b", "a"):
        correct(journal, name, {"train": cost(-4), "lost": cost(4)})
    correct(journal, "c", {"train": FREE, "lost": FREE})
    assert posted(journal) == {"train": cost(2), "lost": cost(8)}


# Both alike

amounts = st.integers(0, 40)
costs = st.builds(cost, amounts, amounts)
used = st.dictionaries(st.sampled_from(KINDS), costs, max_size=2)
numbers = st.integers(1, 6)
acts: st.SearchStrategy[Act] = st.one_of(
    st.builds(lambda number, wanted: partial(place, wanted=hold(number, wanted)), numbers, costs),
    st.builds(lambda number, used: partial(settle, name=hold(number, FREE).id, used=used), numbers, used),
    st.builds(lambda usd, gpu_ms: partial(set_limit, limits=budget(3 * usd, 3 * gpu_ms)), amounts, amounts),
    numbers.map(lambda n: partial(correct, name=f"c{n}", costs={"train": cost(-n), "lost": cost(n)})),
)


def answer(journal: Journal, act: Act) -> object:
    try:
        return act(journal)
    except (ValueError, BudgetRefused, Conflict):
        return "refused"
    except (KeyError, NoResultFound):
        return "no such hold"


@given(st.lists(acts, max_size=15))
@examples(30)
def test_memory_and_sql_journals_agree_on_any_sequence_of_operations(series: list[Act]) -> None:
    database = fakes.database_in_memory()
    memory, sql = in_memory(budget(100, 100)), in_sql(database, budget(100, 100))
    for act in series:
        assert answer(memory, act) == answer(sql, act)
        assert seen(memory) == seen(sql)
        assert posted(memory) == posted(sql)
    database.dispose()
