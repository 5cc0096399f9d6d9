"""`tuner train`: train one configuration on this machine, without the service."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import arguments
from tuner.cli.escape import harmless, number
from tuner.cli.output import connect
from tuner.domain.command import PROGRAM_ENTRY
from tuner.domain.environment import Environment
from tuner.domain.errors import Invalid
from tuner.domain.job import config_values, program_config
from tuner.domain.objective import SERVING_METRICS, Fidelity

if TYPE_CHECKING:
    from tuner.client import Client, Job
    from tuner.schemas import answers as wire
    from tuner.schemas.answers import TrialDetail
    from tuner.service.training_alone import LocalTraining

Metrics = Mapping[str, Any]


def train(
    what: Annotated[
        str,
        typer.Argument(
            metavar="JOB|MODULE:FUNCTION",
            help="Job id, or the trainable to train.",
            show_default=False,
            autocompletion=arguments.jobs,
        ),
    ],
    trial: Annotated[
        str | None,
        typer.Option(
            help="Trial whose configuration is trained. Default: the job's best trial.",
            autocompletion=arguments.trials,
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="Configuration as JSON, for MODULE:FUNCTION.", metavar="JSON")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Last step to train. Default: the step at which the job's trial was best; for MODULE:FUNCTION, until the function returns.",
        ),
    ] = None,
    total_steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="For MODULE:FUNCTION: total number of steps, for example of a learning-rate schedule, if training stops earlier. "
            "Default: --steps.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of PyTorch and NumPy. Default: as in the trial, or all cores."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of Python, NumPy and PyTorch. Default: as in the trial, or 0."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIRECTORY", help="Save the checkpoint of the last step in this directory."),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="If the job's trainable is a command, run the command without asking for confirmation.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print each step as a line of JSON. Output of the trainable goes to standard error.",
        ),
    ] = False,
) -> None:
    """Train a trial's configuration again on this machine, with its constants, steps, threads and seed, but without a budget. Print which
    libraries and code differ from the trial's. With MODULE:FUNCTION, train that function with --config; this needs no service."""
    teaching: contextlib.AbstractContextManager[dict[str, Any] | None] = contextlib.nullcontext()
    if ":" in what:
        if trial is not None:
            raise typer.BadParameter(
                "needs a job: give a job id instead of MODULE:FUNCTION", param_hint="--trial"
            )
        entry, values, recorded, kind, metric = what, arguments.parsed_config(config), None, None, None
        of_job: dict[str, Any] = {"max_step": total_steps or steps}
    else:
        if config is not None:
            raise typer.BadParameter(
                "can only be used with MODULE:FUNCTION; a job has its own configurations",
                param_hint="--config",
            )
        if total_steps is not None:
            raise typer.BadParameter(
                "can only be used with MODULE:FUNCTION; a job has its own total", param_hint="--total-steps"
            )
        client = connect()
        job = client.job(what)
        kind, metric = job.kind, job.objective["metric"]
        if job.command is not None:
            typer.echo(f"the job's command: {harmless(job.command)}", err=True)
            if not yes:
                typer.confirm(
                    "Run this command on this machine, with your environment?", abort=True, err=True
                )
        entry, values, steps, recorded = _of_job(client, job, trial, steps)
        teaching, of_job = _teacher_of(client, job), {**_fidelity_of(job, steps), **_serving_of(job)}
        if recorded is None:
            typer.echo("the trial's threads and seed were not recorded: its metric may not repeat", err=True)
    known = recorded or Environment(seed=0)
    threads = known.threads if threads is None else threads
    seed = known.seed if seed is None else seed
    from tuner.service import training_alone  # imported late because it is slow

    for difference in training_alone.prepare(entry, recorded, threads=threads, seed=seed):
        typer.echo(harmless(difference), err=True)
    with teaching as teacher:
        training = training_alone.LocalTraining(
            entry=entry,
            config=values,
            steps=steps,
            save_to=save,
            seed=seed,
            kind=kind,
            metric=metric,
            teacher=teacher,
            **of_job,
        )
        _train(training, as_json=as_json)


def command(
    trainable: str,
    config: Mapping[str, Any],
    step: int,
    environment: wire.Environment | None = None,
    *,
    total_steps: int,
) -> str:
    """Return the `tuner train` command that trains a configuration to `step`.

    `environment` is the recorded environment of the trial that had this configuration. Its threads and seed are added to the command.
    `total_steps` is the total that the trainable is given, which may depend on it before `step`.
    """
    line = f"tuner train {shlex.quote(trainable)} --steps {step}"
    if total_steps != step:
        line += f" --total-steps {total_steps}"
    line += f" --config {shlex.quote(json.dumps(dict(config)))}"
    if environment is not None and environment.threads is not None:
        line += f" --threads {environment.threads}"
    if environment is not None and environment.seed:
        line += f" --seed {environment.seed}"
    return line


