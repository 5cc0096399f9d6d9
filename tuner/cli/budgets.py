"""`tuner budgets`: shared budgets over several jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from tuner.cli import escape, tables
from tuner.cli.arguments import Json
from tuner.cli.output import Frame, connect, with_problems

if TYPE_CHECKING:
    from tuner.schemas.budgets import BudgetAbove

Name = Annotated[str, typer.Argument(metavar="NAME", help="The budget's name.", show_default=False)]
budgets = typer.Typer(no_args_is_help=True, help="Manage shared budgets over all jobs with certain tags.")


@budgets.command("list")
@with_problems
def list_budgets(as_json: Json = False) -> None:
    """List all shared budgets with their spend, holds and limits, and when each is expected to run out."""
    Frame(as_json).show(connect().budgets(), lambda found: _table(found.items))


@budgets.command("show")
@with_problems
def show_budget(name: Name, as_json: Json = False) -> None:
    """Show one shared budget with its alerts and webhook deliveries."""
    Frame(as_json).show(connect().budget(name), _budget)


@budgets.command("set")
@with_problems
def set_budget(
    name: Name,
    usd: Annotated[float | None, typer.Option(help="Dollars in each period.")] = None,
    gpu_hours: Annotated[float | None, typer.Option(help="GPU-hours in each period.")] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(help="Count only jobs with this tag, as key:value. Can be repeated."),
    ] = None,
    period: Annotated[
        str | None, typer.Option(help="day, week or month. Without it, the budget is never reset.")
    ] = None,
    timezone: Annotated[
        str, typer.Option(help="Time zone in which periods begin, such as Europe/Berlin.")
    ] = "UTC",
    parent: Annotated[str | None, typer.Option(help="Name of the budget that contains this one.")] = None,
    alert: Annotated[
        list[str] | None,
        typer.Option(
            help="Call a webhook when this share of the budget is spent, as 0.8=https://…. Can be repeated."
        ),
    ] = None,
    new_secret: Annotated[bool, typer.Option(help="Create a new secret for signing its webhooks.")] = False,
    as_json: Json = False,
) -> None:
    """Create or replace a shared budget. Options that are not given are reset to their defaults."""
    body: dict[str, Any] = {
        "usd": usd,
        "gpu_hours": gpu_hours,
        "match": dict(_pair(one, ":", "--match", "key:value") for one in match or ()),
        "period": period,
        "timezone": timezone,
        "parent": parent,
        "alerts": [_alert(one) for one in alert or ()],
        "new_secret": new_secret,
    }
    Frame(as_json).show(connect().put_budget(name, **body), _budget)


@budgets.command("remove")
@with_problems
def remove_budget(name: Name) -> None:
    """Remove a shared budget. Jobs that waited for it continue."""
    connect().remove_budget(name)


def _alert(text: str) -> dict[str, Any]:
    share, url = _pair(text, "=", "--alert", "0.8=https://example.com/hook")
    try:
        return {"at": float(share), "url": url}
    except ValueError as error:
        raise typer.BadParameter(f"{share!r} is not a share such as 0.8", param_hint="--alert") from error


def _pair(text: str, mark: str, option: str, example: str) -> tuple[str, str]:
    first, found, second = text.partition(mark)
    if not found or not first:
        raise typer.BadParameter(f"write it as {example}", param_hint=option)
    return first, second


def _table(found: Sequence[BudgetAbove]) -> RenderableType:
    columns = (
        "budget",
        "spent",
        "held",
        "of",
        "GPU-hours",
        "of",
        "period",
        "ends",
        "runs out",
        "jobs waiting",
    )
    table = tables.plain(*columns)
    for one in found:
        spend = one.spend
        hours = (f"{spend.gpu_hours:g}", escape.number(one.gpu_hours))
        when = (one.period or "-", _when(one.period_end), _when(one.forecast.runs_out_at))
        money = (escape.usd(spend.usd), escape.usd(spend.held_usd), escape.usd(one.usd))
        table.add_row(one.name, *money, *hours, *when, str(len(one.waiting_jobs)))
    return table if found else Text("no budgets")


def _budget(one: BudgetAbove) -> RenderableType:
    lines: list[RenderableType] = [_table([one])]
    if one.match:
        lines.append(Text("jobs with " + ", ".join(f"{key}:{value}" for key, value in one.match.items())))
    if one.parent:
        lines.append(Text(f"under {one.parent}"))
    lines.extend(Text(f"{job} waits for it") for job in one.waiting_jobs)
    lines.extend(Text(f"at {alert.at:.0%} to {alert.url}") for alert in one.alerts)
    lines.extend(
        Text(
            f"{delivery.created_at} {delivery.url} {delivery.state} after {escape.plural(delivery.tries, 'try', 'tries')}: {delivery.answer}"
        )
        for delivery in one.deliveries
    )
    if one.webhook_secret:
        lines.append(Text(f"webhooks are signed with {one.webhook_secret}, which is shown only now"))
    return Group(*lines)


def _when(at: str | None) -> str:
    return "-" if at is None else f"{at[:16]}Z".replace("T", " ")
