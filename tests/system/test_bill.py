"""A bill against a clock that is not ours: for how long did the worker's process exist?"""

import threading
import time

import pytest

from tests.system import books
from tests.system.serving import Served

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
TOLERANCE = 0.02


class Watch(threading.Thread):
    """Seconds for which a worker of this cluster was seen."""

    def __init__(self, served: Served) -> None:
        super().__init__(daemon=True)
        self._served = served
        self._over = threading.Event()
        self.seen_s = 0.0

    def run(self) -> None:
        before = time.monotonic()
        while not self._over.wait(0.05):
            is_there, now = bool(self._served.workers()), time.monotonic()
            self.seen_s += now - before if is_there else 0
            before = now

    def stop(self) -> float:
        self._over.set()
        self.join()
        return self.seen_s


def test_a_bill_is_what_the_worker_s_time_costs(served: Served) -> None:
    watch = Watch(served)
    watch.start()
    job = served.submit(
        "steady:train",
        fidelity={"min": 1, "max": 75},
        algorithm={"scheduler": "none"},
        budget={"usd": 1, "trials": 1},
        constants={"step_s": 1.0},
    ).id
    ended = served.finished(job)
    assert ended.stop_reason == "trials", ended.detail
    books.check(served.client, job)
    expected = watch.stop() * ended.price.trial_usd_per_hour / 3600
    difference = abs(ended.spend.usd - expected) / expected
    print(f"bill ${ended.spend.usd:.6f}, wall time x price ${expected:.6f}: {difference:.2%} apart")
    assert difference <= TOLERANCE
