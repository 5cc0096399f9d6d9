"""`tuner train`: one configuration trained outside of the service."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import completing
from tuner.cli.frame import connect, with_problems
from tuner.cli.words import number

if TYPE_CHECKING:
    from tuner.client import Client
    from tuner.schemas.answers import TrialDetail

Metrics = Mapping[str, Any]


@with_problems
def train(
    what: Annotated[
        str,
        typer.Argument(
            metavar="JOB|MODULE:FUNCTION",
            help="A job, or what is to be trained.",
            show_default=False,
            autocompletion=completing.jobs,
        ),
    ],
    trial: Annotated[
        str | None,
        typer.Option(
            help="Which trial's configuration; the job's best if not given.",
            autocompletion=completing.trials,
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="The configuration as JSON, for MODULE:FUNCTION.", metavar="JSON")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="To this step; to that at which the trial was best if not given."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="Save the last step's checkpoint there.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Each step as a line of JSON; what the code prints goes to standard error."
        ),
    ] = False,
) -> None:
    """Train one configuration on this machine, with the job's code, constants and steps, but no budget, ledger or Ray.
    MODULE:FUNCTION needs no service."""
    if ":" in what:
        if trial is not None:
            raise typer.BadParameter(
                "is a job's: give the job in place of MODULE:FUNCTION", param_hint="--trial"
            )
        entry, values = what, _parsed(config)
    else:
        if config is not None:
            raise typer.BadParameter("goes with MODULE:FUNCTION; a job has its own", param_hint="--config")
        entry, values, steps = _of_job(connect(), what, trial, steps)
    _train(entry, values, steps, save, as_json=as_json)


def command(trainable: str, config: Mapping[str, Any], step: int) -> str:
    """What to type to train it."""
    return f"tuner train {shlex.quote(trainable)} --steps {step} --config {shlex.quote(json.dumps(dict(config)))}"


def _parsed(config: str | None) -> dict[str, Any]:
    try:
        found = json.loads(config or "{}")
    except ValueError as error:
        raise typer.BadParameter(f"is no JSON: {error}", param_hint="--config") from error
    if not isinstance(found, dict):
        raise typer.BadParameter(
            "must be an object, such as '{\"learning_rate\": 0.01}'", param_hint="--config"
        )
    return found


def _of_job(
    client: Client, name: str, trial: str | None, steps: int | None
) -> tuple[str, dict[str, Any], int]:
    job = client.job(name)
    if trial is None:
        best = client.best(name, forecast=False)
        return job.trainable, {**job.constants, **best.config}, steps or best.step
    found = client.trial(name, trial)
    last = _best_step(found, maximise=job.objective["mode"] == "max")
    return job.trainable, {**job.constants, **found.config}, steps or last


def _best_step(trial: TrialDetail, *, maximise: bool) -> int:
    known = [(one.metric, one.step) for one in trial.curve if one.metric is not None]
    if not known:
        raise typer.BadParameter(
            f"{trial.id} has reported nothing yet: say to which step", param_hint="--steps"
        )
    return min(known, key=lambda one: (-one[0] if maximise else one[0], one[1]))[1]


def _train(
    entry: str, config: Mapping[str, Any], steps: int | None, save: Path | None, *, as_json: bool
) -> None:
    from tuner.service import training_alone  # torch and all, which other commands need not wait for

    out = sys.stdout

    def told(step: int, metrics: Metrics) -> None:
        print(
            json.dumps({"step": step, "metrics": metrics}) if as_json else _line(step, metrics),
            file=out,
            flush=True,
        )

    with contextlib.redirect_stdout(sys.stderr if as_json else out):
        done = training_alone.train(entry, config, steps=steps, save_to=save, told=told)
    if steps is not None and done.steps < steps:
        typer.echo(f"{entry} returned after step {done.steps} of {steps}", err=True)
    if save is not None:
        typer.echo(
            f"saved in {done.checkpoint}" if done.checkpoint else f"{entry} saves no checkpoints", err=True
        )


def _line(step: int, metrics: Metrics) -> str:
    shown = "  ".join(
        f"{name} {number(value) if isinstance(value, float) else value}" for name, value in metrics.items()
    )
    return f"step {step}: {shown}"
