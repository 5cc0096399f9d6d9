"""Run everything in one process for a client: service, controller, reconciler and driver, over a simulated cluster.

The process may end at any commit. The next process receives what was acknowledged, repeats the rest, and
continues.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from sqlalchemy import event

from tests import books, fakes
from tests.driver.export_actors import FakeExportActors, variant
from tests.driver.self_test_actors import FakeActors
from tests.fakes import FakeCluster, FakeService
from tuner.cluster.nodes import Node
from tuner.database.database import Database
from tuner.domain.events import ControlRequested
from tuner.domain.job import FINAL
from tuner.domain.offer import WorkerMachine
from tuner.domain.time import NS, Instant
from tuner.driver.export_run import ExportRun
from tuner.driver.spot_eligibility import SpotEligibility
from tuner.ledger import shared_budgets
from tuner.service import mirroring, webhooks
from tuner.service.controller import Controller
from tuner.service.node_prices import finder
from tuner.service.reconciler import Reconciler
from tuner.service.storage_lifecycle import StorageLifecycle
from tuner.settings import Settings
from tuner.simulator.world import SimulatedRun
from tuner.store import exports, jobs, launches, leadership
from tuner.store.journal import SqlJournal
from tuner.tuning.samplers import sampler_for
from tuner.worker.export import ExportResult
from tuner.worker.self_test import Verdict

if TYPE_CHECKING:
    from tuner.driver.launch_context import LaunchContext

Tell = Callable[..., None]
KIND = {"instance-type": "tiny", "usd-per-hour": "0.2"}
NODES = [
    Node("demand", 2, 0, 8 << 30, {**KIND, "ray.io/market-type": "on-demand"}),
    Node("spot", 2, 0, 8 << 30, {**KIND, "ray.io/market-type": "spot"}),
]
SPOT = {"market": "spot_with_fallback"}
# The catalogue has no spot price of this type.
UNPRICED = WorkerMachine(
    {"node.kubernetes.io/instance-type": "Standard_B2ms", "ray.io/market-type": "spot"}, 2, 0
)


@dataclass
class Earlier:
    """What the outside world knows of earlier processes: the acknowledged answers by step, and the drivers
    submitted to Ray.
    """

    acks: dict[str, str] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)


@dataclass
class Clock(fakes.FakeClock):
    """A clock that starts at the current time and moves only when a test advances it."""

    at: int = 0

    def __post_init__(self) -> None:
        self.at = self.at or time.time_ns()


@dataclass
class Cluster(FakeCluster):
    """A cluster whose drivers all died with the machine. Submitting a known submission id again has no effect,
    as in Ray.
    """

    tell: Tell = print

    def submit(self, submission_id: str, **more: Any) -> None:
        self.tell("submitted", submission_id)
        super().submit(submission_id, **more)

    def submit_export(self, submission_id: str, **more: Any) -> None:
        self.tell("submitted", submission_id)
        super().submit_export(submission_id, **more)


class Journal(fakes.SimulatedSqlJournal):
    """A journal that begins as in `tuner.driver.main`, and reports each report after its commit."""

    def __init__(self, life: "Life", database: Database, job: str, project: str, at: Instant) -> None:
        from tuner.driver.launch_context import Heartbeat
        from tuner.driver.main import _warm_starts  # imports Ray Tune, which takes seconds

        post = life.post(job)
        with database.read() as db:
            row = jobs.get(db, job)
        _warm_starts(post, life.service.settings, row, sampler_for(row.spec), Heartbeat(post))
        SqlJournal.__init__(self, database, job, project, post.epoch, at)
        self.ran_ns, self.watchers, self._life, self._of = SqlJournal.running_ns(self), [], life, job

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        new: list[Any] = []
        with super().transaction() as tx:
            put = tx.put_report

            def put_report(report: Any) -> bool:
                if is_new := put(report):
                    new.append(report)
                return is_new

            tx.put_report = put_report  # type: ignore[method-assign]
            yield tx
        for new_report in new:
            self._life.tell(
                "report",
                self._of,
                new_report.trial,
                new_report.step,
                new_report.value,
                new_report.cost.usd.micro_usd,
            )


class Life:
    def __init__(
        self, url: str, home: Path, failpoint: str, earlier: Earlier, tell: Tell, late_s: int
    ) -> None:
        settings = Settings.from_env(
            {
                "TUNER_HOME": str(home),
                "TUNER_DATABASE_URL": url,
                "TUNER_NODE_PRICES": "local=0.2",
                "TUNER_API_KEY": fakes.KEY,
                "TUNER_WEBHOOK_PRIVATE": "allow",
                "TUNER_OPTUNA_STORAGE": "off",
                "TUNER_FAILPOINT": failpoint,
            }
        )
        self.acks, self.tell = earlier.acks, tell
        self.verdicts: dict[str, Verdict] = {}
        #: The machines that the self-test of a job is given, in order. The last one is given again.
        self.machines: dict[str, list[WorkerMachine | None]] = {}
        self._cluster = Cluster(tell=tell)
        self._cluster.statuses = dict.fromkeys(earlier.submitted, "failed")
        self._clock = Clock(time.time_ns() + late_s * NS)
        self.begin(settings)

    def begin(self, settings: Settings) -> None:
        """Start the service on the existing database, in any state."""
        database = Database(settings.database_url, failpoint=settings.failpoint)
        if database.is_sqlite:  # no power loss is simulated
            event.listen(database.engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = OFF"))
        self.service = FakeService(settings, database, cluster=self._cluster, now=self._clock)
        self.client = fakes.client_of(self.service)
        self.controller, self.reconciler = Controller(self.service), Reconciler(self.service)
        self.lifecycle = StorageLifecycle(self.service, self._clock)

    # The client

    def ask(self, step: str, method: str, path: str, *, done: int = 200, **body: Any) -> str:
        """Send a request unless it was acknowledged, and return the id in the answer, or an empty string.

        `done` is the status of a repeated request that was already carried out.
        """
        if step not in self.acks:
            headers = {"Idempotency-Key": step} if path == "/v1/jobs" else {}
            answer = self.client.request(method, path, json=body or None, headers=headers)
            assert answer.status_code < 300 or answer.status_code == done, (step, answer.text)
            self.acks[step] = str(answer.json().get("id", "")) if answer.content else ""
            self.tell("ack", step, self.acks[step])
            if path.startswith("/v1/jobs") and "budget" in body:
                self.tell("budget", self.acks[step], round(body["budget"]["usd"] * 1e6))
        return self.acks[step]

    def submit(self, step: str, usd: float = 0.001, **changes: Any) -> str:
        job = self.ask(f"submit {step}", "POST", "/v1/jobs", **fakes.body(budget={"usd": usd}, **changes))
        self._clock.pass_s(1)  # the order of jobs with the same time is undefined
        return job

    # The service

    def row(self, job: str) -> jobs.JobRow:
        with self.service.database.read() as db:
            return jobs.get(db, job)

    def pass_s(self, seconds: float) -> None:
        self._clock.pass_s(seconds)
        self.controller.one_pass()
        self.reconciler.one_pass()

    def finish(self) -> None:
        """Let time pass until every job has ended."""
        for _ in range(100):
            with self.service.database.read() as db:
                waiting = launches.live(db)
                ids = [row[0] for row in db.exec_driver_sql("SELECT id FROM jobs ORDER BY id")]
            if all(self.row(job).state in FINAL for job in ids):
                return
            due = [
                waiting_launch
                for waiting_launch in waiting
                if self._cluster.statuses.get(waiting_launch.submission_id) == "pending"
            ]
            for launch in due:
                self.drive(launch.job)
            opens = [waiting_launch.not_before for waiting_launch in waiting if waiting_launch.not_before]
            is_idle = len(opens) == len(waiting) > 0
            self.pass_s(max(5, (min(opens) - self._clock()) / NS + 1) if is_idle else 5)
        raise AssertionError({job: self.row(job).state for job in ids})

    def launch(self, job: str) -> bool:
        """Wait until the job's driver is submitted to Ray. Return False if the job has ended."""
        for _ in range(50):
            if self.row(job).state in FINAL:
                return False
            with self.service.database.read() as db:
                launch = launches.get(db, job)
            assert launch is not None
            if launch.state == "submitted" and self.status(launch.submission_id) == "pending":
                return True
            self.pass_s(5)
        raise AssertionError(f"{job} was not launched")

    def status(self, submission: str) -> str:
        return self._cluster.statuses.get(submission, "unknown")

    # The driver

    def post(self, job: str) -> "LaunchContext":
        from tuner.driver.launch_context import LaunchContext

        with self.service.database.read() as db:
            launch = launches.get(db, job)
        assert launch is not None
        return LaunchContext(self.service.database, job, launch.epoch)

    def drive(self, job: str, messages: float = math.inf) -> SimulatedRun | None:
        """Run a launched driver for `messages` messages, or return None if it refused to run."""
        post = self.post(job)
        self._cluster.statuses[f"{job}-{post.epoch}"] = "running"
        # On a slow machine, the time would otherwise be later than that of the service, which would not find the driver silent.
        with patch.object(time, "time_ns", self._clock):
            post.record_heartbeat()
        post.record_versions()
        row = post.begin()
        if any(offer.market == "spot" for offer in row.offers):
            machines = list(self.machines.get(job, [None]))
            actors = FakeActors(list(row.offers), [self.verdicts[job]], machines=machines)
            eligibility = SpotEligibility(
                database=post.database,
                row=row,
                epoch=post.epoch,
                may_continue=lambda: True,
                wait_s=-1.0,
                start_actor=actors,
                find=finder(self.service.settings, row.offers),
            )
            if (why := eligibility.refusal(died_at=None)) is not None:
                eligibility.refuse(why, died_at=None)
                return None

        def journal(database: Database, name: str, project: str, at: Instant) -> Journal:
            return Journal(self, database, name, project, at)

        run = fakes.simulate(self.service, job, messages=0, at=Instant(self._clock()), journal=journal)
        self.go_on(run, messages)
        return run

    def export(self, job: str, *, dies: bool) -> None:
        """Run the processes of the job's exports, or let them die."""
        with self.service.database.read() as db:
            live = [any_export for any_export in exports.live(db) if any_export.job == job]
        for job_export in live:
            if dies or self.status(job_export.submission_id) != "pending":
                self._cluster.statuses[job_export.submission_id] = "failed"
                continue
            actors = FakeExportActors(ExportResult(0.9, (variant("onnx"),)))
            row = self.row(job)
            find = finder(self.service.settings, row.offers)
            ExportRun(self.service.database, row, job_export, "storage", actors, find).run()

    def go_on(self, run: SimulatedRun, messages: float = math.inf) -> None:
        """Continue the run. The driver first checks for a control request."""
        control_request = self.row(run.loop_config.job).control_request
        if run.loop.end is None and control_request in ("pause", "cancel"):
            run.loop.handle_event(ControlRequested(run.clock.now(), control_request))
        done = 0
        while run.loop.end is None and done < messages:
            assert run.clock.run_next(), "it came to a halt"
            done += 1
        self._clock.at = max(self._clock.at, run.clock.now())

    # Final state

    def tell_all(self) -> None:
        with self.service.database.write() as db:
            violations = books.faults(db)
            shared_budgets.lock_exclusive(db)
            violations += books.shared_faults(db, self.service.project, self._clock())
            ids = [row[0] for row in db.exec_driver_sql("SELECT id FROM jobs")]
        self.tell("violations", violations)
        for job in ids:
            answer = self.client.get(f"/v1/jobs/{job}/best")
            self.tell("best", job, answer.json()["metric"] if answer.status_code == 200 else None)


@contextmanager
def surroundings(tell: Tell) -> Iterator[None]:
    """Give all database clocks the same time, and accept all webhooks."""

    def taken(url: str, body: bytes, headers: dict[str, str], **_: Any) -> webhooks.WebhookResult:
        tell("webhook", headers["Tuner-Delivery"])
        return webhooks.WebhookResult(True, "HTTP 204")

    def own(db: Any, at: Instant) -> Instant:
        return at

    with ExitStack() as stack:
        stack.enter_context(patch.object(webhooks, "send", taken))
        stack.enter_context(patch.object(leadership, "clock", own))
        stack.enter_context(patch.object(mirroring, "clock", own))
        yield
