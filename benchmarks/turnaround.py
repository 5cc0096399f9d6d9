"""`python -m benchmarks.turnaround`: the time that pause, promotion and resume take without the time to load the checkpoint.

Also measures how long a cancel takes when user code hangs. The peer is a new process: the time that it needs to import torch.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from tests.system.serving import Served, until
from tuner.schemas.answers import Attempt


def main() -> None:
    with service() as served:
        gaps, restores = promotions(served)
        print(
            f"promotion, from the end of one attempt to the next one's first step: median {med(gaps):.3f} s of {len(gaps)}, slowest {max(gaps):.3f} s"
        )
        print(f"  of which loading the checkpoint: median {med(restores):.3f} s")
        print(f"cancel of `while True`: the worker is free after {cancel(served):.2f} s")
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch; torch.optim.SGD([torch.zeros(1)], 0.1)"], check=True)
    print(f"a new process that imports torch: {time.monotonic() - began:.2f} s")


@contextmanager
def service() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        served = Served(Path(folder) / "home").start()
        try:
            yield served
        finally:
            served.stop()


def promotions(served: Served) -> tuple[list[float], list[float]]:
    """Return the overhead of each resumed attempt (wall time without training) and its restore time, in seconds."""
    job = served.submit(
        "steady:train",
        budget={"usd": 1, "trials": 60},
        constants={"step_s": 0.2},
        algorithm={"sampler": "random"},
    ).id
    served.client.wait(job)
    rate = served.client.job(job).price.trial_usd_per_hour / 3600
    gaps, restores = [], []
    for trial in served.client.trials(job):
        for attempt in served.client.trial(job, trial.id).attempt_list[1:]:
            gaps.append(wall(attempt) - 0.2 * (attempt.to_step - attempt.from_step))
            restores.append(attempt.bill["restore"] / rate)
    return gaps, restores


def wall(attempt: Attempt) -> float:
    assert attempt.ended_at is not None
    return (
        datetime.fromisoformat(attempt.ended_at) - datetime.fromisoformat(attempt.began_at)
    ).total_seconds()


def cancel(served: Served) -> float:
    job = served.submit("steady:hangs", budget={"usd": 1}).id
    until("the job runs", lambda: served.client.job(job).spend.held_usd > 0)
    time.sleep(8)
    began = time.monotonic()
    served.client.cancel(job)
    until("the job is cancelled", lambda: served.client.job(job).state == "cancelled")
    return time.monotonic() - began


def med(values: list[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    main()
