"""Test that each invariant can fail: a ledger or a job that violates it is reported by its name."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.simulation.test_simulated_jobs import Curves, loop_config, spec
from tests.simulation.watched import run_watched
from tuner.domain.budget import Budget
from tuner.domain.ledger import Account, Entry
from tuner.domain.money import FREE, Cost, Money
from tuner.domain.records import AttemptRow, OpenHold
from tuner.domain.time import Instant
from tuner.simulator.invariants import InvariantBroken, Invariants, watch
from tuner.simulator.journal import Committed, MemoryJournal, MemoryTx, Tables
from tuner.simulator.world import Faults, SimulatedRun

TRIAL = "trial_00000"
AT = Instant(5)


def usd(micro: int) -> Cost:
    return Cost(Money(micro))


def hold(number: int = 1, micro: int = 10) -> OpenHold:
    return OpenHold(f"job/{TRIAL}/a1/s{number}", TRIAL, 1, number, usd(micro), AT, Instant(9))


def books(*acts: Callable[[MemoryTx], object]) -> Invariants:
    """Run each act in its own transaction, on a budget of 100 micro-dollars."""
    journal, invariants = MemoryJournal("job", Budget(usd=Money(100))), Invariants()
    journal.watchers.append(invariants.recorded)
    for act in acts:
        with journal.transaction() as tx:
            act(tx)
    return invariants


def entry(kind: str, number: int, micro: int, name: str = "odd") -> Entry:
    return Entry(name, kind, None, TRIAL, 1, number, usd(micro), AT)  # type: ignore[arg-type]


def account(**changed: Cost) -> Callable[[MemoryTx], None]:
    """Make the account differ from the sum of the entries."""

    def act(tx: MemoryTx) -> None:
        tx._account = replace(tx._account, **changed)

    return act


def enter(made: Entry) -> Callable[[MemoryTx], None]:
    return lambda tx: tx._enter(made)


def both(*acts: Callable[[MemoryTx], object]) -> Callable[[MemoryTx], None]:
    def act(tx: MemoryTx) -> None:
        for single_act in acts:
            single_act(tx)

    return act


def placed(tx: MemoryTx) -> None:
    assert tx.hold(hold())


def settled(tx: MemoryTx) -> None:
    tx.settle(hold().id, {"train": usd(4)}, at=AT)


LEDGERS: dict[str, tuple[str, list[Callable[[MemoryTx], object]]]] = {
    "money from nowhere": ("I1", [placed, account(held=usd(11))]),
    "a lost post": ("I1", [placed, settled, account(posted=usd(3))]),
    "a correction that adds": (
        "I1",
        [placed, settled, enter(Entry("c", "correct", "lost", TRIAL, 1, 0, usd(1), AT))],
    ),
    "more held than there is": ("I2", [both(placed, account(limit=usd(9)))]),
    "two resolutions": ("I4", [placed, settled, enter(entry("release", 1, 1))]),
    "a release of what was never held": ("I4", [enter(entry("release", 1, 1))]),
    "more posted than held": ("I4", [placed, enter(entry("post", 1, 11))]),
    "half a resolution": ("I4", [placed, enter(entry("release", 1, 4))]),
    "an attempt that ends while it holds": (
        "I4",
        [placed, lambda tx: tx.put_attempt(AttemptRow(TRIAL, 1, AT, ended_at=AT, end="paused"))],
    ),
    "two slices at once": ("I5", [placed, lambda tx: tx.hold(hold(2))]),
    "a slice left out": ("I5", [placed, settled, lambda tx: tx.hold(hold(3))]),
    "a negative hold": ("I11", [enter(entry("hold", 1, -1))]),
    "a negative account": ("I11", [enter(entry("hold", 1, -1))]),
    "an overflow": ("I11", [enter(entry("hold", 1, 2**63))]),
}


@pytest.mark.parametrize("name", LEDGERS)
def test_invalid_ledger_violates_the_expected_invariant(name: str) -> None:
    broken, acts = LEDGERS[name]
    with pytest.raises(InvariantBroken) as violation:
        books(*acts)
    assert violation.value.name == broken


def test_valid_ledger_passes() -> None:
    assert books(placed, settled, lambda tx: tx.hold(hold(2))).transactions == 3


def test_decreasing_posted_amount_is_caught() -> None:
    """Entries alone cannot cause this, except a release beyond its hold, which I4 has reported by then."""
    invariants = Invariants()
    journal = MemoryJournal("job", Budget(usd=Money(100)))
    journal.watchers.append(invariants.recorded)
    for act in (placed, settled):
        with journal.transaction() as tx:
            act(tx)
    invariants._posted = FREE
    before = usd(4)
    with pytest.raises(InvariantBroken, match="I3"):
        invariants._check_account(Tables(Account(usd(100))), before)


# Jobs


def part_way(turns: int = 60) -> tuple[SimulatedRun, Invariants]:
    run = SimulatedRun(spec("0.01"), loop_config(2), Curves())
    invariants = watch(run)
    for _ in range(turns):
        run.clock.run_next()
    invariants.after_turn(run)
    assert run.loop.leases
    return run, invariants


def ended() -> tuple[SimulatedRun, Invariants]:
    run = SimulatedRun(
        spec("0.001"), loop_config(2), Curves(), faults=Faults(crash=0.02, driver_restart=0.01)
    )
    invariants = watch(run)
    run.run()
    invariants.at_end(run)
    return run, invariants


def test_running_attempt_without_a_hold_is_caught() -> None:
    run, invariants = part_way()
    run.loop.leases.popitem()
    with pytest.raises(InvariantBroken, match="I6"):
        invariants.after_turn(run)


def test_worker_lease_longer_than_its_hold_is_caught() -> None:
    run, invariants = part_way()
    busy = next(worker.busy for worker in run.fleet.workers if worker.busy)
    busy.lease_ns *= 2
    with pytest.raises(InvariantBroken, match="I6"):
        invariants.after_turn(run)


def test_job_that_ends_with_open_holds_is_caught() -> None:
    run, invariants = part_way()
    done, _ = ended()
    run.loop.end = done.loop.end
    with pytest.raises(InvariantBroken, match="I9"):
        invariants.after_turn(run)


def test_posted_amount_above_cost_of_worker_time_is_caught() -> None:
    run, invariants = part_way()
    invariants._posted = usd(10**6)
    with pytest.raises(InvariantBroken, match="I5"):
        invariants.after_turn(run)


def test_a_repeated_hold_that_counts_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    run, invariants = ended()

    def count_twice(tx: MemoryTx, hold: OpenHold) -> bool:
        tx._account = Account(tx._account.limit, tx._account.posted, tx._account.held + hold.cost)
        return True

    monkeypatch.setattr(MemoryTx, "hold", count_twice)
    with pytest.raises(InvariantBroken, match="I7"):
        invariants._check_repeats(run)


def test_state_that_differs_from_replayed_events_is_caught() -> None:
    run, invariants = ended()
    run.loop.state.trials[0].steps += 1
    with pytest.raises(InvariantBroken, match=r"I8: state\.trials"):
        invariants.at_end(run)


def test_missing_ledger_entry_is_caught_at_the_end() -> None:
    run, invariants = ended()
    tables = run.journal.tables
    del tables.entries[
        next(name for name, ledger_entry in tables.entries.items() if ledger_entry.entry == "post")
    ]
    with pytest.raises(InvariantBroken, match="I1"):
        invariants.at_end(run)


def test_attempt_row_that_disagrees_with_entries_is_caught_at_the_end() -> None:
    run, invariants = ended()
    where, row = next(iter(run.journal.tables.attempts.items()))
    run.journal.tables.attempts[where] = replace(row, costs={"train": usd(1)})
    with pytest.raises(InvariantBroken, match="I1"):
        invariants.at_end(run)


def test_job_without_faults_passes_for_every_stop_reason() -> None:
    for limits in (spec("0.002"), spec("1", trials=5), spec("1", wall_clock_ns=20 * 10**9)):
        assert run_watched(SimulatedRun(limits, loop_config(3), Curves())).loop.end is not None


def test_watchers_are_not_notified_of_a_failed_transaction() -> None:
    commits: list[Committed] = []
    journal = MemoryJournal("job", Budget(usd=Money(100)))
    journal.watchers.append(lambda tables, committed: commits.append(committed))

    def fail() -> None:
        with journal.transaction() as tx:
            tx.hold(hold())
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert commits == []
