"""`python -m benchmarks.decisions`: the cost of decisions and suggestions.

Three measurements run one after another: all decisions of ASHA jobs over 27 steps with 16 trials at once, the slowest decision, and the
memory of the state; whole simulated jobs over the recorded table of `benchmarks/data`, including the ledger; and the time that the model of
the sampler `auto` takes for a forecast after each rung and for a proposal, after it has learned from the given number of trials.
"""

import gc
import time
import tracemalloc
from collections import deque
from pathlib import Path
from random import Random

from tuner.domain import commands as do
from tuner.domain import events as ev
from tuner.domain.budget import Budget
from tuner.domain.ids import trial_number
from tuner.domain.job import Algorithm, JobSpec
from tuner.domain.money import ZERO, Money, Price, Rate
from tuner.domain.objective import Fidelity, Objective
from tuner.domain.space import Float, Space
from tuner.domain.time import Instant
from tuner.simulator.table_file import load_table
from tuner.simulator.table_run import table_run
from tuner.tuning.decide import decide
from tuner.tuning.samplers.model import ModelSampler
from tuner.tuning.state import State

TABLE = Path(__file__).parent / "data" / "lcbench_adult_300.npz"
AT = Instant(0)
STEPS = 27
MEASURED = 100


class Job:
    """A job whose workers answer at once, each with the next step of its trial, in turn."""

    def __init__(self, trials: int, *, concurrency: int = 16) -> None:
        spec = JobSpec(
            "decisions",
            "m:f",
            Objective("metric"),
            Space({"x": Float(0, 1)}),
            Budget(usd=Money(10**9), trials=trials),
            fidelity=Fidelity("step", 1, STEPS),
            algorithm=Algorithm("asha", "random"),
        )
        self.state = State.fresh(spec, concurrency=concurrency, rate=Rate(Price(3_600_000)))
        self.took_ns: list[int] = []
        self._rng = Random(0)
        self._quality: dict[str, float] = {}
        self._at: dict[str, int] = {}
        self._running: deque[str] = deque()
        self._handle(ev.Launched(AT, rules=ev.RULES))
        self._handle(ev.ControlRequested(AT, "resume"))

    def run(self) -> "Job":
        while self._running:
            trial = self._running.popleft()
            step = self._at[trial] = self._at[trial] + 1
            self._running.append(trial)
            self._handle(ev.Reported(AT, trial, step, self._quality[trial] - 1 / step, ZERO))
        return self

    def _handle(self, first: ev.Event) -> None:
        waiting = deque([first])
        while waiting:
            event = waiting.popleft()
            began = time.perf_counter_ns()
            self.state, orders = decide(self.state, event)
            self.took_ns.append(time.perf_counter_ns() - began)
            for order in orders:
                waiting.extend(self._carry_out(order))

    def _carry_out(self, order: do.Command) -> list[ev.Event]:
        match order:
            case do.Suggest(trial):
                self._quality[trial] = self._rng.random()
                self._at[trial] = 0
                return [ev.Suggested(AT, trial, {"x": self._quality[trial]})]
            case do.Begin(trial):
                self._running.append(trial)
            case do.Pause(trial):
                self._running.remove(trial)
                return [ev.Paused(AT, trial, self._at[trial])]
            case do.Finish(trial):
                self._running.remove(trial)
                return [ev.Completed(AT, trial)]
            case do.Stop(trial):
                self._running.remove(trial)
                return [ev.Stopped(AT, trial)]
            case _:
                pass
        return []


def decisions(trials: int) -> None:
    gc.collect()
    began = time.perf_counter()
    job = Job(trials).run()
    seconds = time.perf_counter() - began
    took = sorted(job.took_ns)
    completed = sum(trial.status == "completed" for trial in job.state.trials)
    assert trial_number(job.state.trials[-1].id) == trials - 1
    print(
        f"{trials:>6} trials ({completed} to the end): {len(took)} decisions in {seconds:.2f} s, "
        f"{len(took) / seconds:,.0f} a second; median {took[len(took) // 2] / 1000:.0f} µs, "
        f"p99 {took[len(took) * 99 // 100] / 1000:.0f} µs, slowest {took[-1] / 1000:.0f} µs"
    )


def memory(trials: int) -> None:
    gc.collect()
    tracemalloc.start()
    state = Job(trials).run().state
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{trials:>6} trials: {kept / 1024:,.0f} KiB, {kept / len(state.trials):,.0f} bytes a trial")


def whole_jobs() -> None:
    table = load_table(TABLE)
    began, worked, trials, events = time.perf_counter(), time.process_time(), 0, 0
    for seed in range(1000):
        run = table_run(table, budget_trainings=25, algorithm=Algorithm("asha", "random", seed))
        run.run()
        trials += len(run.loop.state.trials)
        events += len(run.journal.tables.events)
        if trials >= 1000:
            break
    seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    print(
        f"{trials:>6} trials, {events} events, {seed + 1} jobs: {seconds:.2f} s ({cpu:.2f} s of CPU), "
        f"{cpu / trials * 1000:.2f} ms of CPU a trial"
    )


def suggestions(trials: int) -> None:
    """Print the processor time of forecasts and proposals of the model over eight parameters.

    A quarter of the trials reaches each next rung. The model is out of date at every question.
    """
    steps = (4, 16, 51)
    sampler = ModelSampler(Space({f"x{n}": Float(0, 1) for n in range(8)}), 0, steps)
    rng, took = Random(0), {"forecast": list[int](), "proposal": list[int]()}
    for number in range(trials + MEASURED):
        config = None
        if number >= trials:
            for name, ask in (
                ("forecast", sampler.forecast),
                ("proposal", lambda n=number: sampler.suggest(n)),
            ):
                began = time.process_time_ns()
                answer = ask()
                took[name].append(time.process_time_ns() - began)
            config = answer if isinstance(answer, dict) else None
        config = config or {f"x{n}": rng.random() for n in range(8)}
        sampler.adopt(number, config)
        height = 1 - sum((float(str(value)) - 0.3) ** 2 for value in config.values())
        for rung, step in enumerate(steps):
            if number % 4**rung == 0:
                sampler.tell(number, step, height - 1 / step, step * 10**9, at_rung=True)
    for name, ns in took.items():
        ns.sort()
        print(
            f"{trials:>6} trials: a {name} {ns[len(ns) // 2] / 1e6:.1f} ms (median of {len(ns)}), p95 "
            f"{ns[len(ns) * 95 // 100] / 1e6:.1f} ms, slowest {ns[-1] / 1e6:.1f} ms"
        )


def main() -> None:
    print("decisions alone")
    for trials in (1000, 10_000):
        decisions(trials)
    print("memory of the state")
    for trials in (1000, 2000, 5000, 10_000):
        memory(trials)
    print("simulated jobs: decisions, ledger and journal in memory, workers, random search over a table")
    whole_jobs()
    print("the model")
    for trials in (100, 1000, 10_000):
        suggestions(trials)


if __name__ == "__main__":
    main()
