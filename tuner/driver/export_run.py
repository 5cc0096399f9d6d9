"""The process of one export: `python -m tuner.service.driver --job JOB --export EXPORT`, run as a Ray Job.

The process first waits for a machine, which costs nothing. Then it places a hold for what the export may cost on that machine, and runs the
export in an actor with the resources of a trial. The hold pays for the actor's lease. At the end, the time that was used is posted with the
cost kind `export`.
"""

import argparse
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

from tuner.checkpoints.checkpoints import CheckpointId
from tuner.database.database import Database
from tuner.domain.cost import CostKind
from tuner.domain.errors import Unavailable
from tuner.domain.job import Resources
from tuner.domain.money import Cost
from tuner.domain.offer import Offer
from tuner.domain.records import OpenHold
from tuner.domain.text import storable
from tuner.domain.time import NS, Instant, system_now
from tuner.driver.actuator import package_of
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
from tuner.settings import Settings
from tuner.store import answers, exports, jobs
from tuner.store.exports import ExportRow
from tuner.store.jobs import JobRow
from tuner.worker.export import ExportOrder, ExportResult, export

if TYPE_CHECKING:  # importing this at run time would load Ray, which takes a second
    from tuner.driver.paid_actors import PaidActor

TRIES_FOR_S = 20.0  # how long the export waits for a machine of one offer before it tries the next offer
WAITS_S = 900.0  # how long an export waits for a machine
HEARTBEAT_S = 1.0
NO_MONEY = (
    f"max_cost_usd, the rest of the job's budget, or that of a shared budget over it pays for less than {exports.LEAST_NS / NS:.0f} s of the "
    "machine that the export was given; raise the limit that is too low, and export again"
)
log = logging.getLogger("tuner.driver")


