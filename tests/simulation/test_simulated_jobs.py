"""Test the real loop on a simulated clock: budgets hold under any fault, and restarts and top-ups change no
decision.
"""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import seeds
from tests.strategies import examples
from tuner.domain.budget import Budget
from tuner.domain.cost import total
from tuner.domain.job import Algorithm, Confirm, JobSpec, SamplerName, SchedulerName
from tuner.domain.money import Cost, Money, Price, Rate
from tuner.domain.objective import Fidelity, Objective
from tuner.domain.space import Config, Float, Int, Space
from tuner.driver.ports import LoopConfig
from tuner.simulator.worker import Overheads
from tuner.simulator.world import Faults, SimulatedRun

SPACE = Space({"lr": Float(1e-4, 1, log=True), "width": Int(8, 64)})
PRICE = Price(100_000)  # $0.10 an hour: 28 micro-dollars a second


class Curves:
    """Steps take 0.6 to 1.5 s, and longer for larger widths. The best learning rate is 0.01. Rates above 0.8
    never learn.
    """

    def step_ns(self, config: Config, step: int) -> int:
        return int((0.5 + int(str(config["width"])) / 64) * 1e9)

    def value(self, config: Config, step: int) -> float:
        rate = float(str(config["lr"]))
        if rate > 0.8:
            return math.nan
        return 1 - abs(math.log10(rate) + 2) / 4 - 0.5 / step


class QuickCurves(Curves):
    """Steps take 60 to 150 ms."""

    def step_ns(self, config: Config, step: int) -> int:
        return super().step_ns(config, step) // 10


class EqualCurves(Curves):
    """Each step takes a second."""

    def step_ns(self, config: Config, step: int) -> int:
        return 10**9


def spec(
    usd: str = "0.02",
    *,
    scheduler: SchedulerName = "asha",
    sampler: SamplerName = "random",
    seed: int = 0,
    **budget: object,
) -> JobSpec:
    limits = Budget(usd=Money.from_usd(usd), **budget)  # type: ignore[arg-type]
    algorithm = Algorithm(scheduler, sampler, seed)
    return JobSpec(
        "a", "m:f", Objective("acc"), SPACE, limits, fidelity=Fidelity("epoch", 1, 27), algorithm=algorithm
    )


def loop_config(concurrency: int = 2, milli_gpus: int = 0) -> LoopConfig:
    return LoopConfig("job_0", Rate(PRICE, milli_gpus), concurrency, 10 * 10**9)


def ended(run: SimulatedRun) -> str | None:
    """Return why the job ended."""
    assert run.loop.end is not None
    return run.loop.end.reason


def check_books(run: SimulatedRun) -> None:
    """Recompute the ledger's invariants from its entries."""
    tables, account = run.journal.tables, run.journal.tables.account
    assert (account.posted + account.held).fits(account.limit)
    assert account.posted.usd >= Money(0)
    assert account.held.usd >= Money(0)
    posted, resolved, held = Cost(), Cost(), Cost()
    for entry in tables.entries.values():
        if entry.entry == "hold":
            held = held + entry.cost
        else:
            resolved = resolved + entry.cost
            posted = posted + entry.cost if entry.entry != "release" else posted
    assert posted == account.posted
    assert held - resolved == account.held
    open_holds = total({str(i): h.cost for i, h in enumerate(run.journal.open_holds())})  # type: ignore[misc]
    assert open_holds == account.held


def outcome(run: SimulatedRun) -> dict[str, object]:
    """Return the decisions that a user sees: trials, how far each came, rungs and the best."""
    state = run.loop.state
    return {
        "trials": [(t.config, t.steps, t.status, t.value) for t in state.trials],
        "rungs": [(rung.step, rung.ranked, sorted(rung.promoted)) for rung in state.rungs],
        "best": (state.leader, state.leader_score),
        "end": run.loop.end,
    }


