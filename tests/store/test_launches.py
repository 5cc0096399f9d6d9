"""Test that each job has one driver: epochs only increase, and a driver with an older epoch cannot write any
more.
"""

from dataclasses import replace

import pytest
from sqlalchemy import func, select

from tests.store.builders import JOB, PROJECT, cost, create, hold, new_job
from tuner.database.database import Database
from tuner.database.ledger_tables import metadata
from tuner.domain.calendar import Window
from tuner.domain.errors import Fenced
from tuner.domain.events import Completed, Event
from tuner.domain.time import HOUR_NS, Instant
from tuner.store import jobs, launches, queue, totals
from tuner.store.journal import SqlJournal
from tuner.store.launches import Launch

SENT, BEAT, LATER = Instant(4), Instant(5), Instant(7)
WANTED = Launch(JOB, 1, "wanted", Instant(3), None, None, 0, Instant(0))


@pytest.fixture
def wanted(database: Database) -> Database:
    """A database with a job whose first launch is requested."""
    create(database, new_job(at=3))
    return database


def launch(database: Database) -> Launch | None:
    with database.read() as db:
        return launches.get(db, JOB)


def want(database: Database, at: Instant = LATER) -> None:
    with database.write() as db:
        launches.want(db, JOB, PROJECT, at)


def submitted(database: Database, epoch: int) -> bool:
    with database.write() as db:
        return launches.submitted(db, JOB, epoch, SENT)


def heartbeat(database: Database, epoch: int) -> None:
    with database.write() as db:
        launches.record_heartbeat(db, JOB, epoch, BEAT)


def check(database: Database, epoch: int) -> None:
    with database.read() as db:
        launches.check(db, JOB, epoch)


def end(database: Database, epoch: int) -> None:
    with database.write() as db:
        launches.end(db, JOB, epoch)


def again(database: Database, dead: Launch, deaths: int = 1) -> bool:
    with database.write() as db:
        return launches.again(db, dead, at=LATER, not_before=Instant(9), quick_deaths=deaths)


def rows(database: Database) -> dict[str, int]:
    """Return the number of rows of each table."""
    with database.read() as db:
        counts = {table.name: select(func.count()).select_from(table) for table in metadata.sorted_tables}
        return {name: db.execute(query).scalar_one() for name, query in counts.items()}


def test_newest_submission_of_a_wanted_launch_is_the_previous_epoch() -> None:
    assert WANTED.newest_submission is None
    assert replace(WANTED, state="submitted").newest_submission == f"{JOB}-1"
    assert replace(WANTED, epoch=3).newest_submission == f"{JOB}-2"


def test_launch_passes_from_wanted_to_submitted_running_and_ended(wanted: Database) -> None:
    assert launch(wanted) == WANTED
    assert WANTED.submission_id == f"{JOB}-1"
    assert submitted(wanted, 1)
    assert launch(wanted) == replace(WANTED, state="submitted", submitted_at=SENT)
    heartbeat(wanted, 1)
    assert launch(wanted) == replace(WANTED, state="running", submitted_at=SENT, heartbeat_at=BEAT)
    end(wanted, 1)
    assert launch(wanted) == replace(WANTED, state="ended", submitted_at=SENT, heartbeat_at=BEAT)


def test_launch_whose_submission_was_not_recorded_counts_from_its_first_heartbeat(wanted: Database) -> None:
    """The service may die after it has submitted a driver and before it records that."""
    for epoch in (1, 2):
        heartbeat(wanted, epoch)
        with wanted.write() as db:
            launches.record_heartbeat(db, JOB, epoch, LATER)
        running = launch(wanted)
        assert running is not None
        assert (running.submitted_at, running.heartbeat_at) == (BEAT, LATER)
        end(wanted, epoch)
        want(wanted)
        ordered_again = launch(wanted)
        assert ordered_again is not None
        assert (ordered_again.epoch, ordered_again.submitted_at) == (epoch + 1, None)


def test_launch_in_progress_is_not_requested_again(wanted: Database) -> None:
    for act in (lambda: None, lambda: submitted(wanted, 1), lambda: heartbeat(wanted, 1)):
        act()
        before = launch(wanted)
        want(wanted)
        assert launch(wanted) == before


@pytest.mark.parametrize(("opens", "not_before"), [("01:00", HOUR_NS), ("00:00", 0)], ids=["closed", "open"])
def test_launch_is_put_off_while_the_window_of_its_job_is_closed(
    wanted: Database, opens: str, not_before: int
) -> None:
    """The launch is ordered at midnight."""
    end(wanted, 1)
    with wanted.write() as db:
        launches.want(db, JOB, PROJECT, LATER, window=Window(opens, "02:00"))
    ordered = launch(wanted)
    assert ordered is not None
    assert ordered.not_before == not_before


def test_ended_launch_is_requested_again_with_the_next_epoch(wanted: Database) -> None:
    assert again(wanted, WANTED, deaths=2)
    end(wanted, 2)
    want(wanted)
    assert launch(wanted) == replace(WANTED, epoch=3, wanted_at=LATER)


def test_wanted_launch_is_submitted_only_once(wanted: Database) -> None:
    assert not submitted(wanted, 2)
    assert submitted(wanted, 1)
    assert not submitted(wanted, 1)


