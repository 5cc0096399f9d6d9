"""The part of the start of `tuner serve` that is postponed until the service is ready.

No request depends on this work, and on a machine with few cores it would delay readiness.
"""

import gc
import threading
from contextlib import suppress

import typer

from tuner.domain.errors import Unavailable
from tuner.service.bootstrap import Service
from tuner.service.catalogue import fault_of_prices
from tuner.service.doctor import fault_of_cluster
from tuner.service.maintenance import StorageWatch
from tuner.service.metrics_snapshot import Reader
from tuner.service.mirroring import Mirrors
from tuner.service.preloading import preload

LATEST_S = (
    10.0  # Begin after this time even if the cluster is not ready: this work does not need the cluster.
)
FIRST_ANSWERS_S = 1.0  # Pause before the work, so that it does not slow down the first requests.


class Beside(threading.Thread):
    """A thread that starts the storage watch and the mirrors, prints warnings and preloads modules, and then ends.

    `after` is the event that is set when the service is ready.
    """

    def __init__(
        self,
        service: Service,
        figures: Reader,
        storage: StorageWatch,
        mirrors: Mirrors,
        *,
        after: threading.Event,
    ) -> None:
        super().__init__(name="beside", daemon=True)
        self._service, self._figures = service, figures
        self._storage, self._mirrors = storage, mirrors
        self._after, self._over = after, threading.Event()

    def run(self) -> None:
        self._after.wait(LATEST_S)
        if self._over.wait(FIRST_ANSWERS_S):
            return
        self._storage.start()
        self._mirrors.start()
        self._tell()
        preload()
        gc.freeze()
        with suppress(Unavailable):
            # The first read of the metrics takes seconds if the database is large. Later reads are incremental.
            self._figures.read()

    def stop(self) -> None:
        """Cancel the postponed work if it has not begun. Call this before you stop the storage watch and the mirrors, which it starts."""
        self._over.set()

    def _tell(self) -> None:
        if fault := fault_of_prices(self._service.settings):
            typer.echo(f"prices are unavailable and jobs are refused until this is fixed: {fault}", err=True)
        if fault := fault_of_cluster(self._service.cluster):
            typer.echo(f"jobs are refused until this is fixed: {fault}", err=True)