def _of_job(
    client: Client, job: Job, trial: str | None, steps: int | None
) -> tuple[str, dict[str, Any], int, Environment | None]:
    """Return what training a trial needs: the `module:function` to call, its configuration, the last step, and the recorded environment.

    Without `trial`, use the best trial of the job. Without `steps`, the last step is the one at which the trial was best.

    Raises:
        Invalid: The job's code is in a package, and this machine does not have it.
    """
    from tuner.service import training_alone  # imported late because it is slow

    if job.package is not None and job.command is None and not training_alone.is_found(job.trainable):
        raise Invalid.at(
            "trainable",
            f"the code of {job.id} is in package {job.package}, and {job.trainable} is not found on this machine; change to the "
            "directory that contains it, or call the function in the notebook that submitted it",
        )
    if trial is None:
        best = client.best(job.id, forecast=False)
        answer, last = client.trial(job.id, best.trial), best.step
    else:
        answer = client.trial(job.id, trial)
        last = steps or _best_step(answer, maximise=job.objective["mode"] == "max")
    recorded = None if answer.environment is None else Environment.parse(answer.environment.model_dump())
    entry, values = job.trainable, config_values(answer.config, job.constants, job.kind)
    if job.command is not None:
        entry = PROGRAM_ENTRY
        values = program_config(job.command, job.metrics_pattern, job.fidelity["max"], values)
    return entry, values, steps or last, recorded


def _fidelity_of(job: Job, steps: int) -> dict[str, Any]:
    """Return the fields of `LocalTraining` that a worker gets from the job's fidelity.

    The training may go beyond the job's last step only if the user requests more `steps`.
    """
    fidelity = job.fidelity
    last = fidelity["max"]
    # A job without a scheduler compares no trials, but its proxies change at the rungs of its fidelity.
    ladder = Fidelity(min=fidelity["min"], max=last, reduction_factor=fidelity["reduction_factor"])
    return {
        "max_step": None if last is None else max(last, steps),
        "rungs": job.rungs or ladder.rungs(),
        "proxies": fidelity.get("proxies"),
    }


def _serving_of(job: Job) -> dict[str, Any]:
    """Return the fields of `LocalTraining` about the cost of serving, as a worker gets them."""
    metrics = {entry["metric"] for entry in (*(job.objectives or [job.objective]), *job.constraints)}
    return {
        # A worker gets the price of one node, and the job's price of a trial is that of all its nodes.
        "usd_per_hour": job.price.trial_usd_per_hour / job.resources["nodes"],
        "serving_metrics": [name for name in SERVING_METRICS if name in metrics],
    }


@contextlib.contextmanager
def _teacher_of(client: Client, job: Job) -> Iterator[dict[str, Any] | None]:
    """Download the checkpoint of the job's teacher (the earlier trial whose model the job's trials learn from), and yield its path and its
    configuration. Yield None if the job has no teacher.

    The checkpoint is in a temporary directory, which is removed at the end.
    """
    if job.teacher is None:
        yield None
        return
    source, trial = client.job(job.teacher["job"]), job.teacher["trial"]
    with tempfile.TemporaryDirectory(prefix="tuner-teacher-") as folder:
        client.download_checkpoint(source.id, trial, to=folder, step=job.teacher["step"])
        config = config_values(client.trial(source.id, trial).config, source.constants, source.kind)
        yield {"path": folder, "config": config}


def _best_step(trial: TrialDetail, *, maximise: bool) -> int:
    """Return the step with the best metric that satisfies the job's constraints. If no step does, return the step that comes nearest."""
    sign = -1 if maximise else 1
    known = [
        (point.violation or 0, sign * point.metric, point.step)
        for point in trial.curve
        if point.metric is not None
    ]
    if not known:
        raise typer.BadParameter(
            f"{trial.id} has not reported a metric yet: give the number of steps", param_hint="--steps"
        )
    return min(known)[2]


def _train(training: LocalTraining, *, as_json: bool) -> None:
    """Train, print each step, and say where the checkpoint was saved."""
    from tuner.service import training_alone

    out = sys.stdout

    def show(step: int, metrics: Metrics) -> None:
        print(
            json.dumps({"step": step, "metrics": metrics}) if as_json else _line(step, metrics),
            file=out,
            flush=True,
        )

    with contextlib.redirect_stdout(sys.stderr if as_json else out):
        done = training_alone.train(training, on_report=show)
    entry = training.entry
    name = training.config["command"] if entry == PROGRAM_ENTRY else entry
    if training.steps is not None and done.steps < training.steps:
        typer.echo(f"{name} returned after step {done.steps} of {training.steps}", err=True)
    if training.save_to is not None:
        typer.echo(
            f"saved in {done.checkpoint}" if done.checkpoint else f"{name} saves no checkpoints", err=True
        )


def _line(step: int, metrics: Metrics) -> str:
    shown = "  ".join(
        f"{name} {number(value) if isinstance(value, float) else value}" for name, value in metrics.items()
    )
    return f"step {step}: {shown}"
