"""Test jobs under faults of every kind: no job spends more than its budget, and no invariant is violated.

Each seed draws its own probabilities, so that some runs see one kind of fault often and others see all of them
rarely.
"""

from functools import cache
from itertools import combinations, pairwise
from random import Random

import pytest

from tests import seeds
from tests.simulation.test_simulated_jobs import Curves, check_books, ended, loop_config, spec
from tests.simulation.watched import run_watched
from tuner.domain.job import SamplerName, SchedulerName
from tuner.domain.money import Cost
from tuner.domain.time import NS
from tuner.simulator.traces import Trace
from tuner.simulator.worker import Overheads
from tuner.simulator.world import Faults, SimulatedRun, SpotMachines

HERE = "tests/simulation/test_seeds.py"
SCHEDULERS: tuple[SchedulerName, ...] = ("auto", "asha", "asha_stopping", "none")
SEEDS = range(1000)
MODEL_EVERY = 20  # every 20th job uses the model, which is slow
KEPT_SEEDS: tuple[int, ...] = ()  # Seeds that failed once. Add new ones with what they found.
# The gate's share: every seventh seed, which covers each scheduler and sampler equally often, and seeds that
# add `features` which those lack. They were found by repeatedly adding the seed that covered most of what was
# missing. `test_gate_seeds_cover_all_features_of_all_seeds` compares the share with all seeds in the full run.
ADDED = (6, 81, 128, 209, 212, 344, 354, 379, 480, 604, 625, 816, 845, 887, 977)
GATE_SEEDS = (*SEEDS[::7], *ADDED, *KEPT_SEEDS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seeds.parametrize(metafunc, gate=GATE_SEEDS, every=[*SEEDS, *KEPT_SEEDS])


def faults_of(rng: Random) -> Faults:
    def chance(most: float) -> float:
        return rng.choice((0, rng.uniform(0, most)))

    return Faults(
        crash=chance(0.05),
        repeat=chance(0.5),
        driver_restart=chance(0.05),
        clock_jump=chance(0.1),
        loss=chance(0.3),
    )


def trace_of(rng: Random) -> Trace:
    """Draw a trace: up for 20 s on average and down for 5 s, with a part of the fleet or all of it."""
    segments, at = [], 0
    for count in (rng.randint(0, 4) for _ in range(20)):
        length = 1 + round(rng.expovariate(1 / (20 if count else 5)) * NS)
        segments.append((at, at + length, count))
        at += length
    return Trace("drawn", (*segments, (at, at + 40 * NS, 4)))


def job(seed: int, *, micro_usd: int | None = None) -> SimulatedRun:
    rng = Random(f"thousand/{seed}")
    workers = rng.randint(1, 5)
    preempted = rng.random() < 0.5
    up_times = trace_of(rng).up_times(workers, start_ns=rng.randrange(200 * NS)) if preempted else None
    usd = f"{(micro_usd or rng.randint(300, 6000)) / 1e6:.6f}"
    scheduler = SCHEDULERS[seed % len(SCHEDULERS)]
    sampler: SamplerName = "auto" if seed % MODEL_EVERY == 0 else "random"
    return SimulatedRun(
        spec(usd, scheduler=scheduler, sampler=sampler, seed=seed),
        loop_config(concurrency=workers),
        Curves(),
        overheads=Overheads(resumable=rng.random() < 0.75, save_every_ns=rng.choice((None, 2 * NS))),
        faults=faults_of(rng),
        seed=seed,
        machines=SpotMachines(up_times=up_times, notice_ns=rng.choice((None, 2 * NS, 10 * NS))),
    )


def check_spent(run: SimulatedRun) -> None:
    check_books(run)
    assert run.journal.tables.account.held == Cost()
    assert ended(run) == "budget_usd"


def features(run: SimulatedRun) -> set[tuple[object, ...]]:
    """Return what was seen in a run: its algorithm with each fault, pairs of faults, ends of attempts, and
    which event followed which.
    """
    tables, algorithm = run.journal.tables, (run.spec.algorithm.scheduler, run.spec.algorithm.sampler)
    # A worker with a notice ends the attempt itself, without a reason.
    preempted = [bool(row.reason) for row in tables.attempts.values() if row.end == "preempted"]
    counts = {
        "crash": run.crashes,
        "driver restart": run.restarts,
        "lost message": run.resent,
        "repeated message": run.repeated,
        "clock jump": run.clock_jumps,
        "preemption without notice": sum(preempted),
        "preemption with notice": len(preempted) - sum(preempted),
        "resumed trial": sum(attempt > 1 for _, attempt in tables.attempts),
    }
    faults = [fault for fault, count in counts.items() if count]
    return {
        algorithm,
        *((*algorithm, fault) for fault in faults),
        *((fault, run.overheads.resumable, run.overheads.save_every_ns) for fault in faults),
        *((fault, "often") for fault in faults if counts[fault] >= 10),
        *combinations(faults, 2),
        *((row.end, bool(row.reason), algorithm) for row in tables.attempts.values()),
        *((entry.entry, entry.kind) for entry in tables.entries.values()),
        *pairwise(type(event).__name__ for event in tables.events),
    }


@cache
def seen(seed: int) -> frozenset[tuple[object, ...]]:
    """Run the job of a seed, check it, and return its features."""
    with seeds.reproducible(f"{HERE}::test_no_job_overspends_under_faults", seed):
        run = run_watched(job(seed))
        check_spent(run)
    return frozenset(features(run))


def test_no_job_overspends_under_faults(seed: int) -> None:
    assert seen(seed)


def test_no_job_with_a_tiny_budget_overspends_under_faults(seed: int) -> None:
    """With 1.5 thousandths of a dollar or less, most jobs end within their first attempts."""
    with seeds.reproducible(f"{HERE}::test_no_job_with_a_tiny_budget_overspends_under_faults", seed):
        rng = Random(f"tiny/{seed}")
        check_spent(
            run_watched(job(seed, micro_usd=rng.choice((1, rng.randint(1, 100), rng.randint(1, 1500)))))
        )


def test_gate_seeds_cover_every_fault_under_every_scheduler() -> None:
    share = frozenset().union(*map(seen, GATE_SEEDS))
    faults = ["crash", "driver restart", "lost message", "repeated message", "clock jump", "resumed trial"]
    faults += ["preemption without notice", "preemption with notice"]
    for scheduler, sampler in [(scheduler, "random") for scheduler in SCHEDULERS] + [("auto", "auto")]:
        assert {(scheduler, sampler, fault) for fault in faults} <= share
    assert {(fault, "often") for fault in faults} <= share


@pytest.mark.extended
def test_gate_seeds_cover_all_features_of_all_seeds() -> None:
    """If this fails, add seeds that cover the missing features to `GATE_SEEDS`."""
    missing = {feature: seed for seed in SEEDS for feature in seen(seed)}
    for seed in GATE_SEEDS:
        missing = {feature: other for feature, other in missing.items() if feature not in seen(seed)}
    assert missing == {}
