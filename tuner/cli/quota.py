"""`tuner quota`: what the project may spend and have at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from tuner.cli import tables, words
from tuner.cli.arguments import Json
from tuner.cli.frame import Frame, connect, with_problems

if TYPE_CHECKING:
    from tuner.schemas.quota import Quota

quota = typer.Typer(no_args_is_help=True, help="Show or set what the project may spend, and run at once.")


@quota.command("show")
@with_problems
def show_quota(as_json: Json = False) -> None:
    """What the project may spend and have at once, and what of it is used."""
    Frame(as_json).show(connect().quota(), _table)


@quota.command("set")
@with_problems
def set_quota(
    usd: Annotated[float | None, typer.Option(help="Dollars in each period.")] = None,
    gpu_hours: Annotated[float | None, typer.Option(help="GPU-hours in each period.")] = None,
    period: Annotated[
        str | None, typer.Option(help="day, week or month; without, it never begins anew.")
    ] = None,
    timezone: Annotated[str, typer.Option(help="Whose calendar it goes by.")] = "UTC",
    concurrent_jobs: Annotated[int | None, typer.Option(help="Jobs at work at once; others wait.")] = None,
    concurrent_trials: Annotated[
        int | None, typer.Option(help="Trials that jobs at work may run at once, in all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Set all of the quota anew: what is not given is not limited. For who runs the service."""
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
    table.add_row("dollars", words.usd(used.usd), words.usd(used.held_usd), f"{words.usd(one.usd)}{ends}")
    hours = (words.number(used.gpu_hours), words.number(used.held_gpu_hours))
    table.add_row("GPU-hours", *hours, f"{words.number(one.gpu_hours)}{ends}")
    table.add_row("jobs at once", str(used.concurrent_jobs), "", words.number(one.concurrent_jobs))
    table.add_row("trials at once", str(used.concurrent_trials), "", words.number(one.concurrent_trials))
    return table
