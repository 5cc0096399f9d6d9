"""Optuna objectives, each as it would be written for `study.optimize`."""

import optuna


def objective(trial: optuna.Trial) -> float:
    """Conditional parameters, and a report after each epoch."""
    optimizer = trial.suggest_categorical("optimizer", ["sgd", "adamw"])
    rate = trial.suggest_float("rate", 1e-4, 1.0, log=True)
    momentum = trial.suggest_float("momentum", 0.0, 0.9, step=0.1) if optimizer == "sgd" else 0.5
    widths = [
        trial.suggest_int(f"width_{i}", 8, 64, step=8) for i in range(trial.suggest_int("layers", 1, 3))
    ]
    loss = 1.0
    for epoch in range(6):
        loss *= 1 - rate * momentum / sum(widths)
        trial.set_user_attr("parameters", sum(widths))
        trial.report(loss, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss


def one_value(trial: optuna.Trial) -> float:
    """Older names of suggestions, and no report: the returned value is the only step."""
    x = trial.suggest_uniform("x", -1.0, 1.0) + trial.suggest_discrete_uniform("y", 0.0, 1.0, 0.25)  # type: ignore[deprecated,unused-ignore]
    return float(x) + trial.suggest_loguniform("z", 0.1, 1.0)  # type: ignore[deprecated,unused-ignore]


def with_spot_safe(trial: optuna.Trial) -> float:
    """With `SpotSafe`, a paused trial continues where it stopped. `run.report` takes the place of `trial.report`."""
    import torch

    from tuner.training import SpotSafe

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.suggest_float("rate", 1e-3, 1e-1, log=True))
    loss = torch.tensor(0.0)
    with SpotSafe(model=model, optimizer=optimizer) as run:
        for epoch in run.steps():
            optimizer.zero_grad()
            loss = (model(torch.ones(4, 1)) - 3).square().mean()
            loss.backward()
            optimizer.step()
            run.report(value=loss)
            trial.report(loss.item(), epoch)
    return loss.item()


def prunes_itself(trial: optuna.Trial) -> float:
    trial.report(trial.suggest_float("x", 0.0, 1.0), 0)
    trial.report(7.0, 0)  # ignored, because the step is already reported
    trial.report(0.5, 10)
    raise optuna.TrialPruned


def ignores_pruning(trial: optuna.Trial) -> float:
    for step in range(100):
        trial.report(trial.suggest_float("x", 0.0, 1.0), step)
    return 0.0


def facts(trial: optuna.Trial) -> float:
    """Fail unless the trial is what Optuna's own is."""
    assert isinstance(trial, optuna.trial.BaseTrial)
    choices = [None, True, 1.5, "a"]
    assert trial.suggest_categorical("choice", choices) is True
    assert type(trial.suggest_float("whole", 0, 4)) is float
    assert type(trial.suggest_int("n", 1, 9)) is int
    assert trial.suggest_int("n", 1, 9) == 3
    assert trial.params == {"choice": True, "whole": 2.0, "n": 3}
    assert trial.distributions["n"] == optuna.distributions.IntDistribution(1, 9)
    assert (trial.number, trial.should_prune(), trial.user_attrs) == (0, False, {})
    trial.set_user_attr("seen", [1])
    return 1.0


def several_values(trial: optuna.Trial) -> tuple[float, float]:
    return trial.suggest_float("x", 0.0, 1.0), 2.0


def not_a_number(trial: optuna.Trial) -> str:
    return str(trial.suggest_float("x", 0.0, 1.0))
