"""`python -m benchmarks.plans [--tables DIR] [--real] [--auto] [--best]`: the planned cost of jobs compared with their actual cost.

Each job has a pilot, then a plan based on it, and then runs to its end. Simulated jobs run the production code on a simulated clock and
train rows of recorded tables. Real jobs run on a local Ray of two CPUs. The cost of `open` jobs is not known in advance, because they end
by their own rules: trials, target or plateau. The other jobs spend their whole budget, so their cost is easy to plan.
"""

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.plan_jobs import LARGE, SMALL, Machines, Place, Recorded, real, recorded

DATA = Path(__file__).parent / "data"
SHIPPED = DATA / "lcbench_adult_300.npz"
PILOT_TRAININGS = 1.5  # budget of a simulated job's pilot, in mean trainings
Changes = dict[str, Any]


@dataclass(frozen=True)
class Case:
    name: str
    changes: Changes
    pilot_usd: float


@dataclass(frozen=True)
class Outcome:
    """Planned and actual cost of a job in dollars. Eight of ten jobs should cost between `low` and `high`."""

    case: str
    low: float
    expected: float
    high: float
    actual: float
    pilot: float
    reason: str
    plan_s: float

    @property
    def is_open(self) -> bool:
        return self.reason not in ("budget_usd", "budget_gpu_hours", "wall_clock")

    @property
    def is_within(self) -> bool:
        return self.low <= self.actual <= self.high

    @property
    def error(self) -> float:
        return abs(self.expected / self.actual - 1)


def job(
    scheduler: str, trials: int | None, *, trainings: float = 60, workers: int = 4, **more: Any
) -> Changes:
    """Return the request of a simulated job.

    Args:
        trainings: The budget in mean trainings. The default is enough for all cases.
    """
    fidelity = {name: more.pop(name) for name in ("min", "max", "reduction_factor") if name in more}
    algorithm = {"scheduler": scheduler, "sampler": more.pop("sampler", "auto"), "seed": more.pop("seed", 0)}
    resources = {"max_concurrent_trials": workers, "market": more.pop("market", "on_demand")}
    return {
        "trainings": trainings,
        "budget": {"trials": trials} if trials else {},
        "fidelity": fidelity,
        "algorithm": algorithm,
        "resources": resources,
        **more,
    }


# Cases by what ends the job. The scheduler is ASHA if the name gives no other.
SIMULATED: dict[str, Changes] = {
    "asha, 40 trials": job("asha", 40, sampler="random"),
    "asha, 40 trials, from 3 epochs, halved": job("asha", 40, min=3, max=15, reduction_factor=2),
    "asha, 60 trials, TPE": job("asha", 60, sampler="tpe", seed=1),
    "asha, 30 trials, 1 worker": job("asha", 30, workers=1, sampler="random", seed=2),
    "asha, 80 trials, 8 workers": job("asha", 80, workers=8, sampler="random", seed=3),
    "asha, 40 trials on spot": job("asha", 40, market="spot", sampler="random", seed=4),
    "asha, 40 trials, fallback": job("asha", 40, market="spot_with_fallback", sampler="random", seed=5),
    "stopping asha, 40 trials": job("asha_stopping", 40, sampler="random", seed=6),
    "full, 8 trials": job("none", 8, sampler="random", seed=7),
    "full, 12 trials of 20 epochs": job("none", 12, max=20, sampler="random", seed=8),
    "full, 10 trials, Sobol": job("none", 10, sampler="qmc", seed=9),
    "auto, 20 trials": job("auto", 20, seed=10),
    "auto, 40 trials, 20 epochs": job("auto", 40, max=20, seed=11),
    "asha, plateau": job("asha", 200, sampler="random", seed=12, stop="plateau"),
    "asha, $ for 10 trainings": job("asha", None, trainings=10, sampler="random", seed=13),
    "auto, $ for 8 trainings": job("auto", None, trainings=8, seed=14),
    "auto, $ for 3 on spot": job("auto", None, trainings=3, market="spot", seed=15),
    "full, $ for 6 trainings": job("none", None, trainings=6, sampler="random", seed=16),
}


def real_job(trainable: str, scheduler: str, trials: int, most: int, **more: Any) -> Case:
    changes = {
        "trainable": f"trainables.{trainable}:train",
        "fidelity": {"unit": "epoch", "min": more.pop("min", 1), "max": most},
        "budget": {"usd": more.pop("usd", 0.5), "trials": trials},
        "algorithm": {"scheduler": scheduler, "sampler": more.pop("sampler", "random"), "seed": 0},
        "resources": {"max_concurrent_trials": more.pop("workers", 2)},
        **more,
    }
    return Case(f"{trainable}, {scheduler}, {trials} trials of {most} epochs", changes, 0.003)


