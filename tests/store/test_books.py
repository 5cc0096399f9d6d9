"""Test what the ledger and the shared budgets report, and that changes made outside the ledger are detected."""

from dataclasses import replace

import pytest

from tests import books
from tests.store.builders import JOB, PROJECT, budget, cost, create, hold, new_job
from tests.store.test_shared_budgets import JOBS, check, make, place, put, settle
from tuner.database.database import Database
from tuner.domain.budget import BUDGET
from tuner.domain.calendar import Window
from tuner.domain.errors import NotFound
from tuner.domain.fair_share import Share, Waiting
from tuner.domain.ledger import Account
from tuner.domain.money import FREE, Cost, Money
from tuner.domain.records import EntryPlace
from tuner.domain.shared_budget import SharedBudget
from tuner.domain.time import DAY_NS, Instant
from tuner.ledger import budget_waits, ledger, shared_budget_changes, shared_budgets
from tuner.store import job_summaries, jobs, launches, queue

OTHER = "job_0000000000000002"
NOW = Instant(10 * DAY_NS)
LATER = Instant(12 * DAY_NS)


def tamper(database: Database, statement: str) -> None:
    """Execute a statement without the rows' CHECK constraints, as someone with access to the file can."""
    with database.engine.connect() as db:
        db.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
        db.exec_driver_sql(statement)
        db.commit()
        db.exec_driver_sql("PRAGMA ignore_check_constraints = OFF")


def test_account_beyond_its_budget_is_reported(database: Database) -> None:
    create(database, new_job(limits=budget(100)))
    with database.write() as db:
        assert ledger.place(db, PROJECT, JOB, hold(1, cost(60)))
    tamper(database, "UPDATE accounts SET limit_usd = 59")
    with database.read() as db:
        assert books.faults(db) == [f"{JOB}: the posted and held amounts exceed the budget"]


def test_shared_budget_changed_outside_the_ledger_is_reported(database: Database) -> None:
    make(database)
    put(database, SharedBudget("all", usd=Money(100)))
    assert place(database, JOBS[0], 1, 60)
    check(database)
    tamper(database, "UPDATE budget_accounts SET posted_usd = 70")
    with database.write() as db:
        beyond, differs = books.shared_faults(db, PROJECT, NOW)
    assert beyond == "all: the posted and held amounts exceed its limit"
    assert differs.startswith("all: the account has Account(")


def test_accounts_are_listed_in_order_and_read_together(database: Database) -> None:
    for name, usd in ((OTHER, 20), (JOB, 10)):
        create(database, new_job(name, limits=budget(usd, 5)))
    with database.read() as db:
        assert ledger.accounts_after(db, "", 1) == [JOB]
        assert ledger.accounts_after(db, JOB, 5) == [OTHER]
        wanted = {JOB: Account(cost(10, 5)), OTHER: Account(cost(20, 5))}
        summaries = job_summaries.of_jobs(db, [JOB, OTHER, "job_of_nobody"])
    assert {name: summary.account for name, summary in summaries.items()} == wanted


def test_posted_amounts_are_summed_by_job_trial_and_attempt(database: Database) -> None:
    create(database, new_job(limits=budget(100)))
    with database.write() as db:
        for number, (trial, attempt) in enumerate([(0, 1), (0, 2), (1, 1)], start=1):
            placed_hold = hold(number, cost(9), trial=trial, attempt=attempt)
            assert ledger.place(db, PROJECT, JOB, placed_hold)
            ledger.settle(db, PROJECT, JOB, placed_hold.id, {"train": cost(number)}, NOW)
        assert ledger.open_hold(db, placed_hold.id) is None
        assert ledger.place(db, PROJECT, JOB, last := hold(4, cost(9)))
        assert ledger.open_hold(db, last.id) == last
        assert ledger.posted_by_kind(db, JOB) == {"train": cost(6)}
        assert ledger.posted_by_kind(db, JOB, "trial_00000") == {"train": cost(3)}
        assert ledger.posted_by_kind(db, JOB, "trial_00000", 2) == {"train": cost(2)}
        assert [row.cost for row in ledger.lines(db, JOB, after=3, limit=2)] == [cost(9), cost(2)]


