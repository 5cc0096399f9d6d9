"""Compare a bill with external clocks: the start of the worker according to Ray's state API, and the time when
it was last seen.
"""

import threading
import time
from urllib.parse import urlencode

import psutil
import pytest

from tests.system import books
from tests.system.serving import Served, children
from tuner.cluster.head import LocalHead

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
TOLERANCE = 0.02
WORKERS = {
    "detail": 1,
    "limit": 10_000,
    "filter_keys": "type",
    "filter_predicates": "=",
    "filter_values": "ACTOR_CREATION_TASK",
}


class Watch(threading.Thread):
    """Record when the last worker of the cluster was last seen, in Unix seconds."""

    def __init__(self, served: Served) -> None:
        super().__init__(daemon=True)
        self._served = served
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

    def stop(self) -> float:
        self._over.set()
        self.join()
        return self._seen_at


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def began(served: Served) -> float:
    """Return when Ray started the last worker, in Unix seconds."""
    local = LocalHead(served.home)
    head = local.running()
    assert head is not None
    dashboard = local.dashboard(head)
    answer = dashboard.json(dashboard.call("GET", f"/api/v0/tasks?{urlencode(WORKERS)}"))
    dashboard.close()
    tasks = answer["data"]["result"]["result"]
    workers = [task for task in tasks if "Worker of" in task["name"] and task["start_time_ms"]]
    return max(float(task["start_time_ms"]) for task in workers) / 1000


def test_bill_equals_worker_time_times_price(served: Served) -> None:
    watch = Watch(served)
    watch.start()
    job = served.submit(
        "steady:train",
        fidelity={"min": 1, "max": 40},
        algorithm={"scheduler": "none"},
        budget={"usd": 1, "trials": 1},
        constants={"step_s": 1.0},
    ).id
    ended = served.finished(job)
    assert ended.stop_reason == "trials", ended.detail
    (trial,) = served.client.trials(job)
    for attempt in served.client.trial(job, trial.id).attempt_list:
        assert attempt.machine is not None, "its driver looked at the node"
        assert (attempt.machine.instance_type, attempt.usd_per_hour) == (
            "local",
            ended.price.trial_usd_per_hour,
        )
        assert attempt.machine.price_source == "TUNER_NODE_PRICES"
    advice = served.client.advice(job)
    assert advice.measured_usd == advice.spent_usd > 0
    # The steps sleep, so the CPU is underused.
    assert "cpu_underused" in [finding.kind for finding in advice.findings]
    books.check(served.client, job)
    worked_s = watch.stop() - began(served)
    expected = worked_s * ended.price.trial_usd_per_hour / 3600
    difference = abs(ended.spend.usd - expected) / expected
    print(
        f"bill ${ended.spend.usd:.6f}, {worked_s:.1f} s of wall time x price ${expected:.6f}: {difference:.2%} apart"
    )
    assert difference <= TOLERANCE
