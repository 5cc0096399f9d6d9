"""A thousand jobs, each under faults of every kind: none spends more than its budget, and no invariant breaks.

Each seed draws its own chances, so that some runs see one kind of fault a lot and others all of them a little.
"""

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulation.test_simulated_jobs import Curves, check_books, spec, terms
from tests.simulation.watched import run_watched
from tuner.domain.job import SamplerName, SchedulerName
from tuner.domain.money import Cost
from tuner.domain.time import NS
from tuner.engine.simulated.traces import Trace
from tuner.engine.simulated.training import Overheads
from tuner.engine.simulated.world import Faults, SimulatedRun

SCHEDULERS: tuple[SchedulerName, ...] = ("auto", "asha", "asha_stopping", "none")
SEEDS, PART = 1000, 50
MODEL_EVERY = 20  # jobs, as the model takes its time


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
    """Up for 20 s on average, down for 5; sometimes a part of the fleet, sometimes all of it."""
    found, at = [], 0
    for count in (rng.randint(0, 4) for _ in range(20)):
        length = 1 + round(rng.expovariate(1 / (20 if count else 5)) * NS)
        found.append((at, at + length, count))
        at += length
    return Trace("drawn", (*found, (at, at + 40 * NS, 4)))


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
        terms(concurrency=workers),
        Curves(),
        overheads=Overheads(resumable=rng.random() < 0.75, save_every_ns=rng.choice((None, 2 * NS))),
        faults=faults_of(rng),
        seed=seed,
        up_times=up_times,
        notice_ns=rng.choice((None, 2 * NS, 10 * NS)),
    )


def check_spent(run: SimulatedRun) -> None:
    check_books(run)
    assert run.journal.tables.account.held == Cost()
    assert run.loop.end is not None
    assert run.loop.end.reason == "budget_usd"


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_no_fault_makes_a_job_spend_more_than_its_budget(first: int) -> None:
    for seed in range(first, first + PART):
        try:
            check_spent(run_watched(job(seed)))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(SEEDS, 10**9), micro_usd=st.integers(1, 1500))
def test_nor_do_other_seeds_with_hardly_any_money(seed: int, micro_usd: int) -> None:
    check_spent(run_watched(job(seed, micro_usd=micro_usd)))


def test_every_kind_of_fault_is_seen() -> None:
    """So that the tests above mean something."""
    seen: Counter[str] = Counter()
    for seed in range(40):
        run = run_watched(job(seed))
        seen.update(
            crashes=run.crashes,
            restarts=run.restarts,
            resent=run.resent,
            repeated=run.repeated,
            jumps=run.clock_jumps,
            preemptions=run.preemptions,
            resumed=sum(attempt > 1 for _, attempt in run.journal.tables.attempts),
        )
    assert len(seen) == 7
    assert min(seen.values()) >= 10