REAL = [
    real_job("digits_mlp", "asha", 40, 27),
    real_job("digits_mlp", "none", 16, 20),
    real_job("digits_mlp", "auto", 24, 24, sampler="auto"),
    real_job("digits_cnn", "asha", 24, 9),
    real_job("digits_cnn", "none", 10, 8, workers=1),
    real_job("char_lm", "asha", 16, 9),
    real_job("char_lm", "none", 8, 6),
    real_job("digits_mlp", "asha", 400, 27, usd=0.004, sampler="auto"),
]


def run_case(place: Place, case: Case) -> Outcome:
    """Run the pilot, the plan and the job of one case. The plan uses only this pilot, even if other cases ran at this place before."""
    body = place.body(case.changes)
    pilot = place.run(place.client.pilot(body, usd=case.pilot_usd).id)
    began = time.perf_counter()
    plan = place.client.plan({**body, "planning": {"steps_from": [pilot.id]}})
    plan_s = time.perf_counter() - began
    ended = place.run(place.client.submit(body).id)
    cost = plan.usd
    return Outcome(
        case.name,
        cost.low,
        cost.expected,
        cost.high,
        ended.spend.usd,
        pilot.spend.usd,
        str(ended.stop_reason),
        plan_s,
    )


def simulated(tables: Sequence[Path]) -> Iterator[Outcome]:
    """Run every case once, each on the next table."""
    for number, (name, changes) in enumerate(SIMULATED.items()):
        table = tables[number % len(tables)]
        with recorded(table) as place:
            given = dict(changes)
            if given.get("stop") == "plateau":
                patience = round(4 * place.training_usd, 6)
                given["stop"] = {"plateau": {"patience_usd": patience, "min_gain": 0.0}}
            pilot_usd = round(PILOT_TRAININGS * place.training_usd, 6)
            yield run_case(place, Case(f"{name} ({table.stem})", given, pilot_usd))


def on_ray() -> Iterator[Outcome]:
    with real() as place:
        for number, case in enumerate(REAL):
            constants = {"seed": number}  # different constants, so that each job has its own pilot
            yield run_case(place, replace(case, changes={**case.changes, "constants": constants}))


@dataclass(frozen=True)
class AutoCase:
    """A job with `auto` and 27 epochs that spends its budget, so that only its number of trials is hard to plan."""

    table: str
    trainings: float
    machines: Machines
    workers: int = 2
    seed: int = 0


AUTO = [
    AutoCase("digits_mlp", 142, SMALL),
    AutoCase("digits_mlp", 142, SMALL, seed=5),
    AutoCase("digits_mlp", 35, SMALL, seed=1),
    AutoCase("digits_cnn", 40, SMALL),
    AutoCase("char_lm", 30, SMALL, seed=1),
    AutoCase("lcbench_adult_300", 8, LARGE, workers=4, seed=14),
    AutoCase("lcbench_adult_300", 40, LARGE, workers=4, seed=3),
]


