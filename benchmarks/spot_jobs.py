"""`python -m benchmarks.spot_jobs --traces DIR`: whole simulated jobs of one training on recorded spot markets, run by production code.

`benchmarks.spot_replay` tests only the placement policies. This benchmark also runs the driver's loop, the ledger, placement and
checkpoints of a job. DIR is the same folder of traces as for `benchmarks.spot_replay`.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.spot_replay.__main__ import CALM_NS, mean_up_ns
from benchmarks.spot_replay.tracks import Track, load
from tuner.domain.job import Algorithm
from tuner.domain.space import Float, Space
from tuner.domain.time import NS
from tuner.simulator.recorded import RecordedTable
from tuner.simulator.table_run import SpotConditions, table_run
from tuner.simulator.traces import Trace
from tuner.simulator.world import SimulatedRun

STEP_S = 60
START_STEPS = 5
GIVEN_UP = 40  # a run is given up after this many times its work
SPARE = (0.01, 0.1, 0.25, 1.0)  # as a fraction of the time that the training takes on demand


@dataclass(frozen=True)
class Case:
    """One training of `steps` steps that starts at `start_ns` of a track."""

    track: Track
    start_ns: int
    steps: int

    def spot(self) -> SpotConditions:
        return SpotConditions(
            trace=_alone(self.track), start_ns=self.start_ns, notice_ns=self.track.trace.notice_ns
        )

    def run(self, spot: SpotConditions, wall_clock_ns: int | None = None) -> SimulatedRun:
        run = table_run(
            _table(self.steps),
            budget_trainings=GIVEN_UP,
            algorithm=Algorithm("none", "random", 0),
            trials=1,
            wall_clock_ns=wall_clock_ns,
            workers=1,
            startup_steps=START_STEPS,
            spot=spot,
        )
        run.run(turns_max=10**8)
        assert run.journal.account().posted.fits(run.journal.account().limit)
        return run


def _table(steps: int) -> RecordedTable:
    """Return a table with a single row."""
    space, ones = Space({"x": Float(0, 1)}), np.ones((1, steps))
    return RecordedTable("one", space, ones, ones * STEP_S, [{"x": 0.5}])


def _alone(track: Track) -> Trace:
    """Return the part of the track's capacity that a single training sees."""
    segments = [
        (a, b, int(count * track.slots >= (track.slot + 1) * track.trace.nodes))
        for a, b, count in track.trace.segments
    ]
    return Trace(track.name, tuple(segments), track.trace.cloud)


def cases(tracks: Sequence[Track], hours: float, starts: int, seed: int) -> Iterator[Case]:
    """Yield the cases of all tracks. Trainings on short tracks are shortened to half the track's length."""
    for track in tracks:
        rng = Random(f"spot-jobs/{seed}/{track.name}")
        steps = min(round(hours * 3600), track.length_ns // (2 * NS)) // STEP_S
        for _ in range(starts):
            yield Case(track, rng.randrange(track.length_ns), steps)


def usd(run: SimulatedRun) -> int:
    return run.journal.account().posted.usd.micro_usd


def done(run: SimulatedRun) -> bool:
    return run.loop.end is not None and run.loop.end.reason == "trials"


def conditions(spot: SpotConditions) -> dict[str, SpotConditions]:
    """Return the conditions under which a job is run.

    `every_15m`, `every_30m` and `from_zero` imitate programs that ignore preemption notices and save only at
    intervals, or never. They lose the training since the last checkpoint.
    """
    deaf = replace(spot, notice_ns=None)
    return {
        "ours": spot,
        "with fallback": replace(spot, market="spot_with_fallback"),
        "uninterrupted": replace(spot, trace=None, market="spot"),
        "on_demand": replace(spot, market="on_demand"),
        "every_15m": replace(deaf, every_ns=15 * 60 * NS),
        "every_30m": replace(deaf, every_ns=30 * 60 * NS),
        "from_zero": replace(deaf, every_ns=None),
    }


def costs(cases: Sequence[Case]) -> None:
    """Print costs without a deadline, on spot alone and with fallback."""
    print("| condition | finished | cost | calm | markets within 1.10 | median | worst | lost |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    calm = {case.track.name for case in cases if mean_up_ns(case.track) >= CALM_NS}
    ideal = {case: usd(case.run(conditions(case.spot())["uninterrupted"])) for case in cases}
    for name in ("ours", "every_15m", "every_30m", "from_zero", "with fallback", "on_demand"):
        runs = [(case, case.run(conditions(case.spot())[name])) for case in cases]
        by_track: dict[str, list[float]] = {}
        for case, run in runs:
            by_track.setdefault(case.track.name, []).append(usd(run) / ideal[case])
        means = [statistics.fmean(ratios) for ratios in by_track.values()]
        lost = sum(_lost(run) for _, run in runs) / sum(ideal.values())
        quiet = [(case, run) for case, run in runs if case.track.name in calm]
        print(
            f"| {name} | {sum(done(run) for _, run in runs) / len(runs):.0%} | {_ratio(runs, ideal):.3f} "
            f"| {_ratio(quiet, ideal):.3f} | {sum(mean <= 1.10 for mean in means)} of {len(means)} "
            f"| {statistics.median(means):.3f} | {max(means):.3f} | {lost:.1%} |",
            flush=True,
        )


def _ratio(runs: Sequence[tuple[Case, SimulatedRun]], ideal: dict[Case, int]) -> float:
    return sum(usd(run) for _, run in runs) / max(1, sum(ideal[case] for case, _ in runs))


def _lost(run: SimulatedRun) -> int:
    return sum(e.cost.usd.micro_usd for e in run.journal.tables.entries.values() if e.kind == "lost")


def in_time(cases: Sequence[Case], spare: float) -> None:
    """Print how often a deadline is met with fallback.

    The deadline is the time that the training takes on demand, plus the share `spare`.
    """
    met = ideal = spent = alone_spent = count = 0
    for case in cases:
        spot = replace(case.spot(), market="spot_with_fallback")
        alone = case.run(replace(spot, market="on_demand"))
        limit = round(alone.clock.elapsed_ns() * (1 + spare))
        if not done(case.run(replace(spot, market="on_demand"), limit)):
            continue
        run = case.run(spot, limit)
        count, met = count + 1, met + done(run)
        spent, alone_spent = spent + usd(run), alone_spent + usd(alone)
        ideal += usd(case.run(conditions(spot)["uninterrupted"]))
    print(f"| {spare:.0%} | {met} of {count} | {spent / ideal:.3f} | {alone_spent / ideal:.3f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--starts", type=int, default=3, help="number of starts in each track")
    parser.add_argument("--hours", type=float, default=10, help="hours of training")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    all_cases = list(cases(load(args.traces), args.hours, args.starts, args.seed))
    costs(all_cases)
    print("\n| to spare | deadline met | cost | on demand alone |\n| --- | --- | --- | --- |")
    for spare in SPARE:
        in_time(all_cases, spare)


if __name__ == "__main__":
    main()
