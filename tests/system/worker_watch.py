"""Measure from outside for how long a worker exists: from its start according to Ray's state API, to the time when it
was last seen.
"""

import threading
import time
from urllib.parse import urlencode

import psutil

from tests.system.serving import Served, children
from tuner.engine.ray_cluster import Dashboard

WORKERS = {
    "detail": 1,
    "limit": 10_000,
    "filter_keys": "type",
    "filter_predicates": "=",
    "filter_values": "ACTOR_CREATION_TASK",
}


class Watch(threading.Thread):
    """Record when the last worker of the cluster was last seen, in Unix seconds."""

    def __init__(self, served: Served, dashboard: Dashboard) -> None:
        super().__init__(daemon=True)
        self._served, self._dashboard = served, dashboard
        self._over = threading.Event()
        self._seen_at = 0.0

    def run(self) -> None:
        # Once found, only these processes are checked. Scanning all processes would take CPU time away from the
        # worker.
        servers: list[psutil.Process] = []
        while not self._over.wait(0.05 if servers else 0.5):
            if not any(_lives(server) for server in servers):
                servers = [server for worker in self._served.workers() for server in children(worker)]
            if servers:
                self._seen_at = time.time()

    def worked_s(self) -> float:
        """Stop watching, and return for how many seconds the last worker existed."""
        self._over.set()
        self.join()
        answer = self._dashboard.json(self._dashboard.call("GET", f"/api/v0/tasks?{urlencode(WORKERS)}"))
        tasks = answer["data"]["result"]["result"]
        began_ms = [
            task["start_time_ms"] for task in tasks if "Worker of" in task["name"] and task["start_time_ms"]
        ]
        return self._seen_at - max(map(float, began_ms)) / 1000


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
