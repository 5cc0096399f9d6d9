"""`python -m benchmarks.head_to_head`: search the same real code with the service, with Ray Tune and with Optuna.

Every method calls the same function on two workers. The function writes a line for each report, with its metric and the processor time of
the training thread since the previous line. The cost of a search is the sum of these times, at a price per hour. A step therefore costs the
same for all methods, even if the machine has other work, and a method that restores checkpoints or repeats the setup pays for it. The cost
does not include imports, the frameworks' own processor time, and idle workers. `worker_s` in the results is the wall time of both workers.

The service has a budget in worker seconds, to which the first start of both workers is added, so each budget needs a run of its own. Peers
do not know a budget: they run once, to a fifth more than the largest budget. For each budget, their best result at the cost of the
service's run is compared.

The method `random` trains as many random configurations to the last step as the largest budget pays for. With `--tables`, the service's
searches are simulated on a recorded table of each trainable, and the real and the simulated results are shown. A table that does not
exist is written first, from all trainings that reached the last step, by any method.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.metered import MODULES, STEPS, metered, module_of
from benchmarks.search.statistics import Estimate, interval, resampled
from tuner.simulator.table_file import load_table

PEERS = ("ray_optuna", "ray_random", "optuna_hyperband")
METHODS = ("service", *PEERS, "random")
WORKERS = 2
PRICE = 0.10  # dollars per hour of a worker
MARGIN = 1.2
QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Search:
    """One search to run. `limit_s` is the cost at which a peer stops, in seconds of processor time of trainings."""

    trainable: str
    method: str
    seed: int
    limit_s: float
    folder: str

    @property
    def module(self) -> Any:
        return module_of(self.trainable)

    @property
    def mode(self) -> str:
        return str(self.module.OBJECTIVE["mode"])

    @property
    def log(self) -> Path:
        return Path(self.folder) / "reports.jsonl"

    def is_over(self) -> bool:
        return sum(line["cpu_s"] for line in lines(self.log)) >= self.limit_s


@dataclass(frozen=True)
class Result:
    """A finished search. `curve` has the cost so far, in seconds, and the best metric so far, for each report."""

    trainable: str
    method: str
    seed: int
    trainings: float
    curve: list[tuple[float, float]]
    worker_s: float
    trials: int  # continued ones count again
    bill: Mapping[str, float]  # by kind, in dollars. Empty for peers
    start_usd: float = 0.0  # the part of the budget that was added for the first starts of the workers

    @property
    def cost_s(self) -> float:
        return self.curve[-1][0] if self.curve else 0.0

    @property
    def key(self) -> tuple[str, str, int, float]:
        return self.trainable, self.method, self.seed, self.trainings


def lines(log: Path) -> list[dict[str, Any]]:
    """Return the lines of a log. Another process may be writing the last one, so it is left out until it is complete."""
    complete = log.read_text().rpartition("\n")[0] if log.exists() else ""
    return [json.loads(line) for line in complete.splitlines()]


# Peers. Each runs in a process of its own.


def suggested(trial: Any, space: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a configuration by Optuna's trial. A parameter with `when` comes after those that it depends on."""
    config: dict[str, Any] = {}
    for name, parameter in space.items():
        if any(config.get(other) not in values for other, values in parameter.get("when", {}).items()):
            continue
        if parameter["type"] == "categorical":
            config[name] = trial.suggest_categorical(name, parameter["choices"])
        else:
            suggest = trial.suggest_int if parameter["type"] == "int" else trial.suggest_float
            config[name] = suggest(name, parameter["low"], parameter["high"], log=parameter.get("log", False))
    return config


def suggest_only(space: Mapping[str, Mapping[str, Any]], trial: Any) -> None:
    """Suggest a configuration. OptunaSearch pickles this function, and takes what it returns for constants."""
    suggested(trial, space)


