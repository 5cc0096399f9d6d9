"""`tuner spend`: who spent what."""

from typing import Annotated

import typer
from rich.console import RenderableType
from rich.table import Table

from tuner.cli import render
from tuner.cli.frame import Frame, with_problems
from tuner.client import Client
from tuner.schemas.spend import SpendAnswer, SpendFigures

Json = Annotated[bool, typer.Option("--json", help="Print what REST answers, as JSON.")]


@with_problems
def spend(
    by: Annotated[
        list[str] | None,
        typer.Option(help="tag:KEY, owner, trainable, market, day or job; may be given several times."),
    ] = None,
    since: Annotated[str | None, typer.Option(help="A date, or a time with its offset.")] = None,
    until: Annotated[str | None, typer.Option(help="Likewise; what is spent then no longer counts.")] = None,
    timezone: Annotated[str, typer.Option(help="Of dates and days.")] = "UTC",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a table for spreadsheets.")] = False,
    as_json: Json = False,
) -> None:
    """Who spent what: by project tag, unless --by says otherwise."""
    groups, client = by or ["tag:project"], Client()
    if as_csv:
        typer.echo(client.spend_csv(groups, since=since, until=until, timezone=timezone), nl=False)
        return
    Frame(as_json).show(client.spend(groups, since=since, until=until, timezone=timezone), _spend)


def _spend(found: SpendAnswer) -> RenderableType:
    figures = (
        "spent",
        "GPU-hours",
        "jobs",
        "trials",
        "completed",
        "for each",
        "preempted",
        "retried",
        "lost",
    )
    table = Table(*found.group_by, *figures, box=None, pad_edge=False, header_style="bold")
    for group in found.items:
        table.add_row(*(group.keys[name] or "-" for name in found.group_by), *_cells(group))
    if found.group_by:
        table.add_row("total", *[""] * (len(found.group_by) - 1), *_cells(found.total), style="bold")
    return table


def _cells(one: SpendFigures) -> list[str]:
    counts = (one.jobs, one.trials, one.completed_trials)
    return [
        render.usd(one.usd),
        f"{one.gpu_hours:g}",
        *map(str, counts),
        render.usd(one.usd_per_completed_trial),
        str(one.preemptions),
        str(one.retries),
        render.usd(one.lost_usd),
    ]
