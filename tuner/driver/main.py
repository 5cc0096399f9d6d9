"""The driver of one launch of one job: `python -m tuner.service.driver --job JOB --epoch N`, run as a Ray Job.

The driver rebuilds the job from the database and runs it under Ray Tune until the job ends or pauses. Everything that
the driver needs to continue is recorded, so if it is killed, the next driver continues from the record. `Heartbeat` shows
the service that the driver makes progress, and `ControlPoller` reads the users' control requests.

Exit status 0: the job's state says how it ended. 1: the job did not end, or a later driver owns it.
"""

import argparse
import logging
import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import ray

from tuner.cluster.jobs import money_metadata
from tuner.cluster.node_types import node_types_of
from tuner.database.database import Database
from tuner.domain.checkpointing import Losses
from tuner.domain.cost import total
from tuner.domain.errors import Fenced, TunerError, Unavailable
from tuner.domain.events import ConcurrencyChanged, ControlRequested, TrialRequest
from tuner.domain.money import Money
from tuner.domain.time import NS, Instant
from tuner.driver.actuator import Actuator, BeginMessages, MemoryLimit, RecentRead, package_of, teacher_of
from tuner.driver.fallback import placement_of
from tuner.driver.loop import Loop
from tuner.driver.machine_check import Find, MachineCheck
from tuner.driver.paid_actors import PaidActor
from tuner.driver.placement import AllowedPlaces
from tuner.driver.ports import LoopConfig
from tuner.driver.ray_display import RayDisplay
from tuner.driver.ray_machines import ClusterMachines
from tuner.driver.recovery import recover
from tuner.driver.spot_eligibility import Abandoned, SpotEligibility
from tuner.driver.tuning_run import run_tune
from tuner.driver.warm_start_copies import WARM_STARTS_MAX, Copier, warm_starts_of
from tuner.driver.warm_starts import WarmStarts
from tuner.ledger import ledger
from tuner.settings import Settings, release
from tuner.store import jobs, launches, queue
from tuner.store.evidence import artifact_bytes, losses
from tuner.store.jobs import Control, JobRow
from tuner.store.journal import SqlJournal
from tuner.store.warm_starts import find_warm_starts, past_trials
from tuner.tuning.samplers import Sampler, sampler_for
from tuner.worker.environment import code_of
from tuner.worker.self_test import self_test

HEARTBEAT_S = 0.5  # time between two heartbeats
LOOK_S = 0.25  # time between two checks for control requests
HANGS_AFTER_S = 60.0  # if the loop has made no progress for this long, no heartbeat is recorded
# How long to wait for a database that restarts. Trials continue within their leases during the wait.
DATABASE_AWAY_S = 20.0

log = logging.getLogger("tuner.driver")


class SystemClock:
    def now(self) -> Instant:
        return Instant(time.time_ns())

    def elapsed_ns(self) -> int:
        return time.monotonic_ns()