def ray_search(search: Search) -> None:
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.basic_variant import BasicVariantGenerator
    from ray.tune.search.optuna import OptunaSearch

    space, trainable, log = search.module.SEARCH_SPACE, search.trainable, search.log

    class Enough(tune.Stopper):
        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return search.is_over()

    def trains(config: dict[str, Any]) -> None:
        metered(trainable, log, dict(config), lambda metrics, _: tune.report(metrics))

    def domain(parameter: Mapping[str, Any]) -> Any:
        low, high, log_scale = parameter.get("low"), parameter.get("high"), parameter.get("log", False)
        if parameter["type"] == "categorical":
            return tune.choice(parameter["choices"])
        if parameter["type"] == "int":
            return tune.lograndint(low, high + 1) if log_scale else tune.randint(low, high + 1)
        return tune.loguniform(low, high) if log_scale else tune.uniform(low, high)

    with_optuna = search.method == "ray_optuna"
    ray.init(
        address="local",
        num_cpus=WORKERS,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=f"{search.folder}/r",
    )
    tune.Tuner(
        trains,
        param_space=None if with_optuna else {name: domain(each) for name, each in space.items()},
        tune_config=tune.TuneConfig(
            metric="value",
            mode=search.mode,
            num_samples=-1,
            max_concurrent_trials=WORKERS if with_optuna else None,
            search_alg=OptunaSearch(
                partial(suggest_only, space), metric="value", mode=search.mode, seed=search.seed
            )
            if with_optuna
            else BasicVariantGenerator(random_state=search.seed),
            scheduler=ASHAScheduler(max_t=STEPS, grace_period=1, reduction_factor=3),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(storage_path=f"{search.folder}/t", verbose=0, stop=Enough()),
    ).fit()


def optuna_search(search: Search, worker: int) -> None:
    """Run one of the processes that share an Optuna study."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(JournalFileBackend(f"{search.folder}/study.log")),
        sampler=optuna.samplers.TPESampler(seed=1000 * search.seed + worker),
        pruner=optuna.pruners.HyperbandPruner(1, STEPS, 3),
        direction="maximize" if search.mode == "max" else "minimize",
        study_name=f"seed {search.seed}",
        load_if_exists=True,
    )

    def objective(trial: optuna.Trial) -> float:
        value = math.nan

        def send(metrics: dict[str, Any], step: int) -> None:
            nonlocal value
            value = metrics["value"]
            trial.report(value, step)
            if trial.should_prune() or search.is_over():
                raise optuna.TrialPruned

        metered(search.trainable, search.log, suggested(trial, search.module.SEARCH_SPACE), send)
        return value

    study.optimize(objective, callbacks=[lambda study, _: study.stop() if search.is_over() else None])


def random_trainings(search: Search, trainings: int) -> None:
    """Train random configurations to the last step, one after the other."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for number in range(trainings):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1000 * search.seed + number))
        config = suggested(study.ask(), search.module.SEARCH_SPACE)
        metered(search.trainable, search.log, config, lambda *_: None)


def processes(search: Search, *calls: str) -> float:
    """Run each call with the search in a process of its own, and return the seconds until all have ended."""
    began = time.monotonic()
    fields = {**asdict(search), "folder": str(Path(search.folder).absolute())}
    code = f"from benchmarks.head_to_head import *; search = Search(**{fields!r}); "
    started = [
        subprocess.Popen([sys.executable, "-c", code + call], env={**os.environ, **QUIET}) for call in calls
    ]
    codes = [process.wait() for process in started]
    assert not any(codes), f"{search.method} ended with {codes}"
    return time.monotonic() - began


# Runs


def curve_of(rows: Sequence[Mapping[str, Any]], mode: str) -> list[tuple[float, float]]:
    """Return the cost and the best metric so far after each report. Metrics that are not finite numbers do not count."""
    worst, better = (-math.inf, max) if mode == "max" else (math.inf, min)
    values = [row["value"] if math.isfinite(row["value"]) else worst for row in rows]
    costs = accumulate(row["cpu_s"] for row in rows)
    return list(zip(costs, accumulate(values, better), strict=True))


def result_of(
    search: Search,
    trainings: float,
    seconds: float,
    bill: Mapping[str, float] | None = None,
    start: float = 0.0,
) -> Result:
    rows = sorted(lines(search.log), key=lambda row: row["at"])
    trials = sum(row["begins"] for row in rows)
    where = (search.trainable, search.method, search.seed, trainings)
    return Result(*where, curve_of(rows, search.mode), seconds * WORKERS, trials, bill or {}, start)


def run_peer(search: Search, trainings: float) -> Result:
    calls = {
        "optuna_hyperband": [f"optuna_search(search, {worker})" for worker in range(WORKERS)],
        "random": [f"random_trainings(search, {trainings:.0f})"],
    }.get(search.method, ["ray_search(search)"])
    return result_of(search, trainings, processes(search, *calls))


def run_service(served: Any, search: Search, trainings: float, usd: float, start: float) -> Result:
    seconds, bill = of_service(served, search, STEPS, {"usd": round(start + usd, 6)})
    return result_of(search, trainings, seconds, bill, start)


def start_usd(served: Any, search: Search) -> float:
    """Return what the first starts of the workers cost, in dollars. Each worker trains for one step."""
    return of_service(served, search, 1, {"usd": 1.0, "trials": WORKERS})[1]["setup"]


def of_service(
    served: Any, search: Search, steps: int, budget: Mapping[str, float]
) -> tuple[float, dict[str, float]]:
    """Run a job, and return its seconds and its bill by kind, in dollars."""
    from datetime import datetime

    job = served.submit(
        "benchmarks.metered:train",
        name=f"{search.trainable} {search.seed}",
        objective=search.module.OBJECTIVE,
        search_space=search.module.SEARCH_SPACE,
        constants={"trainable": search.trainable, "log": str(search.log.absolute())},
        fidelity={"min": 1, "max": steps},
        budget=budget,
        algorithm={"seed": search.seed},
        resources={"max_concurrent_trials": WORKERS},
    )
    ended = served.client.wait(job.id)
    assert ended.state == "succeeded", ended.detail
    took = datetime.fromisoformat(ended.ended_at) - datetime.fromisoformat(ended.started_at)
    return took.total_seconds(), dict(served.client.bill(job.id).by_kind)


# Report


def at(curve: Sequence[tuple[float, float]], cost_s: float) -> float:
    """Return the best metric for this cost. If the first report costs more, that is its metric."""
    costs, values = zip(*curve, strict=True)
    return float(values[max(0, int(np.searchsorted(costs, cost_s, side="right")) - 1)])


def cost_to(curve: Sequence[tuple[float, float]], value: float, mode: str) -> float:
    """Return the cost at which the curve is as good as the value, which it reaches."""
    return next(cost for cost, best in curve if (best >= value if mode == "max" else best <= value))


def cost_ratio(
    ours: Sequence[tuple[float, float]], theirs: Sequence[tuple[float, float]], mode: str
) -> float:
    """Return our cost to the same result, as a multiple of theirs.

    The result is the worse one of what both have after the same cost, so both reach it.

    >>> cost_ratio([(1, 0.5), (2, 0.9), (4, 0.9)], [(1, 0.2), (4, 0.8)], "max")
    0.5
    """
    cost_s = min(ours[-1][0], theirs[-1][0])
    worse = (min if mode == "max" else max)(at(ours, cost_s), at(theirs, cost_s))
    return cost_to(ours, worse, mode) / cost_to(theirs, worse, mode)


def estimate(values: Sequence[float]) -> Estimate:
    array = np.array(values)
    return interval(float(array.mean()), resampled(array, 0))


def shown(bounds: Estimate, places: str = ".3f") -> str:
    return f"{bounds.mean:{places}} ({bounds.low:{places}} to {bounds.high:{places}})"


def report(results: Sequence[Result], usd_per_hour: float) -> None:
    """Print, for each trainable and budget, what each method has for the same money, and the ratio of the dollars to the same result."""
    service = [result for result in results if result.method == "service"]
    for trainable, trainings in sorted({(result.trainable, result.trainings) for result in service}):
        mode = str(module_of(trainable).OBJECTIVE["mode"])
        ours = {
            r.seed: r for r in service if (r.trainable, r.trainings) == (trainable, trainings) and r.curve
        }
        costs_s = np.mean([result.cost_s for result in ours.values()]) * np.array([0.125, 0.25, 0.5, 1])
        dollars = " | ".join(f"${cost_s / 3600 * usd_per_hour:.6f}" for cost_s in costs_s)
        print(f"\n### {trainable}, {trainings:g} trainings, {len(ours)} seeds\n")
        print(f"| method | {dollars} | dollars to the same result, ours ÷ theirs |")
        print("| --- | --- | --- | --- | --- | --- |")
        for method in ("service", *PEERS):
            theirs = {
                r.seed: r for r in results if (r.trainable, r.method) == (trainable, method) and r.curve
            }
            pairs = [
                (mine, mine if method == "service" else theirs[seed])
                for seed, mine in ours.items()
                if seed in theirs
            ]
            if not pairs:
                continue
            bests = [shown(estimate([at(r.curve, cost_s) for _, r in pairs])) for cost_s in costs_s]
            logs = estimate([math.log(cost_ratio(mine.curve, r.curve, mode)) for mine, r in pairs])
            ratio = Estimate(*(math.exp(bound) for bound in (logs.mean, logs.low, logs.high)))
            print(
                f"| {method} | {' | '.join(bests)} | {'' if method == 'service' else shown(ratio, '.2f')} |"
            )
        kinds = {kind for result in ours.values() for kind in result.bill}
        total = sum(sum(result.bill.values()) for result in ours.values()) or 1
        shares = {kind: sum(r.bill.get(kind, 0) for r in ours.values()) / total for kind in sorted(kinds)}
        print(
            f"\nThe service's money by kind: {', '.join(f'{kind} {share:.0%}' for kind, share in shares.items())}."
        )


# Recorded tables


def column(parameter: Mapping[str, Any], value: Any) -> float:
    """Return a value as a number: a choice as its place, and the value of an inactive parameter as the lower bound."""
    if parameter["type"] == "categorical":
        return float(parameter["choices"].index(value))
    return float(parameter["low"] if value is None else value)


def axis(name: str, parameter: Mapping[str, Any]) -> list[Any]:
    """Return the parameter as `tuner simulate` reads it from a table."""
    if parameter["type"] == "categorical":
        return [name, 0, len(parameter["choices"]) - 1, "lin", "int"]
    scale = "log" if parameter.get("log") else "lin"
    return [name, parameter["low"], parameter["high"], scale, parameter["type"]]


def write_table(module: Any, logs: Sequence[Path], path: Path) -> int:
    """Write a table of the trainings that were run to the last step, and return their number. A loss is written as its negative."""
    space, sign = module.SEARCH_SPACE, 1 if module.OBJECTIVE["mode"] == "max" else -1
    trainings: dict[str, dict[int, tuple[float, float]]] = {}
    for line in (line for log in logs for line in lines(log)):
        steps = trainings.setdefault(json.dumps(line["config"], sort_keys=True), {})
        steps.setdefault(line["step"], (sign * line["value"], line["cpu_s"]))
    whole = {config: steps for config, steps in trainings.items() if len(steps) == STEPS}
    if not whole:
        return 0
    configs = [json.loads(config) for config in whole]
    curves = np.array([[steps[step + 1] for step in range(STEPS)] for steps in whole.values()])
    metric, seconds = curves[..., 0], curves[..., 1]
    worst = metric[np.isfinite(metric)].min()
    np.savez_compressed(
        path,
        X=np.array([[column(space[name], config.get(name)) for name in space] for config in configs]),
        # The file has half the size with five decimals.
        metric=np.where(np.isfinite(metric), metric, worst).round(5).astype(np.float32),
        time=seconds.round(5).astype(np.float32),
        meta=np.array(json.dumps({"space": [axis(*item) for item in space.items()]})),
    )
    return len(whole)


def simulated(result: Result, path: Path) -> float:
    """Return the best metric of a simulated search, which pays the real one's prices for starts and steps. It is NaN if nothing was reported.

    The table has the processor time of each step. So the real bill is divided by what a second of processor time has cost.
    """
    from tuner.service.simulation import simulate

    table, bill = load_table(path), result.bill
    usd_per_s = bill["train"] / result.cost_s
    starts_usd = max(0.0, bill["setup"] + bill.get("restore", 0.0) - result.start_usd)
    best = simulate(
        path,
        (sum(bill.values()) - result.start_usd) / usd_per_s / table.full_s,
        workers=WORKERS,
        seed=result.seed,
        startup_steps=starts_usd / usd_per_s / result.trials / table.mean_step_s,
    ).best
    return math.nan if best is None else best


def compare_with_simulated(results: Sequence[Result], path: Path, rows: int) -> None:
    """Print the best metrics of the service's searches, those of the simulated ones, and the difference for the same seeds."""
    for trainings in sorted({result.trainings for result in results}):
        runs = [result for result in results if result.trainings == trainings]
        sign = 1 if module_of(runs[0].trainable).OBJECTIVE["mode"] == "max" else -1
        real = [result.curve[-1][1] for result in runs]
        replayed = [sign * simulated(result, path) for result in runs]
        differences = [mine - theirs for mine, theirs in zip(replayed, real, strict=True)]
        columns = " | ".join(shown(estimate(values)) for values in (real, replayed, differences))
        print(f"| {path.stem} | {rows} | {trainings:g} | {len(runs)} | {columns} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trainables", nargs="+", choices=MODULES, default=list(MODULES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS[:-1])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--trainings", type=float, nargs="+", default=[5, 17, 50], help="budgets")
    parser.add_argument("--usd-per-hour", type=float, default=PRICE, help="price of a worker")
    parser.add_argument("--out", type=Path, default=Path("head_to_head.jsonl"), help="results, one a line")
    parser.add_argument("--logs", type=Path, default=Path("head_to_head_logs"), help="folder of the reports")
    parser.add_argument("--tables", type=Path, help="folder of a recorded table for each trainable")
    parser.add_argument("--report", action="store_true", help="run nothing")
    args = parser.parse_args()
    results = [Result(**json.loads(line)) for line in args.out.read_text().splitlines()] if args.out.exists() else []  # fmt: skip
    if not args.report:
        run_missing(args, results)
    report(results, args.usd_per_hour)
    if args.tables:
        args.tables.mkdir(exist_ok=True)
        print("\n| table | rows | trainings | seeds | real | simulated | difference |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for trainable in args.trainables:
            path = args.tables / f"{trainable}.npz"
            logs = sorted(args.logs.glob(f"{trainable}-*.jsonl"))
            rows = (
                len(load_table(path).metric)
                if path.exists()
                else write_table(module_of(trainable), logs, path)
            )
            runs = [r for r in results if (r.trainable, r.method) == (trainable, "service") and r.curve]
            if rows:
                compare_with_simulated(runs, path, rows)


def run_missing(args: argparse.Namespace, results: list[Result]) -> None:
    """Run the searches that have no result, and append theirs to the file. The methods of a seed run one after the other."""
    from tests.system.serving import Served

    def keep(result: Result) -> None:
        results.append(result)
        with args.out.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        best = result.curve[-1][1] if result.curve else math.nan
        print(
            f"{result.key}: {best:.4g} for {result.cost_s:.1f} s, {result.trials} trials",
            file=sys.stderr,
            flush=True,
        )

    with TemporaryDirectory(prefix="vs-") as root:
        served = Served(Path(root) / "home", prices=f"local={WORKERS * args.usd_per_hour}")
        try:
            if "service" in args.methods:
                served.start()
            for trainable in args.trainables:
                cpu_s, wall_s = measured(trainable, Path(root) / trainable)
                first = Path(root) / f"{trainable}-start"
                first.mkdir()
                service = "service" in args.methods
                start = (
                    start_usd(served, Search(trainable, "service", 0, 0.0, str(first))) if service else 0.0
                )
                done = {result.key for result in results}
                for seed, (method, trainings) in product(range(args.seeds), wanted(args)):
                    if (trainable, method, seed, trainings) in done:
                        continue
                    folder = Path(root) / str(len(results))  # short, because Ray has its sockets in it
                    folder.mkdir()
                    search = Search(trainable, method, seed, MARGIN * trainings * cpu_s, str(folder))
                    search.log.touch()  # a search without any report leaves it empty
                    usd = trainings * wall_s / 3600 * args.usd_per_hour
                    if method == "service":
                        keep(run_service(served, search, trainings, usd, start))
                    else:
                        keep(run_peer(search, trainings))
                    args.logs.mkdir(exist_ok=True)
                    name = f"{trainable}-{method}-{seed}-{trainings:g}.jsonl"
                    (args.logs / name).write_text(search.log.read_text())
        finally:
            if "service" in args.methods:
                served.stop()


def wanted(args: argparse.Namespace) -> list[tuple[str, float]]:
    """Return the methods with their budgets. A peer runs once, to the largest."""
    return [
        (method, trainings)
        for method in args.methods
        for trainings in (args.trainings if method == "service" else [max(args.trainings)])
    ]


def measured(trainable: str, folder: Path, trainings: int = 4) -> tuple[float, float]:
    """Return the processor time and the wall time of a training of a random configuration, in seconds."""
    folder.mkdir()
    search = Search(trainable, "random", 0, 0.0, str(folder))
    processes(search, f"random_trainings(search, {trainings})")
    rows = lines(search.log)
    cpu_s = sum(row["cpu_s"] for row in rows)
    # The first report comes after the imports, which are not training.
    wall_s = rows[-1]["at"] - rows[0]["at"] + rows[0]["cpu_s"]
    print(
        f"{trainable}: a training takes {cpu_s / trainings:.2f} s of processor time, {wall_s / trainings:.2f} s",
        file=sys.stderr,
    )
    return cpu_s / trainings, wall_s / trainings


if __name__ == "__main__":
    main()
