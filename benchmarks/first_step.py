"""`python -m benchmarks.first_step`: the time from a submission to the first report of a training step, on a service that is already
running.

Each job trains one trial of `digits_mlp`. The time has three parts: `driver` ends when the job's driver has started, `attempt` when the
first attempt begins, and `report` with the first report. The last part contains the start of the worker, the imports of the trainable and
one step.
"""

import argparse
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime

from benchmarks.turnaround import service
from tests.system.serving import Served
from trainables.digits_mlp import OBJECTIVE, SEARCH_SPACE

STAGES = ("driver", "attempt", "report", "all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5)
    count = parser.parse_args().count
    with service() as served:
        stages(served)  # the first job also inspects the trainable
        measured = [stages(served) for _ in range(count)]
    for number, name in enumerate(STAGES):
        seconds = [each[number] for each in measured]
        print(
            f"{name:8} median {statistics.median(seconds):.2f} s, {min(seconds):.2f} to {max(seconds):.2f} s"
        )
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch; torch.optim.SGD([torch.zeros(1)], 0.1)"], check=True)
    print(f"a new process that imports torch: {time.monotonic() - began:.2f} s")


def stages(served: Served) -> tuple[float, ...]:
    """Return the seconds of each stage of a new job, and their sum."""
    submitted = datetime.now(UTC)
    job = served.submit(
        "trainables.digits_mlp:train",
        search_space=SEARCH_SPACE,
        objective=OBJECTIVE,
        fidelity={"unit": "epoch", "min": 1, "max": 3},
        budget={"usd": 1, "trials": 1},
        algorithm={"scheduler": "none", "sampler": "random"},
    ).id
    while not served.client.job(job).progress.steps:
        time.sleep(0.02)
    reported = datetime.now(UTC)
    started_at = served.client.wait(job).started_at
    assert started_at is not None
    trial = next(iter(served.client.trials(job))).id
    began = datetime.fromisoformat(served.client.trial(job, trial).attempt_list[0].began_at)
    started = datetime.fromisoformat(started_at)
    spans = (started - submitted, began - started, reported - began, reported - submitted)
    return tuple(span.total_seconds() for span in spans)


if __name__ == "__main__":
    main()
