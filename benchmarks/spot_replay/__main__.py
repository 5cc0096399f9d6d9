"""`python -m benchmarks.spot_replay --traces DIR`: replay one long training on recorded spot markets with different policies.

DIR holds skypilot_cant_be_late.csv, bamboo_parcae_counts.csv and stanford_2020_instance_lifetimes.csv; they are not shipped.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from benchmarks.spot_replay.policies import (
    NO_DEADLINE,
    ON_DEMAND,
    ON_DEMAND_ONLY,
    SPOT,
    WITH_DEADLINE,
    Policy,
)
from benchmarks.spot_replay.replay import Outcome, Replay, Training, uninterrupted
from benchmarks.spot_replay.tracks import Track, load
from tuner.domain.time import HOUR_NS, NS

GIVEN_UP = 40  # multiple of the work after which a run is given up
CALM_NS = 2 * HOUR_NS  # the mean up time from which a market counts as calm


@dataclass(frozen=True)
class Case:
    """A training that starts at some time of a track."""

    track: Track
    start_ns: int
    training: Training

    def run(self, policy: Policy, deadline_ns: int | None) -> Outcome:
        seed = f"{self.track.name}/{self.start_ns}"
        market = self.track.market(self.start_ns)
        return Replay(self.training, market, policy, deadline_ns, seed).run(GIVEN_UP * self.training.work_ns)

    def least_cost(self, deadline_ns: int) -> int:
        """Return a lower bound of the cost: all available spot time until the deadline is used, and moves are free."""
        market, now, spot = self.track.market(self.start_ns), 0, 0
        while now < deadline_ns:
            change = min(market.next_change(now), deadline_ns)
            spot += change - now if market.up_until(now) is not None else 0
            now = change
        work = self.training.work_ns
        on_spot = min(work, spot)
        return (SPOT.price.of(on_spot) + ON_DEMAND.price.of(work - on_spot)).micro_usd


def cases(tracks: Sequence[Track], training: Training, starts: int, seed: int) -> Iterator[Case]:
    """Yield the cases of each track. On short tracks, the training takes half of the track's length."""
    for track in tracks:
        rng = Random(f"spot-replay/{seed}/{track.name}")
        work = min(training.work_ns, track.length_ns // 2) // training.step_ns * training.step_ns
        for _ in range(starts):
            yield Case(track, rng.randrange(track.length_ns), replace(training, work_ns=work))


def mean_up_ns(track: Track) -> int:
    """Return the mean time until a machine is preempted."""
    market, now, up, ends = track.market(0), 0, 0, 0
    while now < track.length_ns:
        change = min(market.next_change(now), track.length_ns)
        if market.up_until(now) is not None:
            up, ends = up + change - now, ends + (change < track.length_ns)
        now = change
    return up // max(1, ends)


def without_deadline(cases: Sequence[Case]) -> None:
    print(
        "| policy | finished | cost, all | cost, calm | tracks <= 1.10 | median | worst | time | lost work |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    calm = {
        track.name
        for track in {c.track.name: c.track for c in cases}.values()
        if mean_up_ns(track) >= CALM_NS
    }
    for policy in NO_DEADLINE:
        runs = [(case, case.run(policy, None)) for case in cases]
        by_track: dict[str, list[float]] = {}
        for case, run in runs:
            by_track.setdefault(case.track.name, []).append(
                run.cost.micro_usd / uninterrupted(case.training).micro_usd
            )
        means = {name: statistics.fmean(ratios) for name, ratios in by_track.items()}
        done = [(case, run) for case, run in runs if run.finished_ns is not None]
        times = [(run.finished_ns or 0) / case.training.work_ns for case, run in done]
        lost = sum(run.lost_ns for _, run in runs) / sum(case.training.work_ns for case, _ in runs)
        time = f"{statistics.fmean(times):.2f}" if times else "-"
        print(
            f"| {policy.name} | {len(done) / len(runs):.0%} | {total(runs):.3f} | {total(r for r in runs if r[0].track.name in calm):.3f} "
            f"| {sum(mean <= 1.10 for mean in means.values())} of {len(means)} "
            f"| {statistics.median(means.values()):.3f} | {max(means.values()):.3f} | {time} | {lost:.1%} |",
            flush=True,
        )


def total(runs: "Iterator[tuple[Case, Outcome]] | Sequence[tuple[Case, Outcome]]") -> float:
    """Return the cost of all runs as a multiple of their cost without interruptions."""
    pairs = [(run.cost.micro_usd, uninterrupted(case.training).micro_usd) for case, run in runs]
    return sum(cost for cost, _ in pairs) / sum(ideal for _, ideal in pairs) if pairs else 0.0


def with_deadline(cases: Sequence[Case], share: float) -> None:
    """Print the results with a deadline for which the work takes `share` of the time."""
    rows: dict[str, list[tuple[Case, Outcome, bool]]] = {policy.name: [] for policy in WITH_DEADLINE}
    least = ideal = 0
    for case in cases:
        deadline = case.training.launch_ns + round(case.training.work_ns / share)
        demand = case.run(ON_DEMAND_ONLY, deadline)
        if demand.finished_ns is None or demand.finished_ns > deadline:
            continue
        least, ideal = least + case.least_cost(deadline), ideal + uninterrupted(case.training).micro_usd
        for policy in WITH_DEADLINE:
            run = demand if policy is ON_DEMAND_ONLY else case.run(policy, deadline)
            rows[policy.name].append((case, run, run.finished_ns is not None and run.finished_ns <= deadline))
    for name, runs in rows.items():
        met = sum(ok for *_, ok in runs)
        demand_time = sum(run.on_demand_ns for _, run, _ in runs) / sum(
            case.training.work_ns for case, *_ in runs
        )
        pairs = [(case, run) for case, run, _ in runs]
        print(
            f"| {share:.2f} | {name} | {met} of {len(runs)} | {total(pairs):.3f} | {demand_time:.0%} |",
            flush=True,
        )
    print(f"| {share:.2f} | (no policy is below) | | {least / max(1, ideal):.3f} | |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--starts", type=int, default=10, help="starts in each track")
    parser.add_argument("--hours", type=float, default=24, help="hours of work")
    parser.add_argument("--stall-s", type=float, default=2)
    parser.add_argument("--durable-s", type=float, default=20)
    parser.add_argument("--launch-s", type=float, default=300)
    parser.add_argument("--step-s", type=float, default=60)
    parser.add_argument("--notice-s", type=float, default=120)
    parser.add_argument("--missed", type=float, default=0.1, help="share of preemptions without notice")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    training = Training(
        work_ns=round(args.hours * 3600) * NS,
        step_ns=round(args.step_s * NS),
        stall_ns=round(args.stall_s * NS),
        durable_ns=round(args.durable_s * NS),
        launch_ns=round(args.launch_s * NS),
        notice_ns=round(args.notice_s * NS),
        missed=args.missed,
    )
    tracks = load(args.traces)
    for family in dict.fromkeys(track.family for track in tracks):
        members = [track for track in tracks if track.family == family]
        print(f"\n{family}: {len(members)} tracks\n")
        without_deadline(list(cases(members, training, args.starts, args.seed)))
    everything = list(cases(tracks, training, args.starts, args.seed))
    print(f"\nall {len(tracks)} tracks\n")
    without_deadline(everything)
    print("\n| work / time | policy | deadline met | cost | on demand |\n| --- | --- | --- | --- | --- |")
    for share in (0.5, 0.7, 0.8, 0.9, 0.99):
        with_deadline(everything, share)


if __name__ == "__main__":
    main()
