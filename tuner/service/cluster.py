"""Connect the service to its Ray cluster: list the nodes, and submit, query and stop drivers."""

import os
import sys
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tuner.cluster.dashboard import ClusterStarting, Dashboard, cluster_token, dashboard_url
from tuner.cluster.head import Head, LocalHead
from tuner.cluster.jobs import JobStatus, RayJobs
from tuner.cluster.local_watch import LocalWatch, Metadata
from tuner.cluster.node_types import node_types_of
from tuner.cluster.nodes import Node, nodes
from tuner.cluster.versions import IN_BOTH, RayUnfit, fix_of_local, version_mismatch
from tuner.domain.time import NS, RAY_START_S, Instant
from tuner.settings import Settings

# The environment variables of a driver. Ray Tune reads them at import, so they must be set before the process starts.
DRIVER_ENV = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    # Seconds after which an actor that does not end by itself is killed. With less than 10 s, Tune's loop blocks while it
    # waits for the actor.
    "TUNE_FORCE_TRIAL_CLEANUP_S": "10",
    # Without this, Tune restarts the actor of a drained node regardless of `max_failures`. The driver itself must decide
    # whether the trial resumes.
    "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE": "1",
    # Ray keeps about 40 kB of metrics per task name. Our task names contain the attempt, so memory would grow with every
    # attempt. Metrics of machines are still collected.
    "RAY_enable_metrics_collection": "0",
    # By default Ray kills the fork server of a worker just before it kills the worker itself. The fork server must end by itself instead:
    # when its worker is gone, it kills all processes that user code started, but Ray would leave those of a command running.
    "RAY_kill_child_processes_on_worker_exit": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
}
NODES_FRESH_S = 5.0
FIT_FRESH_S = 30.0


@dataclass(frozen=True, slots=True)
class DashboardAccess:
    """The address of Ray's dashboard and the token that it requires.

    The token is sent only to the dashboard and is never displayed.
    """

    url: str
    token: str | None = field(repr=False)


class Cluster(Protocol):
    """A Ray cluster.

    Methods raise RayUnavailable if the cluster does not answer. They may be called from several threads.
    """

    def ensure(self) -> None:
        """Start the service's own cluster, and its watcher for preemption notices, unless they already run."""

    def is_starting(self) -> bool:
        """Return whether the service's own cluster is starting, or waits for its first start. No job can be launched meanwhile."""

    def nodes(self) -> list[Node]: ...

    def check_fit(self) -> None:
        """Raise RayUnfit if the cluster has another version of Ray or Python than the service. The error says what to do.

        The service accepts and launches no job on such a cluster.
        """

    def submit(
        self, submission_id: str, *, job: str, epoch: int, about: Mapping[str, str], code: str | None
    ) -> None:
        """Submit the driver of a job. Submitting the same id again changes nothing.

        Args:
            epoch: The number of the launch.
            about: Facts about the job that Ray's dashboard shows.
            code: Digest of the trainable's code on the service's machine. The driver stores the result of the restore
                self-test under this digest, so that the service finds the result for later jobs. None if the job cannot
                use spot machines or the code has no digest.
        """

    def submit_export(self, submission_id: str, *, job: str, export: str) -> None:
        """Submit the process of an export. Submitting the same id again changes nothing."""

    def status(self, submission_id: str) -> JobStatus: ...

    def stop(self, submission_id: str) -> None: ...

    def log_tail(self, submission_id: str) -> str: ...

    def dashboard_access(self) -> DashboardAccess | None:
        """Return the address and token of Ray's dashboard, or None until the cluster has been started."""

    def end_start(self) -> bool:
        """End a start of the service's own cluster in another thread, and refuse later starts.

        A cluster that has started keeps running. Return whether there is one.
        """

    def shut_down(self) -> bool:
        """End the cluster that the service started for itself. Return False if it is another cluster, which keeps running."""


