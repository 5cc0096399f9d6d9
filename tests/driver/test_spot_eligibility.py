"""Test which jobs may use spot machines, with a real database and a fake cluster."""

import time
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from tests.driver.self_test_actors import FakeActors
from tests.store.builders import JOB, PROJECT, create, hold, new_job
from tuner.database.database import Database
from tuner.domain.budget import Budget
from tuner.domain.errors import Unavailable
from tuner.domain.ids import SELF_TEST
from tuner.domain.money import Cost, Money, Price
from tuner.domain.offer import Offer, WorkerMachine
from tuner.domain.records import AttemptRow, OpenHold
from tuner.domain.time import NS, Instant
from tuner.driver import spot_eligibility
from tuner.driver.launch_context import LaunchContext
from tuner.driver.main import pass_self_test
from tuner.driver.paid_work import PaidActorLost
from tuner.driver.spot_eligibility import (
    LEAST_NS,
    LOST_MAX,
    REFUSED_ROUNDS,
    SHARE,
    STARTS_WITHIN_S,
    Abandoned,
    SpotEligibility,
)
from tuner.ledger import ledger
from tuner.store import jobs, launches, self_tests
from tuner.store.journal import SqlJournal
from tuner.worker.self_test import Verdict

SPOT = Offer("m", Price(1_000_000), 1, 0, "spot", labels=(("market", "spot"),))
DEMAND = Offer("m", Price(3_600_000), 1, 0, labels=(("market", "!spot"),))
CHEAP, UNPRICED = WorkerMachine({}, 2, 0), WorkerMachine({}, 4, 0)
SLOW = Verdict(False, "it did not finish in time", lasting=False)
FORGETS = Verdict(False, "it forgets")


def priced(machine: WorkerMachine) -> Offer | None:
    """Return the offer of a machine. Only the price of `CHEAP` is known."""
    return Offer("cheap", Price(36_000), 2, 0) if machine is CHEAP else None


def eligibility_of(
    database: Database,
    actors: FakeActors,
    *,
    offers: tuple[Offer, ...] = (DEMAND, SPOT),
    may_continue: Any = lambda: True,
    usd: int = 36_000_000,
) -> SpotEligibility:
    """Return the eligibility of the job, which is created if it does not exist.

    $36 pays for ten hours of an on-demand trial. It looks for each offer once, without waiting.
    """
    with database.read() as db:
        known = launches.get(db, JOB)
    if known is None:
        new = new_job(limits=Budget(usd=Money(usd)))
        create(database, replace(new, offer=offers[0], others=offers[1:]))
        with database.write() as db:
            launches.record_heartbeat(db, JOB, 1, Instant(1))
            jobs.begin_running(db, JOB, at=Instant(1))
    with database.read() as db:
        row = jobs.get(db, JOB)
    return SpotEligibility(
        database=database,
        row=row,
        epoch=1,
        may_continue=may_continue,
        wait_s=-1.0,
        start_actor=actors,
        find=priced,
    )


def refusal(eligibility: SpotEligibility) -> str | None:
    return eligibility.refusal(died_at=None)


def markets(database: Database) -> list[str]:
    with database.read() as db:
        return [offer.market for offer in jobs.get(db, JOB).offers]


def account(database: Database) -> Any:
    with database.read() as db:
        return ledger.account(db, JOB)


def begin_a_trial(database: Database) -> None:
    with SqlJournal(database, JOB, PROJECT, 1, Instant(2)).transaction() as tx:
        tx.put_attempt(AttemptRow("trial_00000", 1, Instant(2)))


def test_self_test_runs_on_demand_if_available(database: Database) -> None:
    actors = FakeActors([DEMAND, SPOT], [Verdict(True)])
    assert refusal(eligibility_of(database, actors)) is None
    assert actors.requested_offers == [DEMAND]
    assert (account(database).posted.usd, account(database).held.usd) == (DEMAND.price.of(NS), Money(0))


def test_self_test_runs_on_spot_if_on_demand_is_unavailable(database: Database) -> None:
    actors = FakeActors([SPOT], [Verdict(True)])
    assert refusal(eligibility_of(database, actors)) is None
    assert actors.requested_offers == [DEMAND, SPOT]
    assert account(database).posted.usd == SPOT.price.of(NS)


