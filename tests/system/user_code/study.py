"""An objective of an existing Optuna user. It does not depend on the service."""

import optuna


def objective(trial: optuna.Trial) -> float:
    shape = trial.suggest_categorical("shape", ["line", "parabola"])
    x = trial.suggest_float("x", 0.0, 5.0, step=0.25)
    power = trial.suggest_int("power", 2, 4) if shape == "parabola" else 1
    score = 0.0
    for step in range(9):
        score = -float(abs(x - 3) ** power) - 1 / (step + 1)
        trial.report(score, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return score
