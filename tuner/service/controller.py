"""The controller: launch the drivers of waiting jobs, and start a new driver for a job whose driver died.

Several services may run at once, but only the controller of the leader acts. A pass reads the launches, queries the
cluster outside of any transaction, and writes the result. A write is refused if the launch has another epoch by then, or
if the term in which the pass began is over. The process may therefore be killed at any moment. Nothing is done twice if
a pass is interrupted, or if it continues after another service has become the leader.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from tuner.cluster.jobs import JobStatus, money_metadata
from tuner.cluster.versions import RayUnfit
from tuner.database.database import Connection
from tuner.domain.calendar import Window
from tuner.domain.errors import BadFile
from tuner.domain.fair_share import Waiting
from tuner.domain.ledger import WORKERS_OUTLIVE_NS, workers_ended_by
from tuner.domain.time import NS, Instant
from tuner.ledger import ledger
from tuner.service.bootstrap import Service
from tuner.service.cluster import HUNG_NS, SILENT_NS, SilenceWatch, import_path
from tuner.service.cluster_room import eligible, has_room, is_full, of_export
from tuner.service.control import ended_without_driver
from tuner.service.exports import ExportSupervisor
from tuner.service.leading import Term
from tuner.service.offers import with_those_to_come
from tuner.service.periodic import PeriodicService
from tuner.service.queue import opening
from tuner.store import answers, exports, jobs, launches, queue
from tuner.store.exports import ExportRow
from tuner.store.jobs import JobRow
from tuner.store.journal import close_open
from tuner.store.launches import Launch
from tuner.worker.environment import code_of

log = logging.getLogger("tuner.controller")

PASS_S = 0.25
ASK_EVERY_S = 0.5
# Maximum number of drivers that one pass checks. Ray's dashboard takes a few milliseconds for each, and hundreds may run.
ASK_AT_ONCE = 16
QUICK_DEATHS_MAX = 5
# If a driver lived longer than this, its death does not count as quick even if no trial reported. The driver may have waited
# for a machine.
QUICK_NS = 3600 * NS


class Controller(PeriodicService):
    """Run the passes of the controller in a thread. A stopped controller cannot be started again."""

    def __init__(self, service: Service) -> None:
        super().__init__("controller", every_s=PASS_S, health=service.health, failures="controller_failures")
        self._service = service
        self._exports = ExportSupervisor(service)
        self._asked_at: dict[str, float] = {}
        self._watch = SilenceWatch()
        # Jobs whose driver Ray did not know. They are logged once, although several drivers of a job may be refused per second.
        self._refused = set[str]()
        # Rows and windows of launched and waiting jobs. They are cached because a job's resources and window never change.
        self._rows: dict[str, JobRow] = {}
        self._concurrency: dict[str, int] = {}
        self._windows: dict[str, Window | None] = {}
        # The first job for which the last pass had no room, and the time at which its launch was ordered, by the nodes that it may run on.
        self._blocked: dict[frozenset[int], tuple[Instant, JobRow]] = {}
        self._unfit = ""  # Why the local Ray launches no driver, as it was logged last.

    def one_pass(self) -> None:
        """Check the drivers, launch waiting jobs and supervise exports, if this service leads.

        A service that does not lead only makes sure that its cluster runs, so that it is ready to become the leader.

        Raises:
            Unavailable: The cluster or the database does not answer, or the cluster that TUNER_RAY_ADDRESS names has another version.
            Fenced: Another service became the leader during the pass.
        """
        with self._service.leading.starting_cluster():
            self._service.cluster.ensure()
        if (term := self._service.leading.term()) is None:
            return
        with self._service.database.read() as db:
            live, begun = launches.actionable(db, self._service.now()), queue.begun(db)
        self._refused &= {launch.job for launch in live}
        for launch in self._due(live):
            self._supervise(term, launch)
        # An error of an export does not prevent launches, and an error of a launch does not prevent exports.
        try:
            with self._waiting_for_local_ray():
                self._exports.one_pass(term, lambda rows: self._fitting(rows, live, begun))
        finally:
            with self._service.database.read() as db:
                exporting = exports.live(db)
            with self._waiting_for_local_ray():
                self._launch_wanted(term, live, begun, exporting)
        self._service.leading.pass_succeeded()
        self._service.health.controller_passed(self._service.now())

    @contextmanager
    def _waiting_for_local_ray(self) -> Iterator[None]:
        """Let the body of a `with` statement end early, without an error, if the local Ray has another version.

        After an upgrade, jobs wait until the running jobs have ended and the user stops the local Ray. That may take days, in which this
        service works as intended. If the pass failed, the service would give up its term again and again. With a cluster that several
        services share, the error is raised, because another service may have the version of the cluster.
        """
        try:
            yield
        except RayUnfit as unfit:
            if self._service.settings.ray_address:
                raise
            if unfit.detail != self._unfit:
                log.warning("%s", unfit.detail)
            self._unfit = unfit.detail

    # Launching

    def _launch_wanted(
        self, term: Term, live: list[Launch], begun: set[str], exporting: Sequence[ExportRow]
    ) -> None:
        """Launch the jobs that are due and for which the cluster has room.

        A job that lost its driver keeps its place on the cluster, and is launched even if its time window is closed. The
        new driver closes the attempts and holds that the last one left open, and then pauses a job whose window is closed.

        Other jobs are launched in the order of the queue. A job for which the cluster has no room blocks all later jobs that
        may use the same nodes. The rows of jobs are read one by one when needed, because thousands of jobs may wait.

        Args:
            live: The launches that have not ended.
            begun: The jobs whose driver has started, including jobs whose driver has died since.
            exporting: The unfinished exports. Their jobs are launched only after the export has ended, because the trials could replace the
                exported checkpoint. A submitted export occupies the room of one trial on one node.
        """
        now = self._service.now()
        self._blocked = {}
        due = {launch.job: launch for launch in live if launch.is_due(now)}
        for name, launch in due.items():
            if name in begun:
                self._submit(term, launch, self._row(name))
        others = due.keys() - begun - {export.job for export in exporting}
        turns = self._queue(term, {name: launch for name, launch in due.items() if name in others}, now)
        if not turns:
            return
        known = {*(launch.job for launch in live), *(export.job for export in exporting)}
        self._rows = {name: row for name, row in self._rows.items() if name in known}
        with self._service.database.read() as db:
            allowed, self._concurrency = queue.of_projects(db), queue.concurrency_of_unfinished(db)
        under_way = self._under_way(live, begun, exporting)
        full, awaited = set[str](), frozenset[int]()
        nodes = with_those_to_come(self._service.settings, self._service.cluster.nodes())
        for turn in turns:
            if len(awaited) == len(nodes) and nodes:
                return
            # If a job does not fit into its project's quota, smaller jobs of the project that come later must not overtake it.
            if turn.project in full:
                continue
            row = self._needs(turn.job)
            if is_full(allowed.get(row.project), under_way, row):
                full.add(row.project)
                continue
            wanted = eligible(nodes, row)
            if wanted & awaited or not has_room(nodes, under_way, row):
                self._blocked.setdefault(wanted, (due[turn.job].wanted_at, row))
                awaited |= wanted  # Jobs further back in the queue must not take these nodes before this job.
                continue
            self._submit(term, due[turn.job], row)
            # If the launch could not be claimed, later jobs do not overtake the job before the next pass has decided again.
            under_way.append(row)

    def _under_way(
        self, live: Iterable[Launch], begun: set[str], exporting: Iterable[ExportRow]
    ) -> list[JobRow]:
        """Return the rows of the jobs that have or keep their place on the cluster, and of the submitted exports (`of_export`)."""
        working = [launch.job for launch in live if launch.state != "wanted" or launch.job in begun]
        submitted = [export.job for export in exporting if export.submitted_at is not None]
        return [*map(self._needs, working), *(of_export(self._needs(job)) for job in submitted)]

    def _fitting(self, rows: Sequence[ExportRow], live: Iterable[Launch], begun: set[str]) -> list[ExportRow]:
        """Return the queued exports for which the cluster and the quotas of their projects have room, oldest first.

        An export counts as a job with one trial on one node. Like a job, it does not take nodes for which an earlier export or a job has
        been waiting. At most one export per project goes before a job that waits for room, so that a long queue of exports does not keep
        the jobs of other projects waiting.

        Args:
            rows: All unfinished exports.
        """
        queued = [row for row in rows if row.submitted_at is None]
        if not queued:
            return []
        with self._service.database.read() as db:
            allowed, self._concurrency = queue.of_projects(db), queue.concurrency_of_unfinished(db)
            last = exports.last_submissions(db) if self._blocked else {}
        under_way, nodes = self._under_way(live, begun, rows), self._service.cluster.nodes()
        # If TUNER_NODE_TYPES is wrong, exports use the present nodes.
        with suppress(BadFile):
            nodes = with_those_to_come(self._service.settings, nodes)
        fitting, awaited = list[ExportRow](), frozenset[int]()
        for row in queued:
            needs = of_export(self._needs(row.job))
            if is_full(allowed.get(row.project), under_way, needs):
                continue
            wanted, since = eligible(nodes, needs), max(row.created_at, last.get(row.project, row.created_at))
            is_later = any(at < since and wanted & eligible(nodes, job) for at, job in self._blocked.values())
            if is_later or wanted & awaited or not has_room(nodes, under_way, needs):
                awaited |= wanted
                continue
            fitting.append(row)
            under_way.append(needs)
            last[row.project] = self._service.now()
        return fitting

    def _queue(self, term: Term, due: Mapping[str, Launch], now: Instant) -> list[Waiting]:
        """Return the waiting jobs in `due` that may be launched now, in the order of the queue.

        The launch of a job whose window is closed is postponed until the window opens.
        """
        self._windows = {name: window for name, window in self._windows.items() if name in due}
        if unread := [name for name in due if name not in self._windows]:
            with self._service.database.read() as db:
                have = queue.windows(db, unread)
            self._windows |= {name: have.get(name) for name in unread}
        closed = set[str]()
        for name, launch in due.items():
            opens_at = opening(launch, self._windows[name], now)
            if opens_at is not None:
                closed.add(name)
                with self._service.leading.write(term, "controller.put_off") as db:
                    launches.put_off(db, launch, opens_at)
        if not due:
            return []
        with self._service.database.read() as db:
            waiting = queue.in_fair_order(db, now)
        return [waiting_job for waiting_job in waiting if waiting_job.job in due.keys() - closed]

    def _needs(self, job: str) -> JobRow:
        """Return the row of a job, which says what room its trials need on the cluster.

        The row's concurrency and the fields that never change are up to date. Other fields may be outdated.
        """
        row = self._rows.get(job) or self._row(job)
        concurrency = self._concurrency.get(job, row.concurrency)
        self._rows[job] = row if row.concurrency == concurrency else replace(row, concurrency=concurrency)
        return self._rows[job]

    def _row(self, job: str) -> JobRow:
        with self._service.database.read() as db:
            return jobs.get(db, job)

    def _submit(self, term: Term, launch: Launch, decided: JobRow) -> None:
        """Claim a launch, then submit its driver to Ray. Do nothing if the launch cannot be claimed.

        If this process dies in between, or Ray does not accept the driver, Ray does not know the driver of a launch that is recorded as
        submitted. A later pass then orders the next launch.

        Args:
            decided: The job's row from which the pass decided to launch the job.
        """
        # A cluster with other versions would refuse each claimed launch, one after the other.
        with self._counting_failures():
            self._service.cluster.check_fit()
        spot = any(offer.market == "spot" for offer in decided.offers)
        code = code_of(decided.spec, import_path()) if spot else None
        row = self._claim(term, launch, decided)
        if row is None:
            return
        with self._counting_failures():
            self._service.cluster.submit(
                launch.submission_id, job=launch.job, epoch=launch.epoch, about=about(row), code=code
            )
        # A pass that launches many jobs may take long. Without this call, the service would give up its term meanwhile.
        self._service.leading.pass_succeeded()
        self._service.health.count("launches")
        log.info("launched %s (%s)", launch.submission_id, row.spec.name)

    @contextmanager
    def _counting_failures(self) -> Iterator[None]:
        """Count an error in the body of a `with` statement as a launch that the cluster did not accept."""
        try:
            yield
        except Exception:
            self._service.health.count("launch_failures")
            raise

    def _claim(self, term: Term, launch: Launch, decided: JobRow) -> JobRow | None:
        """Record that a launch is submitted, and return the job's row.

        The pass decided from what it read outside of this transaction. Return None if the decision does not hold any more: the launch
        was called off, the job's concurrency was changed, an export was queued, or the project's quota is used up. A job that has begun
        is launched in any case, because it keeps its place.

        From the commit on, the job counts against the quota of its project, and an export of the job is refused.
        """
        with self._service.leading.write(term, "controller.launched") as db:
            jobs.change_alone(db, launch.job)
            jobs.lock_concurrency(db, decided.project)
            row = jobs.get(db, launch.job)
            has_begun = row.state == "running" and row.running_since is not None
            others = queue.concurrency_at_work(db, row.project)
            others.pop(row.id, None)
            if not has_begun and (
                row.concurrency != decided.concurrency
                or exports.live_of(db, row.id) is not None
                or queue.get(db, row.project).reached(others.values(), row.concurrency)
            ):
                return None
            return row if launches.submitted(db, row.id, launch.epoch, self._service.now()) else None

    # Supervising drivers

    def _due(self, live: Iterable[Launch]) -> list[Launch]:
        """Return at most `ASK_AT_ONCE` launches whose drivers this pass should check.

        Silent drivers come first, then the least recently checked ones. A driver that is not silent is checked at most once
        every `ASK_EVERY_S`.
        """
        now, submitted = (
            time.monotonic(),
            {launch.submission_id: launch for launch in live if launch.state != "wanted"},
        )
        self._asked_at = {name: self._asked_at.get(name, 0.0) for name in submitted}
        self._watch.keep(submitted)
        is_silent = {name: self._silent_ns(launch) >= SILENT_NS for name, launch in submitted.items()}
        due = [name for name, at in self._asked_at.items() if is_silent[name] or now - at >= ASK_EVERY_S]
        due.sort(key=lambda name: (not is_silent[name], self._asked_at[name]))
        return [submitted[name] for name in due[:ASK_AT_ONCE]]

    def _silent_ns(self, launch: Launch) -> int:
        """Return the nanoseconds since the driver's last heartbeat, or since its submission if it has sent none."""
        return self._service.now() - max(launch.heartbeat_at or 0, launch.submitted_at or 0)

    def _supervise(self, term: Term, launch: Launch) -> None:
        """Check one driver: order the job's next launch if the driver ended, or stop the driver if it hangs."""
        silent_ns = self._silent_ns(launch)
        self._asked_at[launch.submission_id] = time.monotonic()
        status = self._service.cluster.status(launch.submission_id)
        self._service.leading.pass_succeeded()
        if status != "unknown":
            self._refused.discard(launch.job)
        if status in ("failed", "stopped", "succeeded", "unknown"):
            self._on_dead(term, launch, status)
        elif silent_ns > HUNG_NS and self._stays_silent(launch) and self._is_still_silent(term, launch):
            log.warning(
                "the driver %s has sent no heartbeat for %d s and is being stopped",
                launch.submission_id,
                silent_ns // NS,
            )
            self._service.cluster.stop(launch.submission_id)

    def _stays_silent(self, launch: Launch) -> bool:
        return self._watch.stays_silent(launch.submission_id, launch, self._service.now())

    def _is_still_silent(self, term: Term, launch: Launch) -> bool:
        """Return whether the launch in the database still equals `launch`. If so, its driver has sent no heartbeat since this pass began.

        The launch is read again because this service may itself have been suspended during the pass. A healthy driver would
        then seem silent.

        Raises:
            Fenced: Another service has become the leader.
        """
        with self._service.leading.write(term, "controller.is_silent") as db:
            return launches.get(db, launch.job) == launch

    def _on_dead(self, term: Term, launch: Launch, status: JobStatus) -> None:
        """Order the next launch of a job whose driver died.

        If the job has not begun and a user has asked to pause or cancel it, pause or cancel it instead. Otherwise the job would go back
        into the queue and wait for room only in order to end.

        Do nothing if the driver recorded the end of its launch, because it then ended as intended. A death is quick if no
        trial reported since the launch, the driver lived for less than `QUICK_NS`, and Ray knows the driver. After the second
        quick death in a row the next launch is delayed by 1 s, and each further quick death doubles the delay. After
        `QUICK_DEATHS_MAX` quick deaths in a row the job fails.

        If the driver never ran, because Ray did not accept it or this service died before it could submit it, the job keeps its place in
        the queue.

        Args:
            status: The state of the driver that Ray reports; `unknown` if Ray does not know the driver.
        """
        service, now = self._service, self._service.now()
        with service.database.read() as db:
            present = launches.get(db, launch.job)
            worked = answers.has_reported_since(db, launch.job, launch.submitted_at or now)
        if present is None or present.epoch != launch.epoch or present.state == "ended":
            return
        lived_ns = (launch.heartbeat_at or 0) - (launch.submitted_at or now)
        quick = not worked and status != "unknown" and lived_ns < QUICK_NS
        deaths = launch.quick_deaths + 1 if quick else 0
        if deaths >= QUICK_DEATHS_MAX:
            self._give_up(term, present, service.cluster.log_tail(launch.submission_id))
            return
        delay_ns = NS * 2 ** (deaths - 2) if deaths > 1 else 0
        never_ran = status == "unknown" and (present.heartbeat_at or 0) < (present.submitted_at or 0)
        with service.leading.write(term, "controller.relaunch") as db:
            jobs.change_alone(db, launch.job)
            again = launches.again(
                db,
                present,
                at=present.wanted_at if never_ran or _left_holds(db, present, now) else now,
                not_before=Instant(now + delay_ns),
                quick_deaths=deaths,
            )
            if again and _ended_as_requested(db, service, launch.job):
                log.info("the driver %s ended (%s) before its job began", launch.submission_id, status)
                return
        if never_ran:
            if launch.job not in self._refused:
                log.info("Ray has no driver %s; it will be submitted again", launch.submission_id)
            self._refused.add(launch.job)
            return
        if again:
            service.health.count("driver_restarts")
        log.warning(
            "the driver %s ended (%s) while its job was unfinished; another driver will be launched",
            launch.submission_id,
            status,
        )

    def _give_up(self, term: Term, launch: Launch, log_end: str) -> None:
        """Fail a job after `QUICK_DEATHS_MAX` quick deaths in a row, and settle its open holds. Cancel it if a user has asked for that.

        Args:
            log_end: The end of the last driver's log, which is shown to the user.
        """
        with self._service.leading.write(term, "controller.give_up") as db:
            jobs.change_alone(db, launch.job)
            row = jobs.get(db, launch.job)
            now = self._service.now()
            died_at = workers_ended_by(launch.heartbeat_at or now, now, outlive_ns=WORKERS_OUTLIVE_NS)
            if _left_holds(db, launch, now):
                died_at = launch.previous_workers_ended_by or died_at
            close_open(db, row.project, row.id, died_at=died_at, at=now)
            launches.end(db, launch.job, launch.epoch)
            detail = (
                f"the job's driver died {QUICK_DEATHS_MAX} times without a report in between; the output of the last driver ends with:\n"
                f"{log_end[-2000:]}"
            )
            if row.control_request == "cancel":
                jobs.move(db, launch.job, "cancelled", "cancelled", at=now, detail=detail)
            else:
                jobs.move(db, launch.job, "failed", "error", at=now, detail=detail)
        self._service.health.count("jobs_given_up")
        log.error("%s failed: its driver died %d times in a row", launch.job, QUICK_DEATHS_MAX)


