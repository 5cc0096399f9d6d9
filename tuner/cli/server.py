"""`tuner serve`: start the app, the controller and the background services, and stop them in order."""

import gc
import logging
import os
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

import typer

from tuner import web
from tuner.api.app import create_app
from tuner.cli.http_server import GracefulServer
from tuner.domain.errors import AddressNotFree, Unavailable
from tuner.service.bootstrap import Service, build
from tuner.service.catalogue import fault_of_prices
from tuner.service.controller import Controller
from tuner.service.doctor import fault_of_cluster, refuse_unfit, refuse_without_key, warn_of_open_home
from tuner.service.leading import Renewing
from tuner.service.maintenance import StorageWatch
from tuner.service.metrics_snapshot import MetricsReader, has_live_jobs
from tuner.service.mirroring import Mirrors
from tuner.service.periodic import PeriodicService
from tuner.service.reconciler import Reconciler
from tuner.service.sole_use import HomeLock
from tuner.service.storage_lifecycle import StorageLifecycle
from tuner.settings import Settings


def run() -> None:
    """Run the service until SIGINT or SIGTERM.

    When the service ends, running jobs continue without it. If no jobs are running, the local Ray cluster is stopped too, unless
    another replica of the service is the leader.
    """
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Only this user can read new files of the service and of the local Ray cluster that it starts.
    os.umask(0o077)
    settings = Settings.from_env()
    refuse_without_key(settings)  # before `build`, which creates a key if none exists
    home = HomeLock(settings)
    try:
        with listen(settings) as listening:
            _serve(settings, home, listening)
    finally:
        home.release()


def _serve(settings: Settings, home: HomeLock, listening: socket.socket) -> None:
    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    home.describe(f"the service at {url}")
    service = build(settings)
    warn_of_open_home(settings)
    refuse_unfit(settings)
    leading, controller, reconciler = Renewing(service.leading), Controller(service), Reconciler(service)
    mirrors, storage = Mirrors(service), (StorageWatch(service), StorageLifecycle(service))
    leading.start()
    controller.start()  # Start the controller early: it connects to the cluster while the rest is built.
    app = create_app(service, is_ready=controller.ready.is_set, mirrors=mirrors.status, page_files=web.FOLDER)
    leaves, end_streams = app.state.shutting_down, app.state.broadcaster.end
    server = GracefulServer(app, shutting_down=leaves, end_streams=end_streams, drain_s=settings.drain_s)
    gc.freeze()  # Imported objects stay alive. Scanning them in each collection would delay requests by 0.1 s.
    gc.enable()
    reconciler.start()
    postponed = PostponedStart(service, app.state.metrics_reader, storage, mirrors, after=controller.ready)
    postponed.start()
    key = "TUNER_API_KEY" if settings.given_api_key else settings.api_key_path
    typer.echo(f"tuner serves {url}, with the key in {key}")
    if sys.stdout.isatty():  # Otherwise the output may go to a log, which must not contain the key.
        typer.echo(f"web page: {web.address(url, service.settings.api_key())}")
    sys.stdout.flush()
    try:
        server.run(sockets=[listening])
    finally:
        postponed.cancel()
        for part in storage:
            # Do not wait for the thread to end: if the storage does not answer, the service could never end.
            part.stop(timeout_s=0)
        mirrors.stop()
        reconciler.stop()
        # A start of Ray would not survive the end of this process.
        is_running = service.cluster.end_start()
        controller.stop()
        leading.stop()
        if has_live_jobs(service):
            if is_running:
                typer.echo("jobs continue without the service; `tuner serve` reconnects to them", err=True)
            else:
                typer.echo("jobs that have not ended continue with the next `tuner serve`", err=True)
        elif not service.leading.is_led():
            service.cluster.shut_down()
        service.database.dispose()


LATEST_S = 10.0  # Begin the postponed work after this time even if the cluster is not ready, because it does not need the cluster.
FIRST_ANSWERS_S = 1.0  # Pause before the postponed work, so that it does not slow down the first requests.
# Slow modules, for forecasts and for plans. They are imported so that the first request that needs them does not wait.
SLOW_MODULES = ("scipy.special", "tuner.service.plan_runs")


class PostponedStart(threading.Thread):
    """A thread for start-up work that can wait until the service is ready. The thread ends when the work is done.

    It starts the threads that use the storage and the mirrors, prints warnings and imports slow modules. On a machine with few cores, doing
    this work before the service is ready would delay its readiness.
    """

    def __init__(
        self,
        service: Service,
        metrics: MetricsReader,
        storage: Sequence[PeriodicService],
        mirrors: Mirrors,
        *,
        after: threading.Event,
    ) -> None:
        """Create the thread. `after` is the event that is set when the service is ready."""
        super().__init__(name="postponed-start", daemon=True)
        self._service, self._metrics = service, metrics
        self._storage, self._mirrors = storage, mirrors
        self._after, self._is_cancelled = after, threading.Event()

    def run(self) -> None:
        self._after.wait(LATEST_S)
        if self._is_cancelled.wait(FIRST_ANSWERS_S):
            return
        for part in self._storage:
            part.start()
        self._mirrors.start()
        if fault := fault_of_prices(self._service.settings):
            typer.echo(f"prices are unavailable and jobs are refused until this is fixed: {fault}", err=True)
        if fault := fault_of_cluster(self._service.cluster):
            typer.echo(f"jobs are refused until this is fixed: {fault}", err=True)
        for name in SLOW_MODULES:
            import_module(name)
        gc.freeze()
        with suppress(Unavailable):
            # The first read of the metrics takes seconds if the database is large. Later reads are incremental.
            self._metrics.read()

    def cancel(self) -> None:
        """Cancel the work if it has not begun. Call this before you stop the threads that it starts."""
        self._is_cancelled.set()


def listen(settings: Settings) -> socket.socket:
    """Return a socket bound to the configured address.

    Call this before anything else is started, so that the service fails at once if the port is in use.

    Raises:
        AddressNotFree: The address is in use or cannot be bound.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # The protocol must be given explicitly. Otherwise asyncio does not set TCP_NODELAY, and each response would wait 40 ms for an
    # acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        raise AddressNotFree(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; set TUNER_PORT to another port"
        ) from error
    return listening
