"""The driver of one launch of one job: `python -m tuner.service.driver --job JOB --epoch N`, run as a Ray Job.

The driver rebuilds the job from the database and runs it under Ray Tune until the job ends or pauses. Everything that
the driver needs to continue is recorded, so if it is killed, the next driver continues from the record. `Heartbeat` shows
the service that the driver makes progress, and `ControlPoller` reads the users' control requests.

Exit status 0: the job's state says how it ended. 1: the job did not end, or a later driver owns it.
"""

import argparse
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import ray

from tuner.cluster.node_types import node_types_of
from tuner.database.database import Database
from tuner.domain.errors import Fenced
from tuner.domain.events import ControlRequested
from tuner.domain.time import NS, Instant, system_now
from tuner.driver.actuator import Actuator, BeginMessages, MemoryLimit, RecentRead, package_of, teacher_of
from tuner.driver.control_poller import ControlPoller, handle_trial_requests
from tuner.driver.fallback import placement_of
from tuner.driver.launch_context import DATABASE_AWAY_S, Heartbeat, LaunchContext, should_begin
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
from tuner.settings import Settings
from tuner.store import jobs, launches
from tuner.store.jobs import JobRow
from tuner.store.journal import SqlJournal
from tuner.store.warm_starts import find_warm_starts, past_trials
from tuner.tuning.samplers import Sampler, sampler_for
from tuner.worker.environment import code_of
from tuner.worker.self_test import self_test

log = logging.getLogger("tuner.driver")


class SystemClock:
    def now(self) -> Instant:
        return system_now()

    def elapsed_ns(self) -> int:
        return time.monotonic_ns()


def pass_self_test(
    eligibility: SpotEligibility, context: LaunchContext, *, died_at: Instant | None
) -> tuple[JobRow, str | None]:
    """Return the job's newest row, and why the job may not run according to the restore self-test. None means that it may run, or should not begin.

    If the self-test was abandoned, but the job should begin again, the test is repeated. Otherwise a job that is paused and resumed during
    the test would run without it.
    """
    while True:
        try:
            why = eligibility.refusal(died_at=died_at)
        except Abandoned:
            row = context.row()
            if not should_begin(row, system_now()):
                return row, None
        else:
            return context.row(), why


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
    now = system_now()
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
        metrics_bytes=journal.metrics_bytes,
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
    claim = _claim(settings, args)
    if claim is None:
        return 1
    context, died_at = claim
    # The service stops a driver without heartbeats, so they start before `ray.init`, which takes seconds. The job begins after it,
    # because its running time counts from then.
    heartbeat = Heartbeat(context)
    heartbeat.start()
    ray.init(log_to_driver=False, logging_level=logging.WARNING)
    try:
        row = context.begin()
    except Fenced as fenced:
        heartbeat.stop()
        log.error("this driver exits, because its launch was called off: %s", fenced.detail)
        return 1
    find = finder(settings, row)
    eligible = _eligible_row(context, settings, row, heartbeat, code=args.code, died_at=died_at, find=find)
    if eligible is None:
        return 0
    row, places = eligible
    has_ended = _run(context, settings, row, heartbeat, died_at=died_at, find=find, places=places)
    heartbeat.stop()
    return 0 if has_ended else 1


def _claim(settings: Settings, args: argparse.Namespace) -> tuple[LaunchContext, Instant | None] | None:
    """Record the first heartbeat and the versions of this driver. Return its launch, or None if it does not own the job.

    Also return when the previous driver's workers are known to have stopped. None means that this is not known.
    """
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
        return None
    return context, died_at


def _eligible_row(
    context: LaunchContext,
    settings: Settings,
    row: JobRow,
    heartbeat: Heartbeat,
    *,
    code: str | None,
    died_at: Instant | None,
    find: Find,
) -> tuple[JobRow, AllowedPlaces | None] | None:
    """Return the job's newest row and the places of its trials, after the restore self-test if the job needs it.

    The places are None if all machines are equally good. If the job may not run, fail it and return None.

    Args:
        context: The launch and its database.
        settings: The settings of the service.
        row: The job.
        heartbeat: The heartbeat thread.
        code: The digest of the trainable's code, as the service has it.
        died_at: When the previous driver's workers are known to have stopped. None if that is not known.
        find: Returns the priced offer of a machine.
    """
    # If no offer of the job names node labels, all machines are equally good, so no list of machines is needed.
    has_labels = any(offer.labels for offer in row.offers)
    machines = ClusterMachines(node_types_of(settings.node_types)) if has_labels else None
    places = _places(row, machines)

    def may_continue() -> bool:
        """Return whether the job should still begin.

        Also note that the driver makes progress, because heartbeats are recorded only while it does.
        """
        heartbeat.turns()
        return context.may_begin()

    eligibility = SpotEligibility(
        database=context.database,
        row=row,
        epoch=context.epoch,
        may_continue=may_continue,
        wait_s=settings.spot_wait_s,
        seen=code,
        storage=settings.storage,
        start_actor=partial(PaidActor, self_test),
        find=find,
        is_available=lambda offer: places is None or places.has_machine(offer),
    )
    row, why = pass_self_test(eligibility, context, died_at=died_at)
    if why is not None:
        heartbeat.stop()
        eligibility.refuse(why, died_at=died_at)
        return None
    # Make the places again, because the self-test may have removed the job's spot offers.
    return row, _places(row, machines)


def _places(row: JobRow, machines: ClusterMachines | None) -> AllowedPlaces | None:
    return AllowedPlaces(row.offers, row.spec.resources, machines) if machines else None


def _run(
    context: LaunchContext,
    settings: Settings,
    row: JobRow,
    heartbeat: Heartbeat,
    *,
    died_at: Instant | None,
    find: Find,
    places: AllowedPlaces | None,
) -> bool:
    """Rebuild the job and run it under Ray Tune. Return whether it has ended. See `rebuild` for the arguments."""
    admitted = row.concurrency
    row = replace(row, concurrency=context.width(admitted))
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
    return loop.end is not None
