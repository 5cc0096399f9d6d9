"""Keep a living fork server for a worker: a server that died is replaced."""

import os
from collections.abc import Callable
from pathlib import Path

from tuner.engine.packages.shelf import Opened, opened
from tuner.engine.packages.stored import Stored
from tuner.engine.scratch import anew
from tuner.engine.worker.environment import environment_of
from tuner.engine.worker.limits import Limits
from tuner.engine.worker.publishing import background
from tuner.engine.worker.server_handle import ForkServer


class Servers:
    """Keep a fork server for one trainable.

    If the trainable comes from a package, each new server opens and checks the package again. The package is on the import path of the
    server and its children only.
    """

    def __init__(
        self,
        entry: str,
        package: Stored | None,
        on_exit: Callable[[int, int], None],
        limits: Limits,
        tmp: Path,
    ) -> None:
        self._entry, self._package, self._on_exit = entry, package, on_exit
        self._limits, self._tmp = limits, tmp
        self._opened: Opened | None = None
        self._trouble: Exception | None = None
        self.current = self._new(entry)

    def living(self) -> ForkServer:
        """Return a living fork server. Start a new one if the current one is dead. Raise the error of a package that cannot be opened."""
        if self._trouble is not None:
            self.current.close()
            self.current = self._new(self._entry)
        elif not self.current.alive:
            # A server that died before it was ready may have been killed by the imports of user code. The new server does not preload
            # the trainable, so that the child imports it and reports the error.
            self.current = self._new(self._entry if self.current.ready else "")
        if self._trouble is not None:
            raise self._trouble
        return self.current

    def close(self) -> None:
        self.current.close()
        self._let_go()

    def _new(self, entry: str) -> ForkServer:
        """Start a fork server. If the package cannot be opened, start it without the trainable. `living` then raises the error."""
        self._let_go()
        self._trouble = None
        if self._package is not None:
            try:
                self._opened = opened(self._package)
            except Exception as error:  # each kind of storage has errors of its own
                self._trouble, entry = error, ""
        package = "" if self._opened is None else str(self._opened.path)
        server = ForkServer(entry, self._on_exit, self._limits, anew(self._tmp), package=package)
        roots = [package] if package else os.environ.get("PYTHONPATH", "").split(os.pathsep)
        # In a thread, because the digest reads all files that the trainable imports.
        background("environment", self._describe, server, roots)
        return server

    def _describe(self, server: ForkServer, roots: list[str]) -> None:
        server.environment = environment_of(self._entry, roots, server.variables)

    def _let_go(self) -> None:
        if self._opened is not None:
            self._opened.close()
        self._opened = None
