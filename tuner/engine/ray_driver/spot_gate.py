"""Before a job may use spot machines: its trainable has passed the restore self-test, or passes it now.

The test runs on the cluster, on a machine that is not spot where the job may have one, in the place of one trial; the job pays for
it, as `setup`, out of a hold like any other. What it found out is kept by the trainable's code, and later jobs are not tested again.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import ray

from tuner.domain.cost import CostKind
from tuner.domain.errors import Unavailable
from tuner.domain.ids import SELF_TEST, hold_id
from tuner.domain.job import config_values
from tuner.domain.money import Cost
from tuner.domain.offer import Offer
from tuner.domain.records import OpenHold
from tuner.domain.time import NS, Instant
from tuner.engine.code_digest import code_digest
from tuner.engine.recovery import lost_of
from tuner.engine.worker import BORN_NS
from tuner.engine.worker.self_test import Verdict, self_test
from tuner.store import jobs, launches, ledger, self_tests
from tuner.store.database import Connection, Database
from tuner.store.jobs import JobRow
from tuner.store.journal import end_open
from tuner.store.self_tests import SelfTest, refusal

LIMIT_NS = 600 * NS
ENDS_WITHIN_NS = 10 * NS  # of the limit: the test has come to its own end by then
PLACED_WITHIN_S = 300.0
LOOK_S = 0.2
CONFIGS = 3
log = logging.getLogger("tuner.driver")


class Tester:
    """An actor with the size of a trial."""

    def ready(self) -> None:
        """It has a machine."""

    def test(self, order: dict[str, Any]) -> tuple[Verdict, int]:
        """The verdict, and for how many nanoseconds this process has existed."""
        return self_test(**order), time.monotonic_ns() - BORN_NS


@dataclass
class Stay:
    """On the machine, on the monotonic clock. `told_ns` counts its process from its beginning."""

    began_ns: int | None = None
    told_ns: int = 0

    def used_ns(self) -> int:
        if self.began_ns is None:
            return 0
        return self.told_ns or time.monotonic_ns() - self.began_ns


@dataclass(frozen=True)
class SpotGate:
    """`goes_on` is called several times a second; once it answers False, the test is given up."""

    database: Database
    row: JobRow
    epoch: int
    goes_on: Callable[[], bool]

    def refusal(self, *, died_at: Instant | None) -> str | None:
        """Why this job may not run; None: it may, or it is not to go on. Raises Unavailable where the test itself was lost.

        `died_at`: when the driver before is known to have stopped.
        """
        if all(offer.market != "spot" for offer in self.row.offers):
            return None
        trainable, roots = self.row.spec.trainable, os.environ.get("PYTHONPATH", "").split(os.pathsep)
        code = code_digest(trainable, roots)
        with self.database.read() as db:
            known = self_tests.get(db, self.row.project, trainable, code) if code else None
        if known is not None:
            return None if known.passed else refusal(known.reason)
        verdict = self._tested(died_at)
        if verdict is None:
            return None
        if code and verdict.lasting:
            found = SelfTest(trainable, code, verdict.passed, verdict.reason, self.row.id, _now())
            with self.database.write() as db:
                self_tests.put(db, self.row.project, found)
        log.info("restore self-test of %s: %s", trainable, verdict)
        return None if verdict.passed else refusal(verdict.reason)

    def refuse(self, why: str) -> None:
        """Ends the job, and whatever was left open of it."""
        now = _now()
        with self.database.write() as db:
            launches.check(db, self.row.id, self.epoch)
            for hold in ledger.open_holds(db, self.row.id):
                ledger.settle(db, self.row.project, self.row.id, hold.id, lost_of(hold, now), now)
            end_open(db, self.row.id, now)
            jobs.move(db, self.row.id, "failed", "error", at=now, detail=f"/resources/market: {why}")
            launches.end(db, self.row.id, self.epoch)

    # The test

    def _tested(self, died_at: Instant | None) -> Verdict | None:
        """None: given up."""
        offer, size = _place(self.row), self.row.spec.resources
        rate = offer.rate(cpus=size.cpus, gpus=size.gpus)
        with self.database.write() as db:
            launches.check(db, self.row.id, self.epoch)
            self._settle_former(db, died_at)
            affords = rate.affords_ns(ledger.account(db, self.row.id).left)
            limit_ns = min(LIMIT_NS, affords, self.row.budget.wall_clock_ns or LIMIT_NS)
            now, name = _now(), hold_id(self.row.id, SELF_TEST, self.epoch, 1)
            where = (name, SELF_TEST, self.epoch, 1)
            hold = OpenHold(*where, rate.cost(limit_ns), now, Instant(now + limit_ns))
            ledger.place(db, self.row.project, self.row.id, hold)
        stay = Stay()
        try:
            return self._on_the_cluster(offer, limit_ns, stay)
        finally:
            cost = rate.cost(min(stay.used_ns(), limit_ns))
            used: dict[CostKind, Cost] = {} if cost.nothing else {"setup": cost}
            with self.database.write() as db:
                ledger.settle(db, self.row.project, self.row.id, name, used, _now())

    def _settle_former(self, db: Connection, died_at: Instant | None) -> None:
        for hold in ledger.open_holds(db, self.row.id):
            if hold.trial == SELF_TEST:
                lost = lost_of(hold, died_at or _now())
                ledger.settle(db, self.row.project, self.row.id, hold.id, lost, _now())

    def _on_the_cluster(self, offer: Offer, limit_ns: int, stay: Stay) -> Verdict | None:
        size = self.row.spec.resources
        options = {"num_cpus": size.cpus, "num_gpus": size.gpus, "label_selector": dict(offer.labels)}
        actor = ray.remote(Tester).options(**options).remote()
        try:
            if not self._awaited(actor.ready.remote(), PLACED_WITHIN_S):
                if not self.goes_on():
                    return None
                raise Unavailable("the restore self-test found no machine")
            stay.began_ns = time.monotonic_ns()
            answer = actor.test.remote(self._order(limit_ns))
            if self._awaited(answer, limit_ns / NS):
                verdict, stay.told_ns = ray.get(answer)
                return verdict  # type: ignore[no-any-return]
            late = Verdict(False, f"it was not through within {limit_ns / NS:.0f} s", lasting=False)
            return late if self.goes_on() else None
        except ray.exceptions.RayActorError as error:
            raise Unavailable(f"the restore self-test was lost: {error}") from error
        finally:
            ray.kill(actor)

    def _order(self, limit_ns: int) -> dict[str, Any]:
        spec, size = self.row.spec, self.row.spec.resources
        drawn = [
            spec.space.sample(Random(f"{spec.algorithm.seed}/self-test/{number}"))
            for number in range(CONFIGS)
        ]
        return {
            "entry": spec.trainable,
            "configs": [config_values(config, spec.constants) for config in drawn],
            "max_step": spec.fidelity.max,
            "limit_s": (limit_ns - min(ENDS_WITHIN_NS, limit_ns // 4)) / NS,
            "resources": {"CPU": size.cpus, "GPU": size.gpus},
        }

    def _awaited(self, answer: Any, within_s: float) -> bool:
        """False: it is not there in time, or not waited for any more."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and self.goes_on():
            if ray.wait([answer], timeout=LOOK_S)[0]:
                return True
        return False


def _place(row: JobRow) -> Offer:
    """The cheapest that is not spot; spot where there is nothing else."""
    size = row.spec.resources
    return min(
        row.offers,
        key=lambda offer: (
            offer.market == "spot",
            offer.rate(cpus=size.cpus, gpus=size.gpus).price.micro_usd_per_hour,
        ),
    )


def _now() -> Instant:
    return Instant(time.time_ns())