def trials_of_auto() -> None:
    """Print the planned and the actual number of trials, and of trials that were trained to the last step."""
    print("| table | trainings | seed | trials, planned | 80 % | were | within | complete, planned | were |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    within, errors, complete_errors = 0, list[float](), list[float]()
    for case in AUTO:
        with recorded(DATA / f"{case.table}.npz", case.machines) as place:
            changes = job(
                "auto", None, trainings=case.trainings, workers=case.workers, seed=case.seed, max=27
            )
            body = place.body(changes)
            pilot = place.run(place.client.pilot(body, usd=round(PILOT_TRAININGS * place.training_usd, 6)).id)
            plan = place.client.plan({**body, "planning": {"steps_from": [pilot.id]}})
            ended = place.run(place.client.submit(body).id)
            steps = [trial.steps for trial in place.client.trials(ended.id) if trial.steps]
        trials, complete = plan.trials, plan.rungs[-1].trials
        is_within = trials.low <= len(steps) <= trials.high
        finished = sum(step >= 27 for step in steps)
        within += is_within
        errors.append(abs(trials.expected / len(steps) - 1))
        complete_errors.append(abs(complete / finished - 1))
        print(
            f"| {case.table} | {case.trainings:g} | {case.seed} | {trials.expected:.0f} | {trials.low:.0f} to {trials.high:.0f} "
            f"| {len(steps)} | {'yes' if is_within else 'no'} | {complete:.0f} | {finished} |",
            flush=True,
        )
    print(f"within: {within} of {len(AUTO)}")
    for name, off in (("trials", errors), ("complete trials", complete_errors)):
        print(f"error of the {name}: median {statistics.median(off):.0%}, mean {statistics.fmean(off):.0%}")


# The shipped tables with their numbers of epochs. Those with 27 epochs are of small models.
BEST = {
    "digits_mlp": 27,
    "digits_cnn": 27,
    "char_lm": 27,
    "char_gpt2": 27,
    "digits_xgboost": 27,
    "lcbench_adult_300": 50,
}
BEST_PILOT_TRAININGS = 3
EARLIER = (20, 7)  # the budget of an earlier job in mean trainings, and its seed


def best_metrics(tables: Path | None) -> None:
    """Print the planned and the actual best metric of jobs with `auto`, once after a pilot and once after an earlier job."""
    paths = [*(DATA / f"{name}.npz" for name in BEST), *(sorted(tables.glob("*.npz")) if tables else [])]
    print("| table | known | trainings | expected | 80 % | was | within |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    within = Counter[str]()
    for path, known, (trainings, seed) in product(paths, ("pilot", "earlier job"), ((10, 1), (40, 2))):
        with recorded(path, SMALL if BEST.get(path.stem) == 27 else LARGE) as place:
            body = auto_job(place, path.stem, trainings, seed)
            if known == "pilot":
                usd = round(BEST_PILOT_TRAININGS * place.training_usd, 6)
                seen = place.run(place.client.pilot(body, usd=usd).id)
            else:
                seen = place.run(place.client.submit(auto_job(place, path.stem, *EARLIER)).id)
            best = place.client.plan({**body, "planning": {"steps_from": [seen.id]}}).best
            ended = place.run(place.client.submit(body).id)
            was = max(trial.metric for trial in place.client.trials(ended.id) if trial.metric is not None)
        assert best is not None
        within[known] += best.low <= was <= best.high
        print(
            f"| {path.stem} | {known} | {trainings} | {best.expected:.4f} | {best.low:.4f} to {best.high:.4f} "
            f"| {was:.4f} | {'yes' if best.low <= was <= best.high else 'no'} |",
            flush=True,
        )
    for known, count in within.items():
        print(f"known from one {known}: {count} of {2 * len(paths)} within")


def auto_job(place: Recorded, table: str, trainings: float, seed: int) -> dict[str, Any]:
    last = min(place.table.steps, BEST.get(table, 50))
    return place.body(job("auto", None, trainings=trainings, workers=2, seed=seed, max=last))


def shown(outcomes: Iterator[Outcome]) -> list[Outcome]:
    print("| job | ended by | pilot | expected | 80 % | was | within | error |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rows = []
    for row in outcomes:
        rows.append(row)
        print(
            f"| {row.case} | {row.reason} | {row.pilot:.4f} | {row.expected:.4f} | {row.low:.4f} to {row.high:.4f} "
            f"| {row.actual:.4f} | {'yes' if row.is_within else 'no'} | {row.error:.0%} |",
            flush=True,
        )
    return rows


def report(name: str, rows: Sequence[Outcome]) -> None:
    if rows:
        within = sum(row.is_within for row in rows)
        error = statistics.median(row.error for row in rows)
        print(f"{name}: {within} of {len(rows)} within ({within / len(rows):.0%}), median error {error:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tables", type=Path, help="a folder of recorded tables, in addition to the shipped one"
    )
    parser.add_argument("--real", action="store_true", help="also run the real jobs")
    parser.add_argument("--only-real", action="store_true")
    parser.add_argument(
        "--auto", action="store_true", help="only compare numbers of trials of jobs with auto"
    )
    parser.add_argument("--best", action="store_true", help="only compare the best metrics of jobs with auto")
    args = parser.parse_args()
    if args.best:
        best_metrics(args.tables)
        return
    if args.auto:
        trials_of_auto()
        return
    tables = [SHIPPED, *(sorted(args.tables.glob("*.npz")) if args.tables else [])]
    rows: list[Outcome] = []
    if not args.only_real:
        rows += shown(simulated(tables))
    if args.real or args.only_real:
        rows += shown(on_ray())
    print()
    report("all", rows)
    report("open", [row for row in rows if row.is_open])
    report("budget spent", [row for row in rows if not row.is_open])
    print(f"slowest plan: {max(row.plan_s for row in rows):.2f} s")


if __name__ == "__main__":
    main()
