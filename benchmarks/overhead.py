"""`python -m benchmarks.overhead`: wall time per trial of no-op steps, compared with two peers: Ray Tune with its defaults, and with reused
actors.

All three run the same search: ASHA over three steps, Optuna's TPE, two trials at once, and a function that imports torch.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from tests.system.serving import Served

PEER = """
import json, os, sys, time
os.environ.update(TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1", RAY_AIR_NEW_OUTPUT="0", RAY_USAGE_STATS_ENABLED="0")
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch
from benchmarks.noop import train
trials, reuse, folder = int(sys.argv[1]), sys.argv[2] == "reuse", sys.argv[3]
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder + "/r")
began = time.monotonic()
tune.Tuner(
    train,
    param_space={"x": tune.uniform(0, 1)},
    tune_config=tune.TuneConfig(metric="score", mode="max", num_samples=trials, search_alg=OptunaSearch(),
        scheduler=ASHAScheduler(max_t=3, grace_period=1, reduction_factor=3), reuse_actors=reuse or None),
    run_config=tune.RunConfig(storage_path=folder, verbose=0),
).fit()
print(json.dumps({"seconds": time.monotonic() - began}))
"""


def peer(trials: int, mode: str) -> float:
    """Return the seconds per trial of plain Ray Tune."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        command = [sys.executable, "-c", PEER, str(trials), mode, folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.strip().splitlines()[-1])["seconds"]) / trials


def ours(trials: int) -> float:
    """Return the seconds per trial, from the start of the job's first driver to the job's end."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        served = Served(Path(folder) / "home").start()
        try:
            job = served.submit(
                "benchmarks.noop:train",
                fidelity={"min": 1, "max": 3, "reduction_factor": 3},
                budget={"usd": 10, "trials": trials},
                algorithm={"scheduler": "asha", "sampler": "tpe"},
                resources={"max_concurrent_trials": 2},
            )
            ended = served.client.wait(job.id)
            assert ended.stop_reason == "trials", ended.detail
            assert ended.started_at is not None
            assert ended.ended_at is not None
            took = datetime.fromisoformat(ended.ended_at) - datetime.fromisoformat(ended.started_at)
            return took.total_seconds() / trials
        finally:
            served.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument(
        "--default-trials",
        type=int,
        default=200,
        help="fewer for Ray Tune's defaults, which take long; 0 leaves them out",
    )
    args = parser.parse_args()
    trials = args.trials
    here = ours(trials)
    print(f"ours:                          {here:.3f} s a trial", flush=True)
    reused = peer(trials, "reuse")
    print(
        f"Ray Tune, reuse_actors=True:   {reused:.3f} s a trial; ours takes {here / reused:.2f} x", flush=True
    )
    if not args.default_trials:
        return
    default = peer(args.default_trials, "default")
    print(
        f"Ray Tune, its defaults:        {default:.3f} s a trial; ours takes 1/{default / here:.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
