"""`tuner spend`: spend by tag, owner and other groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from tuner.cli import escape, tables
from tuner.cli.arguments import Json
from tuner.cli.output import Frame, connect, with_problems
from tuner.cli.style import Format, Style

if TYPE_CHECKING:
    from rich.table import Table

    from tuner.schemas.spend import ClusterCost, SpendAnswer, SpendFigures


@with_problems
def spend(
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="Group by tag:KEY, owner, trainable, market, day or job. Can be repeated. Default: tag:project."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only spend from this time on: a date, or a time with an offset.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Only spend before this time: a date, or a time with an offset.")
    ] = None,
    timezone: Annotated[
        str, typer.Option(help="Time zone of dates and days, such as Europe/Berlin.")
    ] = "UTC",
    as_csv: Annotated[bool, typer.Option("--csv", help="The same as --format csv.")] = False,
    style: Format = Style.TABLE,
    as_json: Json = False,
) -> None:
    """Show spend by project tag, or grouped as --by says."""
    groups, client = by or ["tag:project"], connect()
    if as_csv or (style is Style.CSV and not as_json):
        typer.echo(client.spend_csv(groups, since=since, until=until, timezone=timezone), nl=False)
        return
    found = client.spend(groups, since=since, until=until, timezone=timezone)
    Frame(as_json, style).show(found, _with_idle)


def _spend(found: SpendAnswer) -> Table:
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
    table = tables.plain(*found.group_by, *figures)
    for group in found.items:
        table.add_row(*(group.keys[name] or "-" for name in found.group_by), *_cells(group))
    if found.group_by:
        table.add_row("total", *[""] * (len(found.group_by) - 1), *_cells(found.total), style="bold")
    return table


def _with_idle(found: SpendAnswer) -> RenderableType:
    """Return a table of spend and, below it, the cost of idle machines, which no job's bill contains."""
    cluster = found.cluster
    if cluster is None:
        return _spend(found)
    by_kind = [_machines(cluster)] if cluster.kinds else []
    return Group(_spend(found), Text(_idle(found, cluster)), *by_kind)


def _idle(found: SpendAnswer, cluster: ClusterCost) -> str:
    if found.cluster_idle_usd is None:
        said = "idle machines: it is not known what they cost"
    else:
        idle, whole = escape.usd(found.cluster_idle_usd), escape.usd(cluster.usd)
        said = f"idle machines: {idle} of the {whole} that workers cost, in no bill"
    if cluster.unpriced_node_hours:
        said += f"; {cluster.unpriced_node_hours:g} node-hours have no known price"
    if cluster.unseen_hours:
        said += f"; the cluster was not observed for {cluster.unseen_hours:g} h"
    is_older = found.since is None or found.since < cluster.known_since
    return f"{said}; counted since {cluster.known_since}" if is_older else said


def _machines(cluster: ClusterCost) -> Table:
    table = tables.plain("machine", "market", "hours", "idle hours", "cost", "cost idle")
    for one in cluster.kinds:
        hours = f"{one.node_hours:g}", f"{one.idle_hours:g}"
        table.add_row(
            one.instance_type or "-", one.market, *hours, escape.usd(one.usd), escape.usd(one.idle_usd)
        )
    return table


def _cells(one: SpendFigures) -> list[str]:
    counts = (one.jobs, one.trials, one.completed_trials)
    return [
        escape.usd(one.usd),
        f"{one.gpu_hours:g}",
        *map(str, counts),
        escape.usd(one.usd_per_completed_trial),
        str(one.preemptions),
        str(one.retries),
        escape.usd(one.lost_usd),
    ]
