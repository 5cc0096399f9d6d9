"""`python -m benchmarks.attempts`: the processor time that a worker needs for an attempt whose training does nothing.

Ray is not involved. Half of the attempts are stopped after the first step, and the other half run to the last step. The figures leave out
the start of the worker and the imports of its fork server.
"""

import argparse
import os
import tempfile
import time

import psutil

from tuner.worker.orders import BeginOrder
from tuner.worker.supervisor import Supervisor

STEPS = 3


def run_attempt(supervisor: Supervisor, storage: str, number: int) -> int:
    """Run an attempt, and return the number of its results, each of which is a message to the driver."""
    trial = f"trial_{number:05d}"
    message: BeginOrder = {
        "order": "begin",
        "project": "default",
        "job": "job_1",
        "trial": trial,
        "attempt": 1,
        "entry": "benchmarks.noop:train",
        "config": {"x": 0.5},
        "target_step": 1,
        "max_step": STEPS,
        "lease_ns": 600_000_000_000,
        "storage": storage,
        "restore_step": None,
        "keep": 2,
        "resources": {},
        "metric": "score",
        "mode": "max",
        "seed": number,
    }
    supervisor.order(message)
    for results in range(1, 1_000_000):
        result = supervisor.step()
        if result["state"] == "waiting":
            if result["reports"][-1]["step"] == STEPS:
                supervisor.order({"order": "finish", "trial": trial})
            elif number % 2:
                supervisor.order({"order": "stop", "trial": trial, "keep_best": True})
            else:
                lease_ns = message["lease_ns"]
                supervisor.order(
                    {
                        "order": "continue",
                        "trial": trial,
                        "target_step": STEPS,
                        "lease_ns": lease_ns,
                        "job_best": None,
                    }
                )
        elif result["state"] != "running":
            assert result["error"] is None, result["error"]
            return results
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        supervisor = Supervisor("benchmarks.noop:train", owns_process=True)
        run_attempt(supervisor, folder, 0)  # waits for the imports
        server = psutil.Process(supervisor.server.pid)
        before, own_before, began = server.cpu_times(), time.process_time(), time.monotonic()
        results = sum(run_attempt(supervisor, folder, number) for number in range(1, args.attempts + 1))
        took_s, own_s, after = time.monotonic() - began, time.process_time() - own_before, server.cpu_times()
        supervisor.close()
    own, forks, children = (
        1000 * seconds / args.attempts
        for seconds in (
            own_s,
            after.user + after.system - before.user - before.system,
            after.children_user + after.children_system - before.children_user - before.children_system,
        )
    )
    print(f"milliseconds of processor time an attempt: {own + forks + children:.1f}")
    print(f"  worker {own:.1f}, fork server {forks:.1f}, child {children:.1f}")
    print(
        f"{1000 * took_s / args.attempts:.0f} ms an attempt, {results / args.attempts:.1f} messages, load {os.getloadavg()[0]:.0f}"
    )


if __name__ == "__main__":
    main()
