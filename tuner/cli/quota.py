"""`tuner quota`: limits on what a project may spend and run at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from tuner.cli import escape, tables
from tuner.cli.arguments import Json
from tuner.cli.output import Frame, connect, with_problems

if TYPE_CHECKING:
    from tuner.schemas.quota import Quota

quota = typer.Typer(
    no_args_is_help=True, help="Show or set limits on what the project may spend and run at once."
)


@quota.command("show")
@with_problems
def show_quota(as_json: Json = False) -> None:
    """Show the limits of the project and how much of them is used."""
    Frame(as_json).show(connect().quota(), _table)


@quota.command("set")
@with_problems
def set_quota(
    usd: Annotated[float | None, typer.Option(help="Dollars in each period.")] = None,
    gpu_hours: Annotated[float | None, typer.Option(help="GPU-hours in each period.")] = None,
    period: Annotated[
        str | None, typer.Option(help="day, week or month. Without it, the quota is never reset.")
    ] = None,
    timezone: Annotated[
        str, typer.Option(help="Time zone in which periods begin, such as Europe/Berlin.")
    ] = "UTC",
    concurrent_jobs: Annotated[
        int | None, typer.Option(help="Maximum number of running jobs. Other jobs wait.")
    ] = None,
    concurrent_trials: Annotated[
        int | None, typer.Option(help="Maximum number of trials that run at once, over all jobs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Replace the whole quota. Limits that are not given are removed. Only for the operator."""
    body = {
        "usd": usd,
        "gpu_hours": gpu_hours,
        "period": period,
        "timezone": timezone,
        "concurrent_jobs": concurrent_jobs,
        "concurrent_trials": concurrent_trials,
    }
    Frame(as_json).show(connect().put_quota(**body), _table)


def _table(one: Quota) -> RenderableType:
    used, ends = one.used, f", until {one.period_end}" if one.period_end else ""
    table = tables.plain("of", "used", "held", "quota")
    table.add_row("dollars", escape.usd(used.usd), escape.usd(used.held_usd), f"{escape.usd(one.usd)}{ends}")
    hours = (escape.number(used.gpu_hours), escape.number(used.held_gpu_hours))
    table.add_row("GPU-hours", *hours, f"{escape.number(one.gpu_hours)}{ends}")
    table.add_row("jobs at once", str(used.concurrent_jobs), "", escape.number(one.concurrent_jobs))
    table.add_row("trials at once", str(used.concurrent_trials), "", escape.number(one.concurrent_trials))
    return table
