"""`tuner best`, `tuner best-of-all` and `tuner pareto`: the best configurations by training cost, on the job's machines or others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tuner.cli import render
from tuner.cli.arguments import JobId, Json
from tuner.cli.escape import harmless
from tuner.cli.output import Output, connect
from tuner.cli.tables import Format, Style
from tuner.cli.training import command
from tuner.domain.job import config_values

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tuner.client import Client
    from tuner.schemas.best import PricedBest

P = TypeVar("P", bound="PricedBest")

MaxCost = Annotated[
    float | None,
    typer.Option("--max-cost-usd", help="Maximum cost of training the configuration, in dollars."),
]
MaxGpuHours = Annotated[
    float | None, typer.Option("--max-gpu-hours", help="Maximum GPU-hours of training the configuration.")
]
MaxDuration = Annotated[
    str | None,
    typer.Option("--max-duration", help="Maximum duration of training the configuration: 90s, 15m."),
]
Market = Annotated[
    str | None, typer.Option("--market", help="Use the prices of this market: on_demand or spot.")
]
InstanceType = Annotated[
    str | None,
    typer.Option("--instance-type", help="Use the price of this machine type from `tuner prices`."),
]
Region = Annotated[str | None, typer.Option("--region", help="Use the prices of this region.")]


def best(
    job: JobId,
    max_cost_usd: MaxCost = None,
    max_gpu_hours: MaxGpuHours = None,
    max_duration: MaxDuration = None,
    market: Market = None,
    instance_type: InstanceType = None,
    region: Region = None,
    as_json: Json = False,
) -> None:
    """Show the best configuration that can be trained within the limits of the --max-… options, and what a larger limit would gain."""
    client = connect()
    answer = client.best(
        job,
        max_cost_usd=max_cost_usd,
        max_gpu_hours=max_gpu_hours,
        max_duration=max_duration,
        market=market,
        instance_type=instance_type,
        region=region,
    )
    _show(client, job, answer, render.best, as_json=as_json)


def best_of_all(
    trainable: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="Trainable that the jobs tuned.")
    ],
    metric: Annotated[str, typer.Argument(metavar="METRIC", help="Metric that the jobs optimized.")],
    max_cost_usd: MaxCost = None,
    max_gpu_hours: MaxGpuHours = None,
    max_duration: MaxDuration = None,
    market: Market = None,
    instance_type: InstanceType = None,
    region: Region = None,
    as_json: Json = False,
) -> None:
    """Show the best configuration found by any job of a trainable that can be trained within the limits of the --max-… options."""
    client = connect()
    answer = client.best_of_all(
        trainable,
        metric,
        max_cost_usd=max_cost_usd,
        max_gpu_hours=max_gpu_hours,
        max_duration=max_duration,
        market=market,
        instance_type=instance_type,
        region=region,
    )
    _show(client, answer.job, answer, render.best_of_all, as_json=as_json)


def pareto(
    job: JobId,
    market: Market = None,
    instance_type: InstanceType = None,
    region: Region = None,
    style: Format = Style.TABLE,
    as_json: Json = False,
) -> None:
    """List the Pareto front of metric against cost, or of both metrics against cost if the job has two objectives."""
    answer = connect().pareto(job, market=market, instance_type=instance_type, region=region)
    Output(as_json, style).show(answer, render.pareto)


def _show(
    client: Client, name: str, answer: P, shown: Callable[[P, str], RenderableType], *, as_json: bool
) -> None:
    """Show `answer`, which contains the best configuration of the job with the id `name`.

    `shown` renders the answer; its second argument is the name of the metric. Unless JSON is printed, also print the `tuner train` command
    that trains this configuration, or the package that has the job's code.
    """
    if as_json:
        Output(as_json).show(answer, lambda best_answer: shown(best_answer, ""))
        return
    job = client.job(name)
    Output(as_json).show(answer, lambda best_answer: shown(best_answer, job.objective["metric"]))
    # `tuner train` may not find the code of a package: a function from a notebook is in no file.
    if job.package is not None:
        typer.echo(harmless(f"\nthe code of {job.id} is in package {job.package}"))
        return
    # Without a job id, `tuner train` can only call a function with a configuration and a number of steps.
    total_steps = job.fidelity["max"]
    needs_job = job.command is not None or job.kind == "optuna" or job.teacher is not None
    if needs_job or job.fidelity.get("proxies") or total_steps is None:
        line = f"tuner train {job.id} --trial {answer.trial} --steps {answer.step}"
    else:
        environment = client.trial(name, answer.trial).environment
        values = config_values(answer.config, job.constants, job.kind)
        line = command(job.trainable, values, answer.step, environment, total_steps=total_steps)
    typer.echo(harmless(f"\nto train it:\n  {line}"))