@dataclass
class ExportRun:
    """Run one export: wait for a machine, place the hold, run the export in an actor, and settle the hold."""

    database: Database
    row: JobRow
    export: ExportRow
    storage: str
    start_actor: Callable[[Offer, Resources], "PaidActor[ExportOrder, ExportResult]"]
    find: Find  #: Returns the priced offer of a machine.
    waits_s: float = WAITS_S
    _heartbeat_at: float = 0.0
    _over: bool = False  #: Another process has ended the export.

    def run(self) -> None:
        """Wait for a machine, run the export on it, and record how it ended."""
        size, until = self.row.spec.resources, time.monotonic() + self.waits_s
        busy = f"no machine was free for the export within {self.waits_s:.0f} s; export again when fewer trials run"
        # why the last machine of an offer could not be used, by the place of the offer
        refusals = dict[int, str]()
        for place, requested in cycle(enumerate(self._kinds())):
            try:
                with self.start_actor(requested, size) as actor:
                    if wait_until(actor.has_machine, TRIES_FOR_S, may_continue=self._record_heartbeat):
                        self._paid(actor, assigned_offer(actor.machine(), requested, size, self.find))
                        return
                refusals.pop(place, None)
            except WrongMachine as wrong:
                refusals[place] = str(wrong)
                # Another machine may be free later.
                wait(TRIES_FOR_S, may_continue=self._record_heartbeat)
            if self._over:
                return
            if time.monotonic() > until:
                self._end(ExportResult(None, (), "no_machine", next(iter(refusals.values()), busy)))
                return

    def _kinds(self) -> list[Offer]:
        """Return the offers of the job, in the order in which the export tries them: on demand before spot, and the cheapest first."""
        size = self.row.spec.resources
        return sorted(
            self.row.offers,
            key=lambda offer: (
                offer.market == "spot",
                offer.rate(size).price.micro_usd_per_hour,
            ),
        )

    def _paid(self, actor: "PaidActor[ExportOrder, ExportResult]", offer: Offer) -> None:
        """Place a hold for the export, run it on an actor that has a machine of this offer, and settle the hold."""
        size, project, job = self.row.spec.resources.on_one_node, self.row.project, self.row.id
        rate = offer.rate(size)
        with self.database.write("export.hold") as db:
            now = system_now()
            limit_ns = self.export.spec.lease_ns(rate, allowed(db, self.row, now))
            ends_at = Instant(now + limit_ns)
            hold = OpenHold(self.export.hold, self.export.id, 1, 1, rate.cost(limit_ns), now, ends_at)
            if not exports.start(db, self.export, offer, now):
                return
            has_money = limit_ns >= exports.LEAST_NS and ledger.place(db, project, job, hold)
        if not has_money:
            self._end(ExportResult(None, (), "no_money", NO_MONEY))
            return
        result = ExportResult(None, (), "export_lost", "the process of the export was stopped; export again")
        with billed(actor, rate, limit_ns, "export", lambda used: self._end(result, used)):
            try:
                actor.begin(self._order(limit_ns))
                if wait_until(actor.answered, limit_ns / NS, may_continue=self._record_heartbeat):
                    result = actor.answer()
                else:
                    late = f"the export did not finish within the {limit_ns / NS:.0f} s that the money held for it pays for; raise max_cost_usd"
                    result = ExportResult(None, (), "out_of_time", late)
            except PaidActorLost as lost:
                result = ExportResult(
                    None, (), "export_lost", f"the machine that ran the export was lost: {lost}; export again"
                )

    def _order(self, limit_ns: int) -> ExportOrder:
        """Return the order for the export, which must end within `limit_ns` nanoseconds."""
        spec, size, export = self.row.spec, self.row.spec.resources, self.export
        with self.database.read() as db:
            trial = answers.trial(db, self.row.id, spec.objective.mode, export.trial)
        assert trial is not None
        return ExportOrder(
            project=self.row.project,
            job=self.row.id,
            export=export.id,
            storage=self.storage,
            trial=export.trial,
            checkpoint=CheckpointId(export.step, export.attempt),
            entry=spec.entry,
            package=package_of(self.row, self.storage),
            config=spec.begin_config(trial.config),
            formats=export.spec.formats,
            mode=spec.objective.mode,
            max_drop=export.spec.max_drop,
            threads=threads_of(size),
            limit_s=work_limit_s(limit_ns),
            resources={"CPU": size.cpus, "GPU": size.gpus},
        )

    def _end(self, result: ExportResult, used: Mapping[CostKind, Cost] | None = None) -> None:
        """Record how the export ended, and settle its hold in the same transaction if it has one."""
        delivered = any(variant.file is not None for variant in result.variants)
        code, detail = result.code, result.detail or ""
        if code is None and not delivered and result.variants:
            code, detail = result.variants[0].code, result.variants[0].detail or ""
        detail = storable(detail)  # it may contain the message of an error in user code
        figures = {
            "metric": result.metric,
            "threads": threads_of(self.row.spec.resources),
            "variants": [variant.plain() for variant in result.variants],
        }
        with self.database.write("export.end") as db:
            now = system_now()
            if used is not None:
                ledger.settle(db, self.row.project, self.row.id, self.export.hold, used, now)
            state: Any = "succeeded" if delivered else "failed"
            exports.end(db, self.export, state, now, code=code, detail=detail, result=figures)
        log.info("%s: %s %s %s", self.export.submission_id, state, code or "", detail)

    def _record_heartbeat(self) -> bool:
        """Record a heartbeat if one is due. Return False if another process has ended the export."""
        if not self._over and time.monotonic() - self._heartbeat_at >= HEARTBEAT_S:
            self._heartbeat_at = time.monotonic()
            try:
                with self.database.write("export.beat") as db:
                    self._over = not exports.record_heartbeat(db, self.export, system_now())
            except Unavailable as error:
                # Continue: if the database stays away, the export ends with its lease.
                log.warning("a heartbeat could not be recorded: %s", error.detail)
        return not self._over


def threads_of(size: Resources) -> int:
    """Return the number of threads with which an export measures latency: the trial's CPUs, rounded down, at least one."""
    return max(1, int(size.cpus))


def main(finder: Callable[[Settings, JobRow], Find]) -> int:
    """Run one export, and return the exit status 0. A failed export also returns 0, because its failure is in the database.

    `finder` returns the function that finds the price of a machine, as for `tuner.driver.main`.
    """
    import ray

    from tuner.driver.paid_actors import PaidActor

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", required=True)
    parser.add_argument("--export", required=True)
    args = parser.parse_args()
    settings = Settings.from_env()
    database = Database(settings.database_url, failpoint=settings.failpoint, connect_timeout_s=20.0)
    with database.read() as db:
        export_row, row = exports.get(db, args.job, args.export), jobs.get(db, args.job)
    ray.init(log_to_driver=False, logging_level=logging.WARNING)
    start_actor, find = partial(PaidActor, export), finder(settings, row)
    ExportRun(database, row, export_row, settings.storage, start_actor, find).run()
    return 0
