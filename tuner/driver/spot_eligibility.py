"""Require that a job's trainable passes the restore self-test before the job may use spot machines.

The test trains, saves a checkpoint, kills the process, restores the checkpoint, and compares the restored state with the saved
state. It runs on the cluster with the resources of one trial, on an on-demand machine if one is available. The job pays
for the test from a hold, with the cost kind `setup`. The result is stored with the digest of the trainable's code, so later jobs with
the same code are not tested again.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, cycle
from random import Random
from typing import TYPE_CHECKING

from tuner.database.database import Database
from tuner.domain.cost import CostKind
from tuner.domain.errors import Unavailable
from tuner.domain.ids import SELF_TEST, hold_id
from tuner.domain.job import Resources
from tuner.domain.ledger import lost_of
from tuner.domain.money import Cost
from tuner.domain.offer import Offer
from tuner.domain.records import OpenHold, SelfTestRow
from tuner.domain.text import storable
from tuner.domain.time import NS, Instant, system_now
from tuner.driver.actuator import package_of, teacher_of
from tuner.driver.machine_check import Find
from tuner.driver.paid_work import (
    PaidActorLost,
    WrongMachine,
    allowed,
    assigned_offer,
    billed,
    wait,
    wait_until,
    work_limit_s,
)
from tuner.ledger import ledger
from tuner.store import jobs, launches, self_tests
from tuner.store.jobs import JobRow
from tuner.store.journal import close_open
from tuner.store.self_tests import refusal
from tuner.worker.environment import code_of
from tuner.worker.self_test import SelfTestOrder, Verdict

if TYPE_CHECKING:  # importing this at run time would load Ray, which takes a second
    from tuner.driver.paid_actors import PaidActor

# The time limit of the test: the time for which 1/SHARE of the remaining money pays, but at least LEAST_NS and at most MOST_NS. It is never
# longer than the time for which all of the remaining money pays.
SHARE = 10
LEAST_NS = 600 * NS
MOST_NS = 24 * 3600 * NS
LOST_MAX = 5
# The test is given up after so many rounds over all offers, one after another, in which every offer got a machine that was refused. A round takes, for
# each offer, up to TUNER_SPOT_WAIT but at least two minutes, and up to two more minutes after a refusal.
REFUSED_ROUNDS = 10
STARTS_WITHIN_S = 120.0
CONFIGS = 3
NO_MONEY = "the rest of the job's budget, or of a shared budget over it, does not pay for the self-test, so raise that budget"
log = logging.getLogger("tuner.driver")


class Abandoned(Exception):
    """The self-test was abandoned, because the job should not begin after all."""


@dataclass(frozen=True, kw_only=True)
class SpotEligibility:
    """Decide whether one job may use spot machines: run the restore self-test of its trainable, unless the result is known already."""

    database: Database
    row: JobRow
    epoch: int
    #: Called several times per second. Once it returns False, the test is abandoned, and `Abandoned` is raised.
    may_continue: Callable[[], bool]
    #: How many seconds to wait for a machine of one offer before the next offer is tried. The wait doubles in each round over all
    #: offers, so that a process that starts slowly can succeed.
    wait_s: float
    #: The digest of the trainable's code that the service computed when the job was submitted.
    seen: str | None = None
    storage: str = ""
    start_actor: Callable[[Offer, Resources], "PaidActor[SelfTestOrder, Verdict]"]
    find: Find  #: Returns the priced offer of a machine.
    #: Returns whether a machine of this offer exists. If no machine of any offer exists, the cheapest offer is requested first, because
    #: trials can then use that machine too.
    is_available: Callable[[Offer], bool] = lambda offer: True
    #: The numbers of the holds of the tests that this driver begins.
    _numbers: Iterator[int] = field(default_factory=lambda: count(1), init=False)

    def refusal(self, *, died_at: Instant | None) -> str | None:
        """Return None if this job may run. If its trainable fails the self-test, return why the job may not run.

        A failed test may pass another time, for example if it ran out of time (`Verdict.lasting` is false). If the job also has on-demand
        offers, its spot offers are then removed and None is returned. A job that has had an attempt has passed the test before, so it is not
        tested again, even if its code has changed since.

        Args:
            died_at: When the previous driver is known to have stopped. The holds that it left open are billed until then. None means now.

        Raises:
            Abandoned: The job should not begin after all, so the test did not end.
            Unavailable: The machine of the test was lost `LOST_MAX` times.
        """
        with self.database.read() as db:
            begun = jobs.has_attempts(db, self.row.id)
        if begun or all(offer.market != "spot" for offer in self.row.offers):
            return None
        trainable, roots = self.row.spec.trainable, os.environ.get("PYTHONPATH", "").split(os.pathsep)
        code = code_of(self.row.spec, roots)
        with self.database.read() as db:
            known = self_tests.get(db, self.row.project, trainable, code) if code else None
        if known is not None:
            self._note(known)
            return None if known.passed else refusal(known.reason)
        fix = "Correct the cause and submit the job again"
        try:
            verdict = self._tested(died_at)
            fix += "; on_demand needs no self-test"
        except WrongMachine as wrong:
            # The machine check of a trial would refuse these machines, too.
            verdict = Verdict(False, str(wrong), lasting=False)
        verdict = replace(
            verdict, reason=storable(verdict.reason)
        )  # it may contain the message of an error in user code
        if code and verdict.lasting:
            self._note(
                SelfTestRow(trainable, code, verdict.passed, verdict.reason, self.row.id, system_now())
            )
        log.info("restore self-test of %s: %s", trainable, verdict)
        if verdict.passed or (not verdict.lasting and self._on_demand_only(verdict.reason)):
            return None
        if verdict.lasting:
            return refusal(verdict.reason)
        return f"the restore self-test that spot machines require was not passed: {verdict.reason}. {fix}"

    def _note(self, result: SelfTestRow) -> None:
        """Store a self-test result, so that later jobs with the same code are not tested again.

        The result is stored under two digests of the code: the digest that drivers compute, and the digest that the service computed when
        this job was submitted (`seen`). When a later job is submitted, the service finds the result by the second digest.
        """
        with self.database.write("self_test.note") as db:
            self_tests.put(db, self.row.project, result)
            if self.seen is not None:
                as_submitted = replace(result, code=self_tests.as_submitted(self.seen))
                self_tests.put(db, self.row.project, as_submitted)

    def refuse(self, why: str, *, died_at: Instant | None) -> None:
        """Fail the job with the reason `why`.

        An earlier driver may have left holds, attempts and trials open. Settle these holds, and end the attempts and trials. `died_at`
        is when that driver stopped, and the holds are billed until then. None means now.
        """
        now = system_now()
        with self.database.write("self_test.refuse") as db:
            launches.check(db, self.row.id, self.epoch)
            close_open(db, self.row.project, self.row.id, died_at=died_at or now, at=now)
            jobs.move(db, self.row.id, "failed", "error", at=now, detail=f"/resources/market: {why}")
            launches.end(db, self.row.id, self.epoch)

    def _on_demand_only(self, why: str) -> bool:
        """Remove the spot offers from the job. Return False, and change nothing, if the job has spot offers only."""
        rest = tuple(offer for offer in self.row.offers if offer.market != "spot")
        if rest:
            with self.database.write("self_test.on_demand") as db:
                launches.check(db, self.row.id, self.epoch)
                jobs.set_offers(db, self.row.id, rest)
                detail = f"the job uses only on-demand machines, because the restore self-test was not passed: {why}"
                jobs.move(db, self.row.id, "running", None, at=system_now(), detail=detail)
            log.warning("%s: %s", self.row.id, detail)
        return bool(rest)

    def _show(self, detail: str) -> None:
        """Set the detail of the running job."""
        with self.database.write("self_test.show") as db:
            launches.check(db, self.row.id, self.epoch)
            jobs.move(db, self.row.id, "running", None, at=system_now(), detail=detail)
        if detail:
            log.warning("%s: %s", self.row.id, detail)

    # The test

    def _tested(self, died_at: Instant | None) -> Verdict:
        """Run the test, and repeat it if its machine is lost. Raise WrongMachine if all machines are refused."""
        with self.database.write("self_test.settle_former") as db:
            launches.check(db, self.row.id, self.epoch)
            now = system_now()
            # The job has had no attempt yet, so only a test that an earlier driver began can have left a hold open.
            ledger.settle_open(
                db, self.row.project, self.row.id, lambda hold: lost_of(hold, {}, died_at or now, now), now
            )
        for losses in count(1):
            try:
                return self._test()
            except PaidActorLost as lost:
                if losses == LOST_MAX:
                    raise Unavailable(
                        f"the worker of the restore self-test was lost {losses} times: {lost}"
                    ) from lost
                log.warning("the worker of the restore self-test was lost; the test is repeated: %s", lost)
        raise AssertionError

    def _test(self) -> Verdict:
        """Wait for a machine as long as necessary, and run the test on it. Waiting costs nothing.

        A machine that the job does not allow, or whose price is not known, is returned, and the job's detail says why. If every offer gets a
        machine in `REFUSED_ROUNDS` rounds one after another, and all of them are refused, raise WrongMachine. While an offer gets no machine,
        the test waits, because a machine of that offer may be allowed.
        """
        size = self.row.spec.resources
        # Offers with an existing machine come first, and on-demand ones before spot ones. Otherwise the cheapest offer comes first.
        kinds = sorted(
            self.row.offers,
            key=lambda offer: (
                not self.is_available(offer),
                offer.market == "spot" and self.is_available(offer),
                offer.rate(size).price.micro_usd_per_hour,
            ),
        )
        refused, shown = 0, ""  # how many machines were refused one after another, and the detail of the job
        for turn, offer in enumerate(cycle(kinds)):
            # An actor is known to have a machine only once its process runs there. So the wait grows from round to round, up to the time
            # that the start of a process may take.
            wait_s = min(self.wait_s * 2 ** min(turn // len(kinds), 10), max(self.wait_s, STARTS_WITHIN_S))
            try:
                with self.start_actor(offer, size) as actor:
                    if wait_until(actor.has_machine, wait_s, may_continue=self._check_may_continue):
                        assigned = assigned_offer(actor.machine(), offer, size, self.find)
                        if shown:
                            self._show("")
                        return self._paid(actor, assigned)
                refused = 0
            except WrongMachine as wrong:
                refused += 1
                if refused == REFUSED_ROUNDS * len(kinds):
                    raise
                if (detail := f"the restore self-test waits for another machine: {wrong}") != shown:
                    self._show(detail)
                    shown = detail
                # Another machine may be free later.
                wait(min(wait_s, STARTS_WITHIN_S), may_continue=self._check_may_continue)
        raise AssertionError

    def _paid(self, actor: "PaidActor[SelfTestOrder, Verdict]", offer: Offer) -> Verdict:
        """Place a hold (reserve money) for the test, run the test on an actor that has a machine, and settle
        the hold.
        """
        number = next(self._numbers)
        name = hold_id(self.row.id, SELF_TEST, self.epoch, number)
        rate = offer.rate(self.row.spec.resources.on_one_node)
        with self.database.write("self_test.hold") as db:
            launches.check(db, self.row.id, self.epoch)
            now, where = system_now(), (name, SELF_TEST, self.epoch, number)
            affords = rate.affords_ns(allowed(db, self.row, now))
            limit_ns = min(affords, max(LEAST_NS, min(affords // SHARE, MOST_NS)))
            hold = OpenHold(*where, rate.cost(limit_ns), now, Instant(now + limit_ns))
            if limit_ns <= 0 or not ledger.place(db, self.row.project, self.row.id, hold):
                return Verdict(False, NO_MONEY, lasting=False)

        def settle(used: Mapping[CostKind, Cost]) -> None:
            with self.database.write("self_test.settle") as db:
                ledger.settle(db, self.row.project, self.row.id, name, used, system_now())

        with billed(actor, rate, limit_ns, "setup", settle):
            actor.begin(self._order(limit_ns))
            if wait_until(actor.answered, limit_ns / NS, may_continue=self._check_may_continue):
                return actor.answer()
            return Verdict(False, f"the self-test did not finish within {limit_ns / NS:.0f} s", lasting=False)

    def _order(self, limit_ns: int) -> SelfTestOrder:
        """Return the order for a restore self-test that must end within `limit_ns` nanoseconds."""
        spec, size = self.row.spec, self.row.spec.resources
        with self.database.read() as db:
            teacher = teacher_of(db, self.row, self.storage)
        drawn = [
            spec.space.sample(Random(f"{spec.algorithm.seed}/self-test/{number}"))
            for number in range(CONFIGS)
        ]
        return SelfTestOrder(
            entry=spec.entry,
            kind=spec.kind,
            package=package_of(self.row, self.storage),
            configs=[spec.begin_config(config) for config in drawn],
            max_step=spec.fidelity.max,
            limit_s=work_limit_s(limit_ns),
            resources={"CPU": size.cpus, "GPU": size.gpus},
            processes=size.processes,
            teacher=teacher,
        )

    def _check_may_continue(self) -> bool:
        """Return True if the job should still begin. Otherwise raise Abandoned."""
        if not self.may_continue():
            raise Abandoned
        return True
