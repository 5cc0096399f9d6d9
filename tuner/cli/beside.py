"""What a service that starts does beside answering, once it is ready: nobody waits for it, and on few cores it would keep the start waiting."""

import gc
import threading
from contextlib import suppress

import typer

from tuner.domain.errors import Unavailable
from tuner.service.catalogue import fault_of_prices
from tuner.service.doctor import fault_of_cluster
from tuner.service.figures import Reader
from tuner.service.mirroring import Mirrors
from tuner.service.preloading import preload
from tuner.service.storage_watch import StorageWatch
from tuner.service.wiring import Service

LATEST_S = 10.0  # the cluster may be long in coming; the rest does not need it
FIRST_ANSWERS_S = 1.0


class Beside(threading.Thread):
    """One thread, which ends when all of it runs; `after` is set when the service is ready."""

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
            self._figures.read()  # the first reading of a process takes seconds over a large record; the next ones go on from it

    def stop(self) -> None:
        """Before what it starts is stopped."""
        self._over.set()

    def _tell(self) -> None:
        if fault := fault_of_prices(self._service.settings):
            typer.echo(
                f"prices cannot be told, and jobs are refused, until this is mended: {fault}", err=True
            )
        if fault := fault_of_cluster(self._service.cluster):
            typer.echo(f"jobs are refused until this is mended: {fault}", err=True)
