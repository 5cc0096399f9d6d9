"""Check the checkpoint storage regularly, so that a fault is found before a trial needs it."""

import logging
import os
import socket
import threading

from tuner.checkpoints.storage import Storage, explained
from tuner.service.bootstrap import Service

log = logging.getLogger("tuner.storage")

EVERY_S = 120.0  # seconds between checks; the requests cost a few cents a month in object storage


class StorageWatch(threading.Thread):
    """Check the storage in a thread. A storage that never answers does not keep the service from ending."""

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
        """Check the storage with a file whose name is unique to this process, because several services may share a storage."""
        vitals = self._service.vitals
        try:
            Storage(self._service.settings.storage).probe(f"{socket.gethostname()}-{os.getpid()}")
        except Exception as error:
            if vitals.storage is not False:
                log.error("the checkpoint storage failed its check: %s", explained(error))
            vitals.storage = False
        else:
            vitals.storage = True
