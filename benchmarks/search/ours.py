"""Run the product itself through `tuner simulate`: the code of a real job with its own workers, clock, ledger and budget."""

from pathlib import Path

from benchmarks.search.tables import Curve
from tuner.domain.job import SamplerName, SchedulerName
from tuner.service.simulation import simulate

# Scheduler and sampler of each method.
ALGORITHMS: dict[str, tuple[SchedulerName, SamplerName]] = {
    "ours": ("auto", "auto"),
    "ours_asha_random": ("asha", "random"),
    "ours_asha_stopping_random": ("asha_stopping", "random"),
    "ours_asha_tpe": ("asha", "tpe"),
}


def run_ours(
    table: Path,
    budget: float,
    workers: int,
    seed: int,
    startup: float,
    scheduler: SchedulerName = "auto",
    sampler: SamplerName = "auto",
) -> tuple[Curve, int, float]:
    """Return (mean trainings paid, best value) at each improvement, the number of trials, and the idle share of the bill."""
    simulation = simulate(
        table,
        budget,
        workers=workers,
        seed=seed,
        scheduler=scheduler,
        sampler=sampler,
        startup_steps=startup,
    )
    if simulation.overspend_usd > 0:
        raise AssertionError(f"{simulation.overspend_usd} dollars were overspent")
    idle = simulation.bill_usd["idle"] / sum(simulation.bill_usd.values())
    # The simulator's curve does not include idle time. Distribute it evenly.
    return [(spent / (1 - idle), value) for spent, value in simulation.best_curve], simulation.trials, idle
