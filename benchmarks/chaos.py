"""`python -m benchmarks.chaos --minutes 10`: small jobs, one after another, while something is killed every few seconds.

Prints overspend, lost and doubled reports, which are to be 0, and what was killed. Ends by itself.
"""

import argparse
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.system import books
from tests.system.serving import Served, kill


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, killed = random.Random(args.seed), Counter[str]()
    deadline, jobs = time.monotonic() + 60 * args.minutes, 0
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        served = Served(Path(folder) / "home").start()
        try:
            while time.monotonic() < deadline:
                one_job(served, rng, killed)
                jobs += 1
                print(
                    f"{jobs} jobs, killed {dict(killed)}, overspend 0, no report lost or doubled", flush=True
                )
        finally:
            served.stop()


def one_job(served: Served, rng: random.Random, killed: Counter[str]) -> None:
    budget = round(rng.uniform(0.0003, 0.0008), 6)
    job = served.submit("steady:train", budget={"usd": budget}, constants={"step_s": 0.1}).id
    while served.client.job(job).state in ("queued", "running"):
        time.sleep(rng.uniform(1, 10))
        victim = rng.choice(("driver", "worker", "api", "head", "nobody"))
        if strike(served, job, victim):
            killed[victim] += 1
    ended = served.client.wait(job)
    assert ended.stop_reason == "budget_usd", ended.detail
    books.check(served.client, job)
    for trial in served.client.trials(job):
        curve = served.client.trial(job, trial.id).curve
        assert [point.step for point in curve] == list(range(1, trial.steps + 1))


def strike(served: Served, job: str, victim: str) -> bool:
    match victim:
        case "driver" if served.drivers(job):
            served.kill_driver(job)
        case "worker" if workers := served.workers():
            kill(workers[0])
        case "api":
            served.restart()
        case "head":
            served.kill_head()
        case _:
            return False
    return True


if __name__ == "__main__":
    main()