@dataclass(frozen=True)
class LaunchContext:
    """Identify this driver's launch of its job (job and epoch), and read and write the database on its behalf."""

    database: Database
    job: str
    epoch: int

    def control(self) -> Control:
        """Return the job's control request, budget and concurrency.

        The query is repeated once, because the connection may break if the database restarts. Raise Unavailable if the
        database cannot be reached within `DATABASE_AWAY_S`.
        """
        for is_repeated in (False, True):
            try:
                with self.database.read() as db:
                    return jobs.control(db, self.job)
            except Unavailable as error:
                # The connection broke during the query. The repeated query opens a new one, which waits for a server that restarts.
                if is_repeated:
                    raise
                log.warning("a query of the database failed and is repeated: %s", error.detail)
        raise AssertionError

    def width(self, concurrency: int) -> int:
        """Return how many trials this job may run at once: `concurrency`, or fewer if the project's quota allows fewer."""
        with self.database.read() as db:
            return queue.get(db, jobs.get(db, self.job).project).width(concurrency)

    def trial_requests(self, *, after: int) -> list[TrialRequest]:
        """Return the users' requests about single trials that came after the request with the number `after`."""
        with self.database.read() as db:
            return jobs.trial_requests_of(db, self.job, after=after)

    def row(self) -> JobRow:
        with self.database.read() as db:
            return jobs.get(db, self.job)

    def may_begin(self) -> bool:
        """Return whether a job that has not begun yet should still begin (see `should_begin`)."""
        return should_begin(self.row(), Instant(time.time_ns()))

    def spend(self) -> dict[str, str]:
        """Return the job's spend and budget, for Ray's dashboard."""
        with self.database.read() as db:
            return money_metadata(jobs.control(db, self.job).budget, ledger.account(db, self.job).posted)

    def cost_of(self, trial: str, attempt: int) -> Money:
        """Return the posted cost of an attempt."""
        with self.database.read() as db:
            return total(ledger.posted_by_kind(db, self.job, trial, attempt)).usd

    def losses(self, market: str) -> Losses:
        with self.database.read() as db:
            return losses(db, self.job, market, Instant(time.time_ns()))

    def artifact_bytes(self, job: str) -> int:
        with self.database.read() as db:
            return artifact_bytes(db, job)

    def record_versions(self) -> None:
        """Record the versions of tuner, Ray and Python that this driver runs with.

        After an upgrade of the service, users can see which drivers still run with the old versions.
        """
        versions = {"tuner": release(), "ray": ray.__version__, "python": platform.python_version()}
        with self.database.write("driver.versions") as db:
            launches.record_versions(db, self.job, self.epoch, **versions)

    def begin(self) -> JobRow:
        """Set the job's state to running, and return its row. Raise Fenced if this driver is not the job's current one."""
        with self.database.write("driver.begin") as db:
            launches.check(db, self.job, self.epoch)
            jobs.begin_running(db, self.job, at=Instant(time.time_ns()))
            return jobs.get(db, self.job)

    def record_heartbeat(self) -> None:
        """Record a heartbeat. Raise Fenced if this driver is not the job's current one."""
        with self.database.write("driver.beat") as db:
            launches.record_heartbeat(db, self.job, self.epoch, Instant(time.time_ns()))


def should_begin(row: JobRow, now: Instant) -> bool:
    """Return whether a job that has not begun yet should begin.

    Return False if a pause or cancel was requested, if the job's wall-clock limit has passed, or if its window is closed.
    """
    limit_ns, window = row.budget.wall_clock_ns, row.spec.window
    if row.control_request in ("pause", "cancel") or (
        limit_ns is not None and row.running_ns(now) >= limit_ns
    ):
        return False
    return window is None or window.is_open(now)


def pass_gate(
    gate: SpotEligibility, context: LaunchContext, *, died_at: Instant | None
) -> tuple[JobRow, str | None]:
    """Return the job's newest row, and why the job may not run according to the gate. None means that it may run, or should not begin.

    If the self-test was abandoned, but the job should begin again, the test is repeated. Otherwise a job that is paused and resumed during
    the test would run without it.
    """
    while True:
        try:
            why = gate.refusal(died_at=died_at)
        except Abandoned:
            row = context.row()
            if not should_begin(row, Instant(time.time_ns())):
                return row, None
        else:
            return context.row(), why


class Heartbeat(threading.Thread):
    """Record a heartbeat every `HEARTBEAT_S`, in a thread, while the loop makes progress.

    If a later driver of the job has started, the thread exits this process at once, so that Ray ends its workers too.
    """

    def __init__(self, context: LaunchContext) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._context = context
        self._over = threading.Event()
        self.turned_at = time.monotonic()

    def run(self) -> None:
        while not self._over.wait(HEARTBEAT_S):
            if time.monotonic() - self.turned_at < HANGS_AFTER_S:
                # The service stops a driver without heartbeats. So no error may end this thread.
                try:
                    self._record_heartbeat()
                except Exception as error:
                    is_unexpected = not isinstance(error, TunerError)
                    log.warning("a heartbeat could not be recorded: %s", error, exc_info=is_unexpected)

    def _record_heartbeat(self) -> None:
        try:
            self._context.record_heartbeat()
        except Fenced as fenced:
            with self._context.database.read() as db:
                launch = launches.get(db, self._context.job)
            if launch is None or launch.epoch != self._context.epoch:
                log.error("this driver exits, because it does not own the job any more: %s", fenced.detail)
                os._exit(1)
            self.stop()  # no later driver exists: this driver itself has ended the job, so heartbeats are not needed

    def turns(self) -> None:
        """Record that the loop makes progress."""
        self.turned_at = time.monotonic()

    def stop(self) -> None:
        self._over.set()


