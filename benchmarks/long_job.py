"""`python -m benchmarks.long_job`: memory of the driver during one job of 1,000 trials with 10 reports each."""

import argparse
import tempfile
import time
from pathlib import Path

import psutil

from tests.system.serving import Served


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        served = Served(Path(folder) / "home").start()
        try:
            follow(served, trials)
        finally:
            served.stop()


def follow(served: Served, trials: int) -> None:
    job = served.submit(
        "benchmarks.noop:train",
        constants={"steps": 10},
        fidelity={"min": 1, "max": 10},
        budget={"usd": 10, "trials": trials},
        algorithm={"scheduler": "none", "sampler": "random"},
        resources={"max_concurrent_trials": 2},
    ).id
    began, printed = time.monotonic(), 0
    memory = 0.0
    while (shown := served.client.job(job)).state in ("queued", "running"):
        done, memory = shown.progress.trials["completed"], mebibytes(served, job) or memory
        if done >= printed + 200:
            printed = done - done % 200
            seconds = time.monotonic() - began
            print(
                f"{done:5d} trials, {shown.progress.steps:6d} reports, {seconds:4.0f} s: driver {memory:.0f} MiB",
                flush=True,
            )
        time.sleep(0.2)
    ended = served.client.job(job)
    print(
        f"{ended.state} ({ended.stop_reason}): {ended.progress.steps} reports in {time.monotonic() - began:.0f} s"
    )


def mebibytes(served: Served, job: str) -> float:
    """Return the driver's memory in MiB, or 0 if there is no driver."""
    resident_sizes = [process.memory_info().rss for process in served.drivers(job) if is_python(process)]
    return sum(resident_sizes) / 2**20


def is_python(process: psutil.Process) -> bool:
    return process.cmdline()[:1] != ["/bin/sh"]


if __name__ == "__main__":
    main()