def test_wait_for_a_machine_is_free_and_unbounded_while_job_runs(
    database: Database,
) -> None:
    actors, looks = FakeActors([], [Verdict(True)]), count()

    def may_continue() -> bool:
        if next(looks) == 100:
            actors.there = [SPOT]
        assert actors.orders or account(database).held.usd == Money(0)
        return True

    patient = eligibility_of(database, actors, may_continue=may_continue)
    assert refusal(patient) is None
    assert len(actors.requested_offers) == actors.left > 20


def test_start_timeout_grows_until_a_slow_process_starts(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def wait_until(done: Any, within_s: float, **_: Any) -> bool:
        waited.append(within_s)
        return len(waited) > 20

    monkeypatch.setattr(spot_eligibility, "wait_until", wait_until)
    assert (
        refusal(replace(eligibility_of(database, FakeActors([DEMAND], [Verdict(True)])), wait_s=1.0)) is None
    )
    assert waited[:6] == [1, 1, 2, 2, 4, 4]
    assert set(waited[14:20]) == {STARTS_WITHIN_S}


def test_wait_for_a_machine_ends_when_the_job_stops(database: Database) -> None:
    looks = iter([True] * 100)
    actors = FakeActors([])
    with pytest.raises(Abandoned):
        refusal(eligibility_of(database, actors, may_continue=lambda: next(looks, False)))
    assert len(actors.requested_offers) == actors.left
    assert not actors.orders


def test_self_test_is_repeated_if_its_machine_is_lost(database: Database) -> None:
    actors = FakeActors([SPOT], [PaidActorLost, PaidActorLost, Verdict(True)])
    assert refusal(eligibility_of(database, actors)) is None
    assert account(database).posted.usd.micro_usd == 3 * SPOT.price.of(NS).micro_usd
    assert account(database).held.usd == Money(0)


def test_self_test_is_paid_at_the_price_of_its_machine(database: Database) -> None:
    """A machine without a known price is returned. The next one costs a hundredth of the offer, and half of it is used."""
    actors = FakeActors([DEMAND], [Verdict(True)], machines=[UNPRICED, CHEAP], takes_ns=3600 * NS)
    assert refusal(eligibility_of(database, actors)) is None
    assert account(database).posted.usd.micro_usd == 18_000
    assert (len(actors.orders), actors.left) == (1, 3)


def detail_of(database: Database) -> str:
    with database.read() as db:
        return jobs.get(db, JOB).detail


def test_job_on_machines_without_a_price_is_refused_after_several_rounds(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spot_eligibility, "wait", lambda *_, **__: None)
    looks = iter([True] * 1000)  # otherwise the test would never end if it failed
    actors = FakeActors([SPOT], [Verdict(True)], machines=[UNPRICED])
    refusing = eligibility_of(database, actors, offers=(SPOT,), may_continue=lambda: next(looks, False))
    why = str(refusal(refusing))
    assert "the price of the machine that Ray assigned is not known: 4 CPUs" in why
    assert why.endswith("Correct the cause and submit the job again")
    assert actors.left == REFUSED_ROUNDS
    assert account(database).posted.usd == Money(0)


def test_wait_after_a_refused_machine_does_not_grow_with_the_wait_for_spot(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(spot_eligibility, "wait", lambda within_s, **_: waited.append(within_s))
    actors = FakeActors([SPOT], machines=[UNPRICED])
    refusing = replace(eligibility_of(database, actors, offers=(SPOT,)), wait_s=3600.0)
    assert "is not known" in str(refusal(refusing))
    assert set(waited) == {STARTS_WITHIN_S}


def test_job_says_why_its_self_test_waits_for_another_machine(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On demand, there are only machines without a known price. After a while a spot machine is free."""
    details, actors = list[str](), FakeActors([DEMAND], [Verdict(True)], machines=[UNPRICED])

    def wait(*_: Any, **__: Any) -> None:
        details.append(detail_of(database))
        if len(details) > REFUSED_ROUNDS:
            actors.there, actors.machines = [SPOT], [CHEAP]

    monkeypatch.setattr(spot_eligibility, "wait", wait)
    looks = iter([True] * 1000)  # otherwise the test would never end if it failed
    assert refusal(eligibility_of(database, actors, may_continue=lambda: next(looks, False))) is None
    assert len(details) == REFUSED_ROUNDS + 1
    assert all("the price of the machine that Ray assigned is not known" in detail for detail in details)
    assert detail_of(database) == ""


@pytest.mark.parametrize("verdict", [Verdict(True), PaidActorLost])
def test_actor_is_killed_while_its_hold_is_open(
    database: Database, verdict: Verdict | type[PaidActorLost]
) -> None:
    """Afterwards nothing would pay for it."""
    held: list[Money] = []
    actors = FakeActors([DEMAND], [verdict, Verdict(True)])
    actors.at_kill = lambda: held.append(account(database).held.usd)
    assert refusal(eligibility_of(database, actors)) is None
    assert len(held) == len(actors.orders)
    assert all(usd > Money(0) for usd in held)


def test_self_test_lost_every_time_raises_unavailable(database: Database) -> None:
    actors = FakeActors([DEMAND], [PaidActorLost] * (LOST_MAX + 1))
    with pytest.raises(Unavailable, match="lost 5 times"):
        refusal(eligibility_of(database, actors))
    assert account(database).held.usd == Money(0)


@pytest.mark.parametrize("usd", [36_000_000, 360_000_000])
def test_self_test_time_limit_is_a_share_of_the_budget(database: Database, usd: int) -> None:
    actors = FakeActors([DEMAND], [Verdict(True)])
    assert refusal(eligibility_of(database, actors, usd=usd)) is None
    assert actors.orders[0].limit_s == pytest.approx(usd / 1000 / SHARE, abs=11)


def test_self_test_time_limit_has_a_minimum_for_small_budgets(database: Database) -> None:
    actors = FakeActors([DEMAND], [Verdict(True)])
    assert refusal(eligibility_of(database, actors, usd=900_000)) is None
    assert actors.orders[0].limit_s == LEAST_NS / NS - 10


def test_self_test_is_not_run_if_budget_cannot_pay_for_it(database: Database) -> None:
    actors = FakeActors([SPOT], [Verdict(True)])
    poor = eligibility_of(database, actors, offers=(SPOT,))
    with database.write() as db:
        ledger.place(db, PROJECT, JOB, hold(1, Cost(Money(36_000_000), 0)))
    answer = str(refusal(poor))
    assert "does not pay for the self-test" in answer
    assert "fix the trainable" not in answer
    assert not actors.orders
    with database.read() as db:
        assert {line.trial for line in ledger.lines(db, JOB)} == {"trial_00000"}


@pytest.mark.parametrize("lasting", [False, True])
def test_reason_with_characters_that_databases_reject_is_stored(
    database: Database, monkeypatch: pytest.MonkeyPatch, lasting: bool
) -> None:
    monkeypatch.setattr("tuner.driver.spot_eligibility.code_of", lambda *_: "digest")
    failed = Verdict(False, "the first step failed: \0no file \udcff", lasting=lasting)
    checked = eligibility_of(database, FakeActors([DEMAND], [failed]))
    why = refusal(checked)
    with database.read() as db:
        known = self_tests.get(db, PROJECT, checked.row.spec.trainable, "digest")
        newest = self_tests.newest(db, PROJECT, checked.row.spec.trainable)
        detail = jobs.get(db, JOB).detail
    if not lasting:
        assert "the first step failed: no file ?" in detail
        assert newest is None
        return
    assert known is not None
    assert newest == known
    assert known.reason == "the first step failed: no file ?"
    checked.refuse(str(why), died_at=None)
    with database.read() as db:
        assert "the first step failed: no file ?" in jobs.get(db, JOB).detail


def test_error_in_the_first_step_of_the_self_test_is_to_be_corrected(database: Database) -> None:
    failed = Verdict(False, "the first step failed: ImportError", lasting=False)
    answer = str(refusal(eligibility_of(database, FakeActors([SPOT], [failed]), offers=(SPOT,))))
    assert "the first step failed: ImportError. Correct the cause" in answer


def test_inconclusive_self_test_restricts_job_to_on_demand_permanently(
    database: Database,
) -> None:
    actors = FakeActors([DEMAND, SPOT], [SLOW])
    assert refusal(eligibility_of(database, actors)) is None
    assert markets(database) == ["on_demand"]
    assert refusal(eligibility_of(database, actors)) is None
    assert len(actors.requested_offers) == 1


def test_spot_only_job_is_refused_after_inconclusive_self_test(database: Database) -> None:
    assert "did not finish in time" in str(
        refusal(eligibility_of(database, FakeActors([SPOT], [SLOW]), offers=(SPOT,)))
    )
    assert markets(database) == ["spot"]


def test_job_that_fails_self_test_is_refused_even_with_on_demand_offer(database: Database) -> None:
    assert "it forgets" in str(refusal(eligibility_of(database, FakeActors([DEMAND], [FORGETS]))))
    assert markets(database) == ["on_demand", "spot"]


@pytest.mark.parametrize("verdict", [FORGETS, SLOW])
def test_job_that_began_a_trial_is_not_tested_again(database: Database, verdict: Verdict) -> None:
    """Later changes to its code do not matter: the job keeps its permission."""
    actors = FakeActors([DEMAND, SPOT], [Verdict(True), verdict])
    assert refusal(eligibility_of(database, actors)) is None
    begin_a_trial(database)
    assert refusal(eligibility_of(database, actors)) is None
    assert len(actors.requested_offers) == 1


def test_control_request_ends_the_self_test_and_its_time_is_posted(database: Database) -> None:
    wanted = iter([True] * 3)
    actors = FakeActors([DEMAND], [None])
    with pytest.raises(Abandoned):
        refusal(eligibility_of(database, actors, may_continue=lambda: next(wanted, False)))
    assert account(database).posted.usd == DEMAND.price.of(NS)
    with database.read() as db:
        assert {line.trial for line in ledger.lines(db, JOB)} == {SELF_TEST}


@pytest.mark.parametrize("resumed", [True, False])
def test_job_that_is_paused_and_resumed_during_the_self_test_is_tested_again(
    database: Database, resumed: bool
) -> None:
    actors, looks, context = FakeActors([DEMAND], [None]), count(), LaunchContext(database, JOB, 1)

    def request(action: Any) -> None:
        with database.write() as db:
            jobs.set_control_request(db, JOB, action)

    def may_continue() -> bool:
        if next(looks) == 2:
            request("pause")
            assert not context.may_begin()
            actors.verdicts = [FORGETS]
            request("resume" if resumed else "pause")
            return False
        return context.may_begin()

    row, why = pass_self_test(
        eligibility_of(database, actors, may_continue=may_continue), context, died_at=None
    )
    assert row.control_request == ("resume" if resumed else "pause")
    assert (why is not None, len(actors.orders)) == ((True, 2) if resumed else (False, 1))
    assert account(database).posted.usd == DEMAND.price.of(NS * len(actors.orders))


@pytest.mark.parametrize(
    ("wall_clock_s", "action", "may_continue"),
    [(None, None, True), (60, None, True), (9, None, False), (60, "pause", False)],
)
def test_self_test_and_its_wait_count_toward_the_wall_clock(
    database: Database, wall_clock_s: int | None, action: Any, may_continue: bool
) -> None:
    """The job has run for ten seconds, two of them before its last pause."""
    limit = None if wall_clock_s is None else wall_clock_s * NS
    create(database, new_job(limits=Budget(usd=Money(1), wall_clock_ns=limit)))
    now = time.time_ns()
    with database.write() as db:
        for state, at_s in (("running", -30), ("paused", -28), ("running", -8)):
            jobs.move(db, JOB, state, None, at=Instant(now + at_s * NS))  # type: ignore[arg-type]
        jobs.set_control_request(db, JOB, action)
    assert LaunchContext(database, JOB, 1).may_begin() is may_continue


def test_self_test_of_dead_driver_is_billed_until_its_death_on_refusal(
    database: Database,
) -> None:
    eligibility = eligibility_of(database, FakeActors([], []))
    with database.write() as db:
        an_hour = Cost(DEMAND.price.of(3600 * NS), 0)
        hold = OpenHold("former", SELF_TEST, 1, 1, an_hour, Instant(NS), Instant(3601 * NS))
        ledger.place(db, PROJECT, JOB, hold)
    eligibility.refuse("it forgets", died_at=Instant(3 * NS))
    assert account(database).posted.usd == DEMAND.price.of(2 * NS)
