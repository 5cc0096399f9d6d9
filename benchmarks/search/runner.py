"""Run methods on tables in parallel processes. Each result is a line of a file, and existing results are not computed again."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Any, Self

from threadpoolctl import threadpool_limits

from benchmarks.search.arena import Arena, Problem, spent
from benchmarks.search.methods import METHODS
from benchmarks.search.tables import Curve, Table, regrets_of, with_noise


@dataclass(frozen=True)
class Task:
    """One run, to `budget` mean trainings."""

    table: str
    method: str
    workers: int
    seed: int
    budget: float
    startup: float = 1.0
    noise: float = 0.0


@dataclass(frozen=True)
class Result:
    """The result of a task."""

    task: Task
    curve: Curve  #: Mean trainings paid and normalised regret at each improvement.
    trials: int
    idle_share: float
    seconds: float  #: How long the computation took.

    def line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, line: str) -> Self:
        record = json.loads(line)
        curve = [(float(spent), float(regret)) for spent, regret in record["curve"]]
        return cls(**{**record, "task": Task(**record["task"]), "curve": curve})


def compete(table: Table, task: Task) -> Result:
    """Run a peer in the arena."""
    began = time.perf_counter()
    create = METHODS[task.method].make
    assert create is not None, f"{task.method} runs in its own simulator"
    policy = create(
        Problem(table.dims, table.steps, task.workers, task.seed, money=task.budget * table.steps)
    )
    run = Arena(table, policy, budget=task.budget, workers=task.workers, startup=task.startup).run()
    idle = run.idle_s / (run.idle_s + run.busy_s)
    seconds = time.perf_counter() - began
    return Result(task, regrets_of(table, spent(table, run, task.workers)), run.trials, idle, seconds)


def ours(path: Path, table: Table, task: Task) -> Result:
    """Run the product on the file `path`, and measure its regret with `table`."""
    from benchmarks.search.ours import ALGORITHMS, run_ours

    began = time.perf_counter()
    curve, trials, idle = run_ours(
        path, task.budget, task.workers, task.seed, task.startup, *ALGORITHMS[task.method]
    )
    return Result(task, regrets_of(table, curve), trials, idle, time.perf_counter() - began)


class Peer:
    """The same benchmark in another interpreter, which reads tasks from standard input and writes results to standard output."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, "-W", "ignore", "-m", "benchmarks.search.runner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        )

    def compete(self, table: Path, task: Task) -> Result:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps([str(table), asdict(task)]) + "\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            raise RuntimeError(f"the peers' interpreter ended in the middle of {task}")
        return Result.of(answer)


def serve(tasks: IO[str], results: IO[str]) -> None:
    """Run the tasks that a `Peer` sends."""
    for line in tasks:
        path, task = json.loads(line)
        print(compete(Table.read(Path(path)), Task(**task)).line(), file=results, flush=True)


_table = cache(Table.read)
_peer = cache(Peer)


def run_one(path: Path, arrays: Path, task: Task, peers_python: str | None) -> Result:
    """Run a task. `path` is the table as the product reads it, and `arrays` the same table for all other methods."""
    method = METHODS[task.method]
    if method.ours:
        return ours(path, _table(arrays), task)
    if not method.peers:
        return compete(_table(arrays), task)
    assert peers_python is not None, f"{task.method} needs the peers' interpreter"
    return _peer(peers_python).compete(arrays, task)


def read(file: Path) -> list[Result]:
    return [Result.of(line) for line in file.read_text().splitlines()] if file.exists() else []


def run_all(
    paths: Iterable[Path], tasks: Iterable[Task], file: Path, *, peers_python: str | None, jobs: int
) -> Iterator[Result]:
    """Run the tasks that the file lacks. Append each result to the file and yield it."""
    existing = {result.task for result in read(file)}
    missing = [task for task in tasks if task not in existing]
    needed = {task.table for task in missing}
    originals = {path.stem: path for path in paths if path.stem in needed}
    with (
        tempfile.TemporaryDirectory(prefix="search-") as folder,
        ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_one_thread) as pool,
        file.open("a") as lines,
    ):
        levels = {task.noise for task in missing}
        by_noise = {noise: _written(originals, noise, Path(folder) / str(noise)) for noise in levels}
        for future in as_completed(
            pool.submit(run_one, *by_noise[task.noise][task.table], task, peers_python) for task in missing
        ):
            result = future.result()
            print(result.line(), file=lines, flush=True)
            yield result


def _written(originals: Mapping[str, Path], noise: float, folder: Path) -> dict[str, tuple[Path, Path]]:
    """Write the tables with this noise. Return, by name, the file for the product and the one for all other methods."""
    (folder / "product").mkdir(parents=True)
    files = dict[str, tuple[Path, Path]]()
    for name, path in originals.items():
        if noise:
            noisy, table = with_noise(path, noise, folder / "product")
            files[name] = noisy, table.write(folder)
        else:
            files[name] = path, Table.load(path).write(folder)
    return files


def _one_thread() -> None:
    """Use one thread per process, because there are many small runs."""
    threadpool_limits(1)


def main() -> None:
    """Serve tasks of `Peer`. Output of libraries is redirected to standard error, because standard output is for results."""
    results: IO[Any] = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, results)


if __name__ == "__main__":
    main()