class ControlPoller:
    """Check for control requests and changes of the job every `LOOK_S`, and call the loop's `tick`.

    `concurrency` is how many trials may run at once according to the job. The project's quota may allow fewer.
    """

    def __init__(
        self,
        loop: Loop,
        journal: SqlJournal,
        context: LaunchContext,
        heartbeat: Heartbeat,
        display: RayDisplay,
        concurrency: int,
    ) -> None:
        self._loop, self._journal, self._context, self._heartbeat = loop, journal, context, heartbeat
        self._display, self._concurrency = display, concurrency
        self._requested: str | None = None
        self._next = 0.0

    def turn(self) -> None:
        """Record that the loop makes progress, and answer pending suggestions. Call this on every turn of Tune's loop.

        Every `LOOK_S`, also update the dashboard, pass new requests to the loop, and call the loop's `tick`.
        """
        now = self._heartbeat.turned_at = time.monotonic()
        self._loop.answer_suggestions()
        if now < self._next or self._loop.end is not None:
            return
        self._next = now + LOOK_S
        self._display.turn(now)
        control = self._context.control()
        if control.budget_version != self._journal.budget_version:
            self._journal.budget_version = control.budget_version
            self._loop.budget_changed(control.budget)
        if control.concurrency != self._concurrency and self._loop.end is None:
            self._concurrency = control.concurrency
            width = self._context.width(control.concurrency)
            self._loop.handle_event(ConcurrencyChanged(Instant(time.time_ns()), width))
        if control.newest_request > self._loop.state.requests:
            handle_trial_requests(self._loop, self._context)
        if control.request in ("pause", "cancel") and control.request != self._requested:
            self._requested = control.request
            self._loop.handle_event(ControlRequested(Instant(time.time_ns()), control.request))
        if self._loop.end is None:
            self._loop.tick()


def handle_trial_requests(loop: Loop, context: LaunchContext) -> None:
    """Pass the users' new requests about single trials to the loop, until the job has ended."""
    for request in context.trial_requests(after=loop.state.requests):
        if loop.end is None:
            loop.handle_event(replace(request, at=Instant(time.time_ns())))


def rebuild(
    context: LaunchContext,
    settings: Settings,
    row: JobRow,
    heartbeat: Heartbeat,
    *,
    died_at: Instant | None,
    find: Find | None = None,
    places: AllowedPlaces | None = None,
) -> tuple[Loop, SqlJournal, Actuator]:
    """Rebuild the job from its record, and carry out the user's newest control request. Return its loop, journal and actuator.

    Args:
        context: The launch and its database.
        settings: The settings of the service.
        row: The job.
        heartbeat: The heartbeat thread.
        died_at: When the previous driver's workers are known to have stopped. None if that is not known.
        find: Returns the priced offer that matches a machine, for the machine check. None if machines are not checked.
        places: The offers to choose from, with their rates. None if all machines are equally good.
    """
    now = Instant(time.time_ns())
    journal = SqlJournal(context.database, context.job, row.project, context.epoch, now)
    journal.budget_version = row.budget_version
    size = row.spec.resources
    with context.database.read() as db:
        teacher = teacher_of(db, row, settings.storage)
    begin_messages = BeginMessages(
        row,
        settings.storage,
        MemoryLimit(ray.nodes, size),
        best_checkpoint=journal.best_checkpoint,
        saved_by=journal.saved_by,
        losses=RecentRead(context.losses),
        artifact_bytes=RecentRead(context.artifact_bytes),
        teacher=teacher,
    )
    actuator = Actuator(begin_messages.begin)
    loop_config = LoopConfig(row.id, row.offer.rate(size), row.concurrency, round(settings.slice_s * NS))
    sampler = sampler_for(row.spec, past_trials(context.database, row.id, row.spec))
    loop = Loop(
        row.spec,
        loop_config,
        sampler=sampler,
        journal=journal,
        world=actuator,
        clock=SystemClock(),
        placement=placement_of(places, spot_wait_ns=round(settings.spot_wait_s * NS)) if places else None,
        machine_check=MachineCheck(size, find),
        warm_starts=_warm_starts(context, settings, row, sampler, heartbeat),
    )
    recover(loop, died_at=died_at, now=now, turned=heartbeat.turns)
    if loop.state.budget != row.budget:
        loop.budget_changed(row.budget)
    handle_trial_requests(loop, context)
    if loop.end is None:
        loop.start(ControlRequested(now, row.control_request or "resume"))
    return loop, journal, actuator