class RayCluster:
    """The cluster that TUNER_RAY_ADDRESS names or, without that setting, a local Ray head that this service starts."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._head: LocalHead | None = None
        self._known_head: Head | None = None
        self._dashboard: Dashboard | None = None
        self._is_starting = not settings.ray_address
        self._over = threading.Event()
        self._nodes: tuple[float, list[Node]] = (0.0, [])
        self._fit_at: float | None = None
        if settings.ray_address:
            self._dashboard = Dashboard(dashboard_url(settings.ray_address), cluster_token())
        else:
            self._head = LocalHead(
                settings.home, cpus=settings.local_cpus, gpus=settings.local_gpus, over=self._over
            )
            metadata = Metadata(settings.cloud, settings.metadata_url)
            self._watch = LocalWatch(settings.home, self._head.token_path, metadata)

    def ensure(self) -> None:
        if self._head is None:
            return
        if self._known_head is None or not self._head.alive():
            self._is_starting = True
            self._known_head = self._head.find_or_start()
            before, self._dashboard = self._dashboard, self._head.dashboard(self._known_head)
            self._nodes, self._fit_at = (0.0, []), None
            self._is_starting = False
            if before is not None:
                before.close()
        self._watch.keep(self._known_head)

    def is_starting(self) -> bool:
        return self._is_starting

    def nodes(self) -> list[Node]:
        at, alive_nodes = self._nodes
        if not alive_nodes or time.monotonic() - at > NODES_FRESH_S:
            alive_nodes = [node for node in nodes(self._open()) if node.alive]
            self._nodes = (time.monotonic(), alive_nodes)
        return alive_nodes

    def check_fit(self) -> None:
        """Check the cluster's versions at most once every `FIT_FRESH_S` seconds.

        A local head may have another version, too: it outlives an upgrade while jobs run.
        """
        looked_at, now = self._fit_at, time.monotonic()
        if looked_at is not None and now - looked_at < FIT_FRESH_S:
            return
        fix = IN_BOTH if self._head is None else fix_of_local(self._head)
        if (why := version_mismatch(self._open(), fix)) is not None:
            raise RayUnfit(why)
        self._fit_at = now

    def submit(
        self, submission_id: str, *, job: str, epoch: int, about: Mapping[str, str], code: str | None
    ) -> None:
        self.check_fit()
        entrypoint = f"exec {sys.executable} -m tuner.service.driver --job {job} --epoch {epoch}"
        entrypoint += f" --code {code}" if code else ""
        RayJobs(self._open()).submit(
            submission_id, entrypoint, env=driver_env(self._settings), metadata={"tuning_job": job, **about}
        )

    def submit_export(self, submission_id: str, *, job: str, export: str) -> None:
        self.check_fit()
        entrypoint = f"exec {sys.executable} -m tuner.service.driver --job {job} --export {export}"
        about = {"tuning_job": job, "job_name": export}
        RayJobs(self._open()).submit(
            submission_id, entrypoint, env=driver_env(self._settings), metadata=about
        )

    def status(self, submission_id: str) -> JobStatus:
        return RayJobs(self._open()).status(submission_id)

    def stop(self, submission_id: str) -> None:
        RayJobs(self._open()).stop(submission_id)

    def log_tail(self, submission_id: str) -> str:
        jobs = RayJobs(self._open())
        return (jobs.logs(submission_id)[-4000:] or jobs.message(submission_id)[-4000:]).strip()

    def dashboard_access(self) -> DashboardAccess | None:
        return (
            None if self._dashboard is None else DashboardAccess(self._dashboard.url, self._dashboard.token)
        )

    def end_start(self) -> bool:
        self._over.set()
        return self._head is None or self._head.running() is not None

    def shut_down(self) -> bool:
        """End the local head, unless it belongs to a cluster that `tuner cluster` started. Return whether it was ended."""
        if self._head is None or self._head.is_for_a_cluster():
            return False
        self._head.stop()
        return True

    def _open(self) -> Dashboard:
        if self._dashboard is None or self._is_starting:
            raise ClusterStarting(
                f"the Ray cluster is starting, which can take {RAY_START_S / 60:.0f} minutes on a busy machine; if it takes longer, "
                "see the service's log"
            )
        return self._dashboard


SILENT_NS = 4 * NS  # A process that has sent no heartbeat for this long is checked.
HUNG_NS = 90 * NS  # A process that has sent no heartbeat for this long is stopped.
# After the machine was suspended or its clock was set, every process seems silent until its next heartbeat. A process is therefore
# stopped only if it stays silent for this long while this service watches it.
WATCHED_NS = 10 * NS


class SilenceWatch:
    """The drivers or export processes that send no heartbeats, each with the time when this service first observed its silence."""

    def __init__(self) -> None:
        self._silent: dict[str, tuple[object, Instant]] = {}

    def keep(self, names: Collection[str]) -> None:
        """Forget all processes except the named ones."""
        self._silent = {name: seen for name, seen in self._silent.items() if name in names}

    def stays_silent(self, name: str, state: object, now: Instant) -> bool:
        """Return whether the process has stayed in this state for `WATCHED_NS`, as observed by this service.

        The first call for a process, or for a new state of it, starts the observation.

        Args:
            state: A value that changes with each heartbeat of the process.
        """
        before = self._silent.get(name)
        if before is None or before[0] != state:
            self._silent[name] = (state, now)
            return False
        return now - before[1] >= WATCHED_NS


# A variable whose name contains one of these words holds a secret. "CREDENTIAL" is not one of them, because the variable
# AWS_SHARED_CREDENTIALS_FILE holds only a path.
CREDENTIALS = ("SECRET", "TOKEN", "PASSWORD", "API_KEY", "ACCESS_KEY")


def driver_env(settings: Settings, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables of a driver and its workers.

    Ray's dashboard shows these variables. A database URL with a password is therefore passed in a file.
    """
    env = {**DRIVER_ENV, "TUNER_HOME": str(settings.home), "TUNER_STORAGE": settings.storage}
    env["TUNER_STORAGE_CLASS"], env["TUNER_STORAGE_TAGS"] = settings.storage_class, settings.storage_tags
    env["TUNER_SLICE"] = str(settings.slice_s)
    env["TUNER_SPOT_WAIT"] = str(settings.spot_wait_s)
    env["TUNER_MAX_PROCESSES"] = str(settings.max_processes)
    env["TUNER_MAX_OPEN_FILES"] = str(settings.max_open_files)
    env["TUNER_PASS_ENV"] = ",".join(settings.pass_env)
    if settings.node_types:
        env["TUNER_NODE_TYPES"] = node_types_of(settings.node_types).text()
    if settings.cache_dir:
        env["TUNER_CACHE_DIR"] = settings.cache_dir
    if settings.cache_gib is not None:
        env["TUNER_CACHE_GIB"] = str(settings.cache_gib)
    if settings.prices:
        env["TUNER_PRICES"] = settings.prices
    if settings.node_prices:
        env["TUNER_NODE_PRICES"] = ",".join(f"{kind}={usd}" for kind, usd in settings.node_prices.items())
    if settings.failpoint.startswith(("driver.", "self_test.", "export.")):
        env["TUNER_FAILPOINT"] = settings.failpoint
    env["PYTHONPATH"] = os.pathsep.join(import_path(environ))
    if settings.passes_url_in_file:
        env["TUNER_DATABASE_URL_FILE"] = str(settings.database_url_path)
    else:
        env["TUNER_DATABASE_URL"] = settings.database_url
    passed = {k: v for k, v in environ.items() if k.startswith(("TUNER_USER_", "AWS_", "OMP_"))}
    # Credentials are not passed. The id of an AWS key is not secret, but it is not passed either: AWS calls fail if they find an
    # id without its secret, and use the node's own role if they find neither.
    return {**env, **{k: v for k, v in passed.items() if not any(word in k.upper() for word in CREDENTIALS)}}


def import_path(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the directories in which trainables are found: PYTHONPATH and the directory in which the service was started."""
    given = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return [*given, os.getcwd()]
