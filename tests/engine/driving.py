"""A worker's supervisor, driven as a job's driver does: with its real fork server and real children, without a Ray cluster."""

import time
from pathlib import Path
from typing import Any

from tuner.engine.worker.supervisor import Supervisor

SECOND = 1_000_000_000


class Driver:
    """Gives orders and collects what comes back."""

    def __init__(self, storage: Path | str, entry: str, supervisor: Supervisor | None = None) -> None:
        """With a supervisor of its own where none is given."""
        self.entry, self.storage = entry, storage
        self.supervisor = supervisor or Supervisor(entry)
        self.reports: list[dict[str, Any]] = []
        self.attempt = 0

    def begin(
        self, *, until: int | None = 3, lease_s: float = 60, restore: int | None = None, **more: Any
    ) -> None:
        self.attempt += 1
        order = {
            "order": "begin",
            "project": "default",
            "job": "job_1",
            "trial": "trial_00000",
            "attempt": self.attempt,
            "entry": self.entry,
            "config": {"x": 2},
            "until": until,
            "max_step": 9,
            "lease_ns": int(lease_s * SECOND),
            "storage": str(self.storage),
            "restore_step": restore,
            "keep": 2,
        }
        self.supervisor.order({**order, **more})

    def order(self, word: str, **more: Any) -> None:
        self.supervisor.order({"order": word, **more})

    def until_state(self, *states: str) -> dict[str, Any]:
        """Steps until the worker is in one of the states; every meter on the way stays within the lease."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            result = self.supervisor.step()
            self.reports += result["reports"]
            if result["state"] in states:
                return result
            assert result["state"] in ("running", "waiting"), result
        raise AssertionError(f"not {states} within a minute")

    def let_go(self) -> None:
        """Ends an attempt that is still under way."""
        if self.supervisor._attempt is not None:
            self.order("stop")
            while self.supervisor.step()["state"] in ("running", "waiting"):
                pass
