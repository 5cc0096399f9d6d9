"""What `tuner simulate` prints."""

from typing import Any

from tuner.schemas.base import Answer


class Simulation(Answer):
    """`spent`, `budget` and the first of each pair of `best_curve` are in trainings: 1 is what training a random row to its
    last step costs on average."""

    table: str
    best: float | None
    best_config: dict[str, Any] | None
    best_step: int | None
    finished: bool
    normalised_regret: float | None
    best_curve: list[tuple[float, float]]
    spent: float
    budget: float
    spent_usd: float
    budget_usd: float
    overspend_usd: float
    bill_usd: dict[str, float]
    trials: int
    steps: int
    resumes: int
    preemptions: int
    crashes: int
    restarts: int
    stop_reason: str | None
    simulated_seconds: float
    transactions_checked: int
    seed: int