@pytest.mark.parametrize(("spent", "shared", "own"), [(30, 30, 30), (70, 50, 70), (200, 50, 100), (0, 0, 0)])
def test_noted_spend_fills_job_and_shared_budget_only_to_their_limits(
    database: Database, spent: int, shared: int, own: int
) -> None:
    create(database, new_job(limits=budget(100, 10)))
    put(database, SharedBudget("all", usd=Money(50)))
    where = EntryPlace(f"{JOB}/restored/a1/s1", "restored", 1, 1)
    with database.write() as db:
        ledger.note_spent(db, PROJECT, JOB, where, cost(spent), NOW)
    with database.read() as db:
        assert ledger.account(db, JOB) == Account(cost(100, 10), posted=cost(own))
        shared_budget = shared_budgets.get(db, PROJECT, "all").budget
        assert shared_budgets.period_at(db, PROJECT, shared_budget, NOW).account.posted == cost(shared)
        assert books.faults(db) == []


def test_periods_are_listed_from_the_oldest_open_one(database: Database) -> None:
    make(database)
    put(database, SharedBudget("all", usd=Money(50), period="day"))
    for number, day in enumerate((10, 11, 12), start=1):
        assert place(database, JOBS[0], number, day, at=day * DAY_NS)
    with database.read() as db:
        periods = shared_budgets.periods(db, PROJECT, "all", since=Instant(11 * DAY_NS))
    assert [(period.began_at // DAY_NS, period.account.held) for period in periods] == [
        (11, cost(11)),
        (12, cost(12)),
    ]


def test_missing_budget_cannot_be_read_or_removed(database: Database) -> None:
    with database.write() as db:
        with pytest.raises(NotFound, match="the budget 'all' does not exist"):
            shared_budgets.get(db, PROJECT, "all")
        with pytest.raises(NotFound):
            shared_budget_changes.remove(db, PROJECT, "all", at=NOW)
        assert shared_budget_changes.covered(db, PROJECT) == {}


def test_lowest_limit_of_job_and_shared_budgets_applies(database: Database) -> None:
    make(database)
    put(database, SharedBudget("gpus", gpu_ms=5), SharedBudget("usd", usd=Money(7)))
    assert place(database, JOBS[0], 1, 2, 1)
    with database.read() as db:
        allowance = shared_budgets.allowance(db, PROJECT, JOBS[0], NOW, cost(100, 100))
        assert (allowance.left, allowance.usd_limited_by, allowance.gpus_limited_by) == (
            cost(5, 4),
            "usd",
            "gpus",
        )
        own = shared_budgets.allowance(db, PROJECT, JOBS[0], NOW, cost(3, 3))
        assert (own.left, own.usd_limited_by, own.gpus_limited_by) == (cost(3, 3), "", "")
        name = hold(1, FREE, job=JOBS[0]).id
        freed = shared_budgets.allowance(
            db, PROJECT, JOBS[0], NOW, cost(100, 100), freeing=name, freed=cost(2, 1)
        )
        assert freed.left == cost(7, 5)
        elsewhere = shared_budgets.allowance(
            db, PROJECT, JOBS[0], NOW, cost(100, 100), freeing="x", freed=cost(2, 1)
        )
        assert elsewhere.left == cost(5, 4)


def test_changed_period_starts_counting_from_zero(database: Database) -> None:
    make(database)
    put(database, SharedBudget("all", usd=Money(50)))
    assert place(database, JOBS[0], 1, 30)
    settle(database, JOBS[0], 1, 20)
    put(database, SharedBudget("all", usd=Money(50), period="day"), at=LATER)
    with database.read() as db:
        shared_budget = shared_budgets.get(db, PROJECT, "all").budget
        assert shared_budgets.period_at(db, PROJECT, shared_budget, LATER).account.posted == FREE
        assert shared_budgets.period_at(db, PROJECT, shared_budget, NOW).account.posted == FREE, (
            "counted from the change on"
        )
    check(database, LATER)


def test_waiting_jobs_begun_jobs_and_owner_shares_are_read(database: Database) -> None:
    """One job waits, one runs, one lost its driver while running, and one ended within the last day."""
    names = [f"job_000000000000000{number}" for number in range(4)]
    for number, name in enumerate(names):
        create(database, new_job(name, tags={"owner": "ann"} if number % 2 else {}, at=number))
    with database.write() as db:
        assert launches.submitted(db, names[1], 1, NOW)
        for name in names[1:]:
            jobs.begin_running(db, name, at=NOW)
        for name, usd in zip(names[1:], (3, 4, 5), strict=True):
            placed_hold = hold(1, cost(usd), job=name)
            assert ledger.place(db, PROJECT, name, placed_hold)
            ledger.settle(db, PROJECT, name, placed_hold.id, {"train": cost(usd)}, NOW)
        jobs.move(db, names[3], "cancelled", "cancelled", at=NOW)
        launches.end(db, names[3], 1)
        assert queue.waiting(db, NOW) == [Waiting(names[0], f"{PROJECT}/", 0, Instant(0), PROJECT)]
        assert queue.begun(db) == {names[1], names[2]}
        ann, nobody = f"{PROJECT}/ann", f"{PROJECT}/"
        assert queue.shares(db, NOW) == {
            ann: Share(1, Money(8), PROJECT),
            nobody: Share(1, Money(4), PROJECT),
        }
        later = Instant(NOW + queue.RECENT_NS)
        assert queue.shares(db, later) == {
            ann: Share(1, Money(3), PROJECT),
            nobody: Share(1, Money(4), PROJECT),
        }


def test_launch_can_be_delayed_and_records_driver_versions_while_wanted(database: Database) -> None:
    create(database, new_job())
    create(database, new_job(OTHER))
    with database.write() as db:
        wanted = launches.get(db, JOB)
        assert wanted is not None
        launches.put_off(db, wanted, Instant(7))
        launches.record_versions(db, JOB, 1, tuner="1.0", ray="2.60", python="3.11")
        summaries = job_summaries.of_jobs(db, [JOB, "job_of_nobody"])
        assert list(summaries) == [JOB]
        launch = summaries[JOB].launch
        assert launch == launches.get(db, JOB)
        assert launch is not None
        assert (launch.not_before, launch.tuner_version) == (Instant(7), "1.0")
        assert launches.submitted(db, JOB, 1, NOW)
        launches.put_off(db, wanted, Instant(9))
        launches.record_versions(db, JOB, 2, tuner="2.0", ray="2.60", python="3.11")
        launch = launches.get(db, JOB)
        assert launch is not None
        assert launch.not_before == Instant(7), "it is not wanted any more"
        assert launch.tuner_version == "1.0"


def test_cost_is_zero_only_if_money_and_gpu_time_are_zero() -> None:
    assert Cost().nothing
    assert not Cost(gpu_ms=1).nothing


def test_projects_with_budgets_and_with_waiting_jobs_are_listed(database: Database) -> None:
    create(database, new_job())
    with database.write() as db:
        assert shared_budgets.projects(db) == budget_waits.projects(db) == []
        for project in (PROJECT, "another"):
            shared_budget_changes.put(db, project, SharedBudget("all", usd=Money(100)), secret="", at=NOW)
        quota = SharedBudget(BUDGET, usd=Money(100))
        shared_budget_changes.put(db, "limited", quota, secret="", at=NOW)
        assert shared_budgets.projects(db) == ["another", PROJECT, "limited"]
        assert shared_budgets.projects_with_alerts(db) == ["another", PROJECT]
        budget_waits.note(db, PROJECT, JOB, "all", NOW)
        assert budget_waits.projects(db) == [PROJECT]


def test_windows_are_read_only_for_jobs_that_have_a_window(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose name looks like a window does not count."""
    monkeypatch.setattr(queue, "AT_ONCE", 2)
    night = Window("22:00", "06:00")
    names = [f"job_000000000000000{number}" for number in range(4)]
    for number, name in enumerate(names):
        made = new_job(name)
        changed = replace(made.spec, name='"$":"Window"') if number == 1 else made.spec
        create(database, replace(made, spec=replace(changed, window=night) if number >= 2 else changed))
    with database.read() as db:
        assert queue.windows(db, names[:3]) == {names[2]: night}
        assert queue.windows(db, names) == {names[2]: night, names[3]: night}
        assert queue.windows(db, []) == {}
