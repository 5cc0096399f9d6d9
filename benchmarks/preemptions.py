"""`python -m benchmarks.preemptions --count 20 --kills 20`: preempt the machines of a trial on a real cluster of several raylets.

Three series of preemptions: with a notice while another worker of the job is already started, with a notice and no such worker, and by kill
-9 of the raylet. Prints the lost steps, and the time until the trial has completed its first step on another machine.
"""

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.system.serving import until
from tests.system.spot_cluster import OnSpot, SpotCluster
from tuner.schemas.answers import Attempt, TrialDetail

NOTICE = "15s"


@dataclass
class Series:
    """One series of preemptions.

    `lost` counts the steps that were reported and had to be repeated. `back_s` is the seconds from the notice or kill to the
    end of the first new step elsewhere. `taken` holds Ray's ids of the preempted nodes.
    """

    name: str
    lost: list[int] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    def line(self) -> str:
        times = sorted(self.back_s)
        p95 = times[min(len(times) - 1, round(0.95 * len(times)))]
        return (
            f"{self.name}: {len(times)} preemptions, steps lost {sum(self.lost)} (at most {max(self.lost)}), first step elsewhere "
            f"after {statistics.median(times):.1f} s (median), {p95:.1f} s (95 %), {times[-1]:.1f} s (slowest)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--count", type=int, default=20, help="number of preemptions with a notice, for each kind"
    )
    parser.add_argument("--kills", type=int, default=20, help="number of preemptions that kill a raylet")
    parser.add_argument("--megabytes", type=float, default=10, help="size of a checkpoint, in MB")
    parser.add_argument("--step", type=float, default=0.5, help="duration of a step, in seconds")
    args = parser.parse_args()
    with service() as served:
        pass_self_test(served)
        for name, others, take, count in (
            ("notice of 15 s, a warm worker there", 1, with_notice, args.count),
            ("notice of 15 s, no worker there", 0, with_notice, args.count),
            ("kill -9 of the raylet, no worker there", 0, kill_node, args.kills),
        ):
            series = Series(name)
            job = submit(served, megabytes=args.megabytes, step_s=args.step, others=others)
            for _ in range(count):
                preempt(served, job, series, take, others)
            served.client.cancel(job)
            until("the job is cancelled", lambda job=job: served.client.job(job).state == "cancelled")
            print(series.line(), flush=True)


@contextmanager
def service() -> Iterator[OnSpot]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        cluster = SpotCluster(Path(folder) / "home", spot=3, on_demand=0, replace_after="1s")
        try:
            served = OnSpot(cluster.wait()).start()
            try:
                yield served
            finally:
                served.stop()
        finally:
            cluster.stop()


def pass_self_test(served: OnSpot) -> None:
    """Pass the restore self-test in a separate job, because the test would otherwise take the marker of the long trial."""
    marker = str(served.home / "marker-of-the-test")
    job = served.submit(
        "steady:one_long_among_short",
        budget={"usd": 10, "trials": 1},
        fidelity={"min": 1, "max": 2},
        constants={"marker": marker, "megabytes": 1, "step_s": 0.1},
        resources={"market": "spot", "max_concurrent_trials": 1},
    ).id
    ended = served.finished(job)
    assert ended.state == "succeeded", ended.detail


def submit(served: OnSpot, *, megabytes: float, step_s: float, others: int) -> str:
    marker = served.home / f"marker-{time.monotonic_ns()}"
    return served.submit(
        "steady:one_long_among_short",
        budget={"usd": 10} if others else {"usd": 10, "trials": 1},
        fidelity={"min": 1, "max": 1_000_000},
        algorithm={"scheduler": "none", "sampler": "random"},
        constants={"marker": str(marker), "megabytes": megabytes, "step_s": step_s},
        checkpoint={"interval": "10s", "keep": 2},
        resources={"market": "spot", "max_concurrent_trials": 1 + others},
    ).id


def preempt(
    served: OnSpot, job: str, series: Series, take: Callable[[OnSpot, str], float], others: int
) -> None:
    """Preempt the node of the long trial once two nodes will stay and the long trial trains.

    If `others`, also wait until another trial has run on another node.
    """
    until("two nodes are alive that are not being preempted", lambda: len(staying(served, series)) > 1)
    before = until("the long trial trains", lambda: running(served, job))
    if others:
        until(
            "a short trial has run on another node", lambda: other_ran_elsewhere(served, job, series, before)
        )
    series.taken.add(str(before.node))
    node = served.cluster.names[str(before.node)]
    at = take(served, node)
    after = until("the trial trains on another node", lambda: continued_attempt(served, job, before.attempt))
    trial = long_trial(served, job)
    assert trial is not None
    ended = next(attempt for attempt in trial.attempt_list if attempt.attempt == before.attempt)
    assert ended.end == "preempted", ended
    series.lost.append(ended.to_step - after.from_step)
    first = next(point for point in trial.curve if point.step == ended.to_step + 1)
    # Lost steps are repeated without a second report, so the first new point shows when they are made up for.
    series.back_s.append(unix(first.at) - at)
    print(f"  {node}: {series.back_s[-1]:.1f} s, {series.lost[-1]} steps lost", flush=True)


def with_notice(served: OnSpot, node: str) -> float:
    """Preempt the node with a notice, and return when the notice was sent."""
    command = served.cluster.preempt(node, NOTICE, stdout=subprocess.PIPE)
    assert command.stdout is not None
    assert b"was notified" in command.stdout.readline()
    return time.time()


def kill_node(served: OnSpot, node: str) -> float:
    served.cluster.kill_raylet(node)
    return time.time()


def long_trial(served: OnSpot, job: str) -> TrialDetail | None:
    """Return the long trial, which is the one of the first two that took the marker."""
    trial_details = [served.client.trial(job, trial.id) for trial in served.client.trials(job, limit=2)]
    return next((trial for trial in trial_details if trial.state != "completed" and trial.steps), None)


def running(served: OnSpot, job: str) -> Attempt | None:
    """Return the attempt of the long trial when it has done some steps on a node, else None."""
    trial = long_trial(served, job)
    if trial is None or trial.state != "running":
        return None
    now = trial.attempt_list[-1]
    fresh = [point for point in trial.curve if unix(point.at) > unix(now.began_at)]
    return now if now.end is None and now.node in served.cluster.names and len(fresh) > 3 else None


def staying(served: OnSpot, series: Series) -> set[str]:
    """Return the nodes that are alive and have not been preempted."""
    return {
        node.node_id
        for node in served.cluster.nodes()
        if node.state == "alive" and node.node_id not in series.taken
    }


def other_ran_elsewhere(served: OnSpot, job: str, series: Series, long: Attempt) -> bool:
    """Return whether the newest other trial ran on a different node that stays."""
    newest = served.client.trials(job, sort="-number", limit=1)
    attempts = [a for trial in newest for a in served.client.trial(job, trial.id).attempt_list]
    return any(a.node in staying(served, series) and a.node != long.node for a in attempts)


def continued_attempt(served: OnSpot, job: str, attempt: int) -> Attempt | None:
    trial = long_trial(served, job)
    later = (
        [trial_attempt for trial_attempt in trial.attempt_list if trial_attempt.attempt > attempt]
        if trial
        else []
    )
    if trial is None or not later:
        return None
    before = next(trial_attempt for trial_attempt in trial.attempt_list if trial_attempt.attempt == attempt)
    return later[-1] if trial.curve[-1].step > before.to_step else None


def unix(at: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(at).timestamp()


if __name__ == "__main__":
    main()