@pytest.mark.parametrize("seed", seeds.first(1, 4))
def test_slow_sampler_suggests_the_same_outside_of_a_transaction(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = SimulatedRun(spec(seed=seed), loop_config(), Curves(), seed=seed)
    quick.run()
    monkeypatch.setattr("tuner.driver.loop.SLOW_SUGGESTION_NS", -1)
    slow = SimulatedRun(
        spec(seed=seed), loop_config(), Curves(), faults=Faults(driver_restart=0.01), seed=seed
    )
    slow.run()
    assert [trial.config for trial in slow.loop.state.trials[:50]] == [
        trial.config for trial in quick.loop.state.trials[:50]
    ]
    slow = SimulatedRun(spec(seed=seed), loop_config(), Curves(), seed=seed)
    slow.run()
    assert outcome(slow) == outcome(quick)


@pytest.mark.parametrize("concurrency", [1, 2, 4, 16])
def test_binding_budget_is_almost_fully_used(concurrency: int) -> None:
    run = SimulatedRun(spec("0.03"), loop_config(concurrency), Curves())
    run.run()
    assert run.journal.tables.account.posted.usd.micro_usd >= 0.97 * 30_000


def ends_and_spend(concurrency: int) -> tuple[int, int, Money]:
    """Run a job whose function returns after 20 steps. Return how many trials completed, how many were cut, and what was spent."""
    run = SimulatedRun(
        replace(spec("0.01"), fidelity=Fidelity()),
        loop_config(concurrency),
        EqualCurves(),
        overheads=Overheads(resumable=False),
        returns_at=lambda _: 20,
    )
    run.run()
    check_books(run)
    assert run.journal.tables.job[:2] == ("succeeded", "budget_usd")
    ends = Counter(trial.status for trial in run.loop.state.trials)
    return ends["completed"], ends["paused"] + ends["new"], run.journal.tables.account.posted.usd


@pytest.mark.parametrize("concurrency", [1, 2, 4])
def test_job_without_a_last_step_starts_no_trial_that_the_budget_would_cut(
    concurrency: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The money that such trials would waste completes other trials, or is not spent."""
    completed, cut, spent = ends_and_spend(concurrency)
    monkeypatch.setattr("tuner.domain.events.RULES", 6)
    completed_before, cut_before, spent_before = ends_and_spend(concurrency)
    assert cut == 0
    assert cut_before > 0
    assert completed >= completed_before
    assert spent < spent_before


def test_slow_start_of_cold_worker_does_not_leave_budget_unused() -> None:
    """$0.0005 buys 18 s, and the worker warms up for 12 s of them."""
    cold = Overheads(warming_ns=12 * 10**9)
    run = SimulatedRun(spec("0.0005"), loop_config(1), QuickCurves(), overheads=cold)
    run.run()
    assert run.journal.tables.account.posted.usd.micro_usd >= 0.97 * 500


@pytest.mark.parametrize(("starts", "steps"), [(2, 8), (4, 6)])
def test_small_top_up_starts_only_workers_that_it_pays_for(starts: int, steps: int) -> None:
    """The job has four workers, and each of them warms up for 10 s. A top-up pays for some of these starts."""
    run = SimulatedRun(spec("0.004"), loop_config(4), Curves(), overheads=Overheads(warming_ns=10 * 10**9))
    run.run()
    before = run.loop.state.steps
    top_up(run, seconds=starts * 10.2)
    assert run.loop.state.steps - before >= steps
    check_books(run)


def test_top_up_is_used_although_the_first_worker_of_the_job_started_slowly() -> None:
    """That worker warmed up for 100 s. The top-up pays for 60 s."""
    run = SimulatedRun(spec("0.008"), loop_config(1), Curves(), overheads=Overheads(warming_ns=100 * 10**9))
    run.run()
    before = run.loop.state.steps
    run.overheads = Overheads(warming_ns=3 * 10**9)
    top_up(run, seconds=60)
    assert run.loop.state.steps - before > 30
    check_books(run)


def top_up(run: SimulatedRun, *, seconds: float) -> None:
    """Add money for a worker's time to a job that has ended, and run it until it ends again."""
    spent = run.journal.tables.account.posted.usd
    run.top_up(replace(run.budget, usd=spent + PRICE.of(round(seconds * 10**9))))
    run.run()


def test_slow_start_of_a_worker_does_not_end_the_search_before_a_confirmation() -> None:
    """$0.00046 buys 16.6 s. The worker warms up for 10 s of them, and a trial takes less than a second."""
    job = replace(
        spec("0.00046", scheduler="auto"),
        fidelity=Fidelity("epoch", 1, 3),
        confirm=Confirm(candidates=2, seeds=3),
    )
    run = SimulatedRun(job, loop_config(1), QuickCurves(), overheads=Overheads(warming_ns=10 * 10**9))
    run.run()
    assert run.journal.tables.job[:2] == ("succeeded", "confirmed")
    assert run.journal.tables.account.posted.usd.micro_usd >= 0.9 * 460


def test_job_that_spent_its_budget_on_setup_says_how_much_a_trial_needs() -> None:
    slow = Overheads(setup_ns=60 * 10**9)
    run = SimulatedRun(spec("0.0005"), loop_config(1), QuickCurves(), overheads=slow)
    run.run()
    state, reason, detail = run.journal.tables.job
    assert (state, reason) == ("failed", "budget_usd")
    assert detail.startswith(
        "no trial reported the metric 'acc' before the job ended; 100.0 % of the $0.0005"
    )
    assert "went to setup. Starting a trial took" in detail
    assert detail.endswith("submit the job again with a budget of at least $0.001"), (
        "twice what was not enough"
    )
    check_books(run)


def test_gpu_hour_budget_ends_the_job() -> None:
    job = spec("1", gpu_ms=600_000)
    run = SimulatedRun(job, loop_config(2, milli_gpus=500), Curves())
    run.run()
    assert ended(run) == "budget_gpu_hours"
    assert 0.97 * 600_000 <= run.journal.tables.account.posted.gpu_ms <= 600_000


def test_the_wall_clock_ends_a_job_on_time() -> None:
    run = SimulatedRun(spec("1", wall_clock_ns=60 * 10**9), loop_config(), Curves())
    run.run()
    assert ended(run) == "wall_clock"
    assert run.clock.elapsed_ns() <= 60 * 10**9 + 10**9


def test_trial_limit_ends_the_job_after_the_leader_completes() -> None:
    run = SimulatedRun(spec("1", trials=7), loop_config(), Curves())
    run.run()
    state = run.loop.state
    assert len(state.trials) == 7
    assert ended(run) == "trials"
    assert state.leader is not None
    assert state.trials[state.leader].status == "completed"


@examples(15, gate=6)
@given(
    seed=st.integers(0, 10**6),
    scheduler=st.sampled_from(["auto", "asha", "asha_stopping", "none"]),
    tops=st.lists(st.integers(500, 30_000), min_size=1, max_size=4),
)
def test_topped_up_job_ends_like_one_with_full_budget_from_the_start(
    seed: int, scheduler: SchedulerName, tops: list[int]
) -> None:
    def pausing(usd: str) -> JobSpec:
        return spec(usd, scheduler=scheduler, seed=seed, trials=25, on_exhausted="pause")

    whole = SimulatedRun(pausing("1"), loop_config(1), Curves())
    whole.run()
    first = pausing("0.0005")
    run = SimulatedRun(first, loop_config(1), Curves())
    run.run()
    limit = 500
    for more in [*tops, 10**6]:
        if run.loop.end is not None and run.loop.end.reason != "budget_usd":
            break
        limit += more
        run.top_up(replace(first.budget, usd=Money(limit)))
        run.run()
    assert outcome(run) == outcome(whole)


@examples(20, gate=8)
@given(seed=st.integers(0, 10**6), scheduler=st.sampled_from(["auto", "asha", "asha_stopping", "none"]))
def test_restarted_drivers_and_lost_workers_change_no_decision(seed: int, scheduler: SchedulerName) -> None:
    calm = SimulatedRun(spec("1", scheduler=scheduler, seed=seed, trials=12), loop_config(1), Curves())
    calm.run()
    faults = Faults(crash=0.03, repeat=0.2, driver_restart=0.03, clock_jump=0.1, loss=0.1)
    rough = SimulatedRun(
        spec("1", scheduler=scheduler, seed=seed, trials=12),
        loop_config(1),
        Curves(),
        faults=faults,
        seed=seed,
    )
    rough.run()
    assert outcome(rough) == outcome(calm)


def learning(usd: str, seed: int, **budget: object) -> JobSpec:
    """Return a job whose scheduler and sampler are both `auto`."""
    return replace(spec(usd, **budget), algorithm=Algorithm(scheduler="auto", sampler="auto", seed=seed))


@pytest.mark.parametrize("seed", seeds.first(1, 4))
def test_restarts_change_no_decision_of_the_model(seed: int) -> None:
    calm = SimulatedRun(learning("1", seed, trials=40), loop_config(1), Curves())
    calm.run()
    faults = Faults(crash=0.01, repeat=0.2, driver_restart=0.02, clock_jump=0.1, loss=0.1)
    rough = SimulatedRun(learning("1", seed, trials=40), loop_config(1), Curves(), faults=faults, seed=seed)
    rough.run()
    assert rough.restarts > 0
    assert outcome(rough) == outcome(calm)


def test_the_best_trial_reaches_its_last_step_within_the_budget(pytestconfig: pytest.Config) -> None:
    """The best trial completes in all of the first 3 runs, and in at least 95 % of 20 in the full run. No run
    spends more than its budget.
    """
    finished = []
    for seed in range(20 if pytestconfig.option.all else 3):
        run = SimulatedRun(learning("0.01", seed), loop_config(2), Curves(), seed=seed)
        run.run()
        check_books(run)
        state = run.loop.state
        assert state.leader is not None
        finished.append(state.trials[state.leader].steps == 27)
    assert sum(finished) >= 0.95 * len(finished)


def test_budget_too_small_for_a_full_trial_is_still_spent() -> None:
    """A budget that is too small to finish one trial is still used: the rest would not pay for another step."""
    run = SimulatedRun(learning("0.0005", 0), loop_config(2), Curves())
    run.run()
    assert ended(run) == "budget_usd"
    assert Money(500) - run.journal.tables.account.posted.usd < PRICE.of(1_700_000_000)


def test_lost_time_is_billed_as_lost_and_only_kept_steps_as_training() -> None:
    run = SimulatedRun(spec("0.02"), loop_config(2), Curves(), faults=Faults(crash=0.03), seed=1)
    run.run()
    kinds = {
        kind: sum(e.cost.usd.micro_usd for e in run.journal.tables.entries.values() if e.kind == kind)
        for kind in ("setup", "restore", "train", "checkpoint", "lost", "idle")
    }
    assert sum(kinds.values()) == run.journal.tables.account.posted.usd.micro_usd
    assert kinds["lost"] > 0
    kept = sum(
        Curves().step_ns(t.config, step) for t in run.loop.state.trials for step in range(1, t.steps + 1)
    )
    price = PRICE.of(kept).micro_usd
    assert abs(kinds["train"] - price) <= 0.02 * price + 1000


def test_wall_clock_after_a_top_up_includes_the_time_before() -> None:
    run = SimulatedRun(spec("1", scheduler="none", wall_clock_ns=20 * 10**9), loop_config(), Curves())
    run.run()
    assert ended(run) == "wall_clock"
    run.top_up(replace(run.budget, wall_clock_ns=30 * 10**9))
    run.run()
    assert ended(run) == "wall_clock"
    assert 25 * 10**9 < run.clock.elapsed_ns() <= 30 * 10**9