def _left_holds(db: Connection, launch: Launch, now: Instant) -> bool:
    """Return whether the job has an open hold from before the launch.

    The driver of the launch then died before it settled the holds of the driver before it. The workers that these holds paid for had
    ended before the launch was ordered.

    Return False if the launch was ordered after `now`. The clock has then been set back since, so that the times of the holds do not show
    which driver placed them.
    """
    if launch.wanted_at > now:
        return False
    return any(hold.placed_at < launch.wanted_at for hold in ledger.open_holds(db, launch.job))


def _ended_as_requested(db: Connection, service: Service, job: str) -> bool:
    """Pause or cancel a job that has no driver, if a user has asked for that. Return whether it was paused or cancelled."""
    row = jobs.get(db, job)
    match row.control_request:
        case "cancel":
            return ended_without_driver(db, service, row, "cancelled")
        case "pause":
            return ended_without_driver(db, service, row, "paused")
        case _:
            return False


def about(row: JobRow) -> dict[str, str]:
    """Return the name, trainable, project, owner and budget of a job as metadata for Ray's dashboard.

    The dashboard displays the value of the key `job_name` as the job's name. The driver later adds the job's spend to the metadata.
    """
    metadata = {
        "job_name": row.spec.name,
        "trainable": row.spec.trainable,
        "project": row.project,
        "owner": row.tags.get("owner"),
        **money_metadata(row.budget),
    }
    return {key: value for key, value in metadata.items() if value is not None}