def _warm_starts(
    context: LaunchContext, settings: Settings, row: JobRow, sampler: Sampler, heartbeat: Heartbeat
) -> WarmStarts:
    """Return the trials of earlier jobs that this job continues (warm start), after copying their checkpoints.

    Also record the digest of the job's code, because a later job may only continue trials that ran with the same code.
    """
    code = code_of(row.spec, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    with context.database.write("driver.code") as db:
        jobs.note_code(db, context.job, code)
        begun = jobs.trials_begun(db, context.job)
        warm = row.spec.warm_start_checkpoints and code is not None
        earlier_trials = (
            find_warm_starts(db, context.job, row.spec, code=code or "", limit=WARM_STARTS_MAX)
            if warm
            else []
        )
    copier = Copier(settings.storage, row.project, context.job, heartbeat.turns)
    return warm_starts_of(row.spec, sampler, earlier_trials, begun=begun, copier=copier)


def main(finder: Callable[[Settings, JobRow], Find]) -> int:
    """Run the driver of one launch of a job, and return its exit status.

    `finder` returns a function for the job. That function returns the priced offer that matches a machine, or None if the machine's
    price is not known.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", required=True)
    parser.add_argument("--epoch", required=True, type=int)
    parser.add_argument("--code", help="the digest of the trainable's code, as the service has it")
    args = parser.parse_args()
    settings = Settings.from_env()
    database = Database(
        settings.database_url, failpoint=settings.failpoint, connect_timeout_s=DATABASE_AWAY_S
    )
    context = LaunchContext(database, args.job, args.epoch)
    with database.read() as db:
        launch = launches.get(db, args.job)
    died_at = None if launch is None else launch.previous_workers_ended_by
    try:
        context.record_heartbeat()
        context.record_versions()
    except Fenced as fenced:
        log.error("this driver exits, because it does not own the job: %s", fenced.detail)
        return 1
    heartbeat = Heartbeat(context)
    heartbeat.start()
    ray.init(log_to_driver=False, logging_level=logging.WARNING)
    try:
        row = context.begin()
    except Fenced as fenced:
        heartbeat.stop()
        log.error("this driver exits, because its launch was called off: %s", fenced.detail)
        return 1
    # If no offer of the job names node labels, all machines are equally good, so no list of machines is needed.
    has_labels = any(offer.labels for offer in row.offers)
    machines = ClusterMachines(node_types_of(settings.node_types)) if has_labels else None
    places = AllowedPlaces(row.offers, row.spec.resources, machines) if machines else None

    def may_continue() -> bool:
        """Return whether the job should still begin.

        Also note that the driver makes progress, because heartbeats are recorded only while it does.
        """
        heartbeat.turns()
        return context.may_begin()

    gate = SpotEligibility(
        context.database,
        row,
        context.epoch,
        may_continue,
        settings.spot_wait_s,
        args.code,
        storage=settings.storage,
        start_actor=partial(PaidActor, self_test),
        is_available=lambda offer: places is None or places.has_machine(offer),
    )
    row, why = pass_gate(gate, context, died_at=died_at)
    if why is not None:
        heartbeat.stop()
        gate.refuse(why, died_at=died_at)
        return 0
    admitted = row.concurrency
    row = replace(row, concurrency=context.width(admitted))
    find = finder(settings, row)
    # Make the places again, because the self-test may have removed the job's spot offers.
    places = AllowedPlaces(row.offers, row.spec.resources, machines) if machines else None
    loop, journal, actuator = rebuild(
        context, settings, row, heartbeat, died_at=died_at, find=find, places=places
    )
    submission_id = f"{context.job}-{context.epoch}"
    display = RayDisplay(row.spec.name, submission_id, loop, context.spend, context.cost_of)
    poller = ControlPoller(loop, journal, context, heartbeat, display, admitted)
    if loop.end is None:
        run_tune(
            row.spec,
            loop,
            actuator,
            package=package_of(row, settings.storage),
            display=display,
            each_turn=poller.turn,
        )
        display.close()
    heartbeat.stop()
    return 0 if loop.end is not None else 1
