"""`python -m benchmarks.search --tables DIR`: compare the regret against money of this project and its peers.

Money is counted in mean full trainings. Peers run once, to the largest budget, and their curve
contains the smaller budgets. Our methods know their budget, so they run once for each. Results are stored in OUT/results.jsonl. A second
call runs only what is missing.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.search import tables
from benchmarks.search.methods import METHODS
from benchmarks.search.plot import plot
from benchmarks.search.report import report
from benchmarks.search.runner import Task, read, run_all


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    add = parser.add_argument
    add("--tables", type=Path, required=True, help="folder of .npz files")
    add("--names", default="*", help="glob of the tables' names")
    add("--seeds", type=int, default=20)
    add("--workers", type=int, nargs="+", default=[4, 16])
    add("--budgets", type=float, nargs="+", default=[5, 10, 20, 50, 100], help="budgets in mean trainings")
    add("--startup", type=float, default=1.0, help="mean steps that starting or resuming a trial takes")
    add(
        "--noise",
        type=float,
        default=0.0,
        help="standard deviation of noise on each value, as a share of best - median",
    )
    add(
        "--methods",
        nargs="+",
        choices=METHODS,
        metavar="METHOD",
        help=f"methods to compare: {', '.join(METHODS)}",
    )
    add("--peers-python", help="interpreter with requirements-peers.txt; without it Syne Tune is left out")
    add("--jobs", type=int, default=2)
    add("--out", type=Path, default=Path("search-results"))
    add("--report", action="store_true", help="report the stored results without running anything")
    return parser.parse_args(argv)


def chosen(args: argparse.Namespace) -> list[str]:
    """Return the methods that can run here, in the order of the command line."""
    available = [name for name, method in METHODS.items() if args.peers_python or not method.peers]
    return [name for name in args.methods or available if name in available]


def tasks(args: argparse.Namespace) -> Iterator[Task]:
    """Yield the tasks by method and then by seed, so that partial results can be compared."""
    names = [path.stem for path in tables.find(args.tables, args.names)]
    for workers in args.workers:
        for method in chosen(args):
            budgets = args.budgets if METHODS[method].ours else [max(args.budgets)]
            for seed in range(args.seeds):
                for name in names:
                    for budget in budgets:
                        yield Task(name, method, workers, seed, budget, args.startup, args.noise)


def main() -> None:
    args = arguments()
    paths = tables.find(args.tables, args.names)
    if not paths:
        sys.exit(f"no tables {args.names}.npz in {args.tables}")
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "results.jsonl"
    if not args.report:
        wanted = list(tasks(args))
        for done, result in enumerate(
            run_all(paths, wanted, file, peers_python=args.peers_python, jobs=args.jobs), 1
        ):
            task = result.task
            print(
                f"{done}: {task.method} {task.table} {task.workers} workers seed {task.seed}", file=sys.stderr
            )
    wanted_methods = args.methods or list(METHODS)
    results = [r for r in read(file) if r.task.method in wanted_methods]
    results = [r for r in results if (r.task.startup, r.task.noise) == (args.startup, args.noise)]
    results = [r for r in results if r.task.table in {path.stem for path in paths}]
    for line in report(results, args.budgets, METHODS):
        print(line)
    print(plot(results, METHODS, args.out))


if __name__ == "__main__":
    main()
