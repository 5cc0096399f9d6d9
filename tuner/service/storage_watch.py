"""Whether the storage of checkpoints works, found out before a trial needs it."""

import logging
import os
import socket
import threading

from tuner.engine.storage import Storage
from tuner.engine.storage_words import explained
from tuner.service.wiring import Service

log = logging.getLogger("tuner.storage")

EVERY_S = 120.0  # in object storage, some cents a month


class StorageWatch(threading.Thread):
    """One thread, over for good after `stop()`; a storage that never answers does not keep the service from ending."""

    def __init__(self, service: Service) -> None:
        super().__init__(name="storage-watch", daemon=True)
        self._service = service
        self._over = threading.Event()

    def run(self) -> None:
        while True:
            self.look()
            if self._over.wait(EVERY_S):
                return

    def stop(self) -> None:
        self._over.set()

    def look(self) -> None:
        """Under a name of its own, since several services may share a storage."""
        vitals = self._service.vitals
        try:
            Storage(self._service.settings.storage).probe(f"{socket.gethostname()}-{os.getpid()}")
        except Exception as error:
            if vitals.storage is not False:
                log.error("the storage of checkpoints fails: %s", explained(error))
            vitals.storage = False
        else:
            vitals.storage = True