def test_only_one_observer_of_a_dead_driver_relaunches_it(wanted: Database) -> None:
    submitted(wanted, 1)
    dead = launch(wanted)
    assert dead is not None
    assert [again(wanted, dead, deaths) for deaths in (1, 5, 6)] == [True, False, False]
    next_one = replace(WANTED, epoch=2, wanted_at=LATER, quick_deaths=1, not_before=Instant(9))
    assert launch(wanted) == next_one


def test_ended_launch_is_not_relaunched(wanted: Database) -> None:
    end(wanted, 1)
    assert not again(wanted, WANTED)


def test_live_launches_are_listed_oldest_request_first(database: Database) -> None:
    for name, at in (("job_c", 1), ("job_b", 0), ("job_a", 1), ("job_d", 2)):
        create(database, new_job(name, at=at))
    with database.write() as db:
        launches.end(db, "job_c", 1)
        assert [live_launch.job for live_launch in launches.live(db)] == ["job_b", "job_a", "job_d"]


def test_actionable_launches_are_due_or_running(database: Database) -> None:
    """A launch requested at a later time than now was requested before the clock was set back, so its delay is
    void.
    """
    for name in ("job_a", "job_b", "job_c"):
        create(database, new_job(name, at=0))
    with database.write() as db:
        for live_launch in launches.live(db)[1:]:
            launches.again(db, live_launch, at=Instant(1), not_before=Instant(9), quick_deaths=1)

        def actionable(now: int) -> list[str]:
            return [due_launch.job for due_launch in launches.actionable(db, Instant(now))]

        assert actionable(5) == ["job_a"]
        assert actionable(9) == actionable(0) == ["job_a", "job_b", "job_c"]
        jobs.begin_running(db, "job_c", at=Instant(2))
        assert actionable(5) == ["job_a", "job_c"]


@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_driver_of_another_epoch_is_fenced(wanted: Database, epoch: int) -> None:
    again(wanted, WANTED)
    for act in (check, heartbeat):
        act(wanted, 2)
        with pytest.raises(Fenced):
            act(wanted, epoch)
    current = launch(wanted)
    assert current is not None
    assert (current.epoch, current.state) == (2, "running")


def test_driver_of_an_ended_launch_is_fenced(wanted: Database) -> None:
    heartbeat(wanted, 1)
    end(wanted, 1)
    before = launch(wanted)
    for act in (check, heartbeat):
        with pytest.raises(Fenced):
            act(wanted, 1)
    assert launch(wanted) == before


def test_ending_an_earlier_epoch_does_not_end_the_current_launch(wanted: Database) -> None:
    again(wanted, WANTED)
    end(wanted, 1)
    check(wanted, 2)


def journal(database: Database, epoch: int) -> SqlJournal:
    return SqlJournal(database, JOB, PROJECT, epoch, Instant(0))


def record(of: SqlJournal, event: Event) -> int:
    with of.transaction() as tx:
        tx.hold(hold(event.at, cost(1)))
        return tx.append(event)


def completed(at: int) -> Event:
    return Completed(Instant(at), "trial_00000")


def test_journal_of_an_earlier_epoch_raises_fenced_and_writes_nothing(wanted: Database) -> None:
    old = journal(wanted, 1)
    assert record(old, completed(1)) == 1
    again(wanted, WANTED)
    new, before = journal(wanted, 2), rows(wanted)
    for _ in range(2):
        with pytest.raises(Fenced):
            record(old, completed(2))
    assert rows(wanted) == before
    assert record(new, completed(3)) == 2
    assert list(old.events()) == list(new.events()) == [completed(1), completed(3)]


def test_journal_of_an_ended_launch_raises_fenced_and_writes_nothing(wanted: Database) -> None:
    ended_journal = journal(wanted, 1)
    end(wanted, 1)
    before = rows(wanted)
    with pytest.raises(Fenced):
        record(ended_journal, completed(1))
    assert rows(wanted) == before


def test_delayed_launch_is_due_at_its_time_or_if_the_clock_was_set_back() -> None:
    """A launch requested at time 3 for time 9 waits until 9. At time 2, the request is from a wrong clock."""
    put_off = replace(WANTED, not_before=Instant(9))
    assert [put_off.is_due(Instant(now)) for now in (2, 3, 8, 9)] == [True, False, False, True]
    assert not replace(put_off, state="running").is_due(Instant(9))


def test_queue_metrics_and_controller_agree_on_which_launches_are_due(wanted: Database) -> None:
    """The launch was put off at time 3 until 9, so at time 2 the clock was set back."""
    with wanted.write() as db:
        launches.put_off(db, WANTED, Instant(9))
        put_off = launches.get(db, JOB)
        assert put_off is not None
        for now in (Instant(2), Instant(3), Instant(8), Instant(9)):
            due = [JOB] if put_off.is_due(now) else []
            assert [waiting.job for waiting in queue.waiting(db, now)] == due
            assert [live_launch.job for live_launch in launches.actionable(db, now)] == due
            shown = totals.totals(db, now)
            assert (shown.waiting, shown.waiting_since) == ((1, put_off.wanted_at) if due else (0, None))
