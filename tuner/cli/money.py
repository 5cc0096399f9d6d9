"""`tuner budgets`, `quota`, `spend` and `topup`: the limits on spend, and the spend itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from tuner.cli import escape, render, tables
from tuner.cli.arguments import JobId, Json
from tuner.cli.command_group import CommandGroup
from tuner.cli.output import Output, connect
from tuner.cli.tables import Format, Style

if TYPE_CHECKING:
    from rich.table import Table

    from tuner.client import ApiError, Client, Job
    from tuner.schemas.budgets import ClusterCost, Quota, SharedBudgetAnswer, SpendAnswer, SpendFigures


Name = Annotated[str, typer.Argument(metavar="NAME", help="The budget's name.", show_default=False)]
PeriodUsd = Annotated[float | None, typer.Option("--usd", help="Dollars in each period.")]
PeriodGpuHours = Annotated[float | None, typer.Option("--gpu-hours", help="GPU-hours in each period.")]
PeriodTimezone = Annotated[
    str, typer.Option("--timezone", help="Time zone in which periods begin, such as Europe/Berlin.")
]
budgets = CommandGroup("budgets", help="Manage shared budgets over all jobs with certain tags.")


@budgets.add("list")
def list_budgets(as_json: Json = False) -> None:
    """List all shared budgets with their spend, holds and limits, and when each is expected to run out."""
    Output(as_json).show(connect().budgets(), lambda answer: _budgets_table(answer.items))


@budgets.add("show")
def show_budget(name: Name, as_json: Json = False) -> None:
    """Show one shared budget with its alerts and webhook deliveries."""
    Output(as_json).show(connect().budget(name), _budget)


@budgets.add("set")
def set_budget(
    name: Name,
    usd: PeriodUsd = None,
    gpu_hours: PeriodGpuHours = None,
    match: Annotated[
        list[str] | None,
        typer.Option(
            help="Count only jobs with this tag, as key:value. If repeated, count only jobs with all of these tags. Default: all jobs of the project."
        ),
    ] = None,
    period: Annotated[
        str | None, typer.Option(help="day, week or month. Without it, the budget is never reset.")
    ] = None,
    timezone: PeriodTimezone = "UTC",
    parent: Annotated[str | None, typer.Option(help="Name of the budget that contains this one.")] = None,
    alert: Annotated[
        list[str] | None,
        typer.Option(
            help="Call a webhook when this share of the budget is spent, as 0.8=https://…. Can be repeated."
        ),
    ] = None,
    new_secret: Annotated[
        bool, typer.Option(help="Create a new secret for signing the budget's webhooks.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create or replace a shared budget. Options that are not given are reset to their defaults."""
    body: dict[str, Any] = {
        "usd": usd,
        "gpu_hours": gpu_hours,
        "match": dict(_pair(match_text, ":", "--match", "key:value") for match_text in match or ()),
        "period": period,
        "timezone": timezone,
        "parent": parent,
        "alerts": [_alert(text) for text in alert or ()],
        "new_secret": new_secret,
    }
    Output(as_json).show(connect().put_budget(name, **body), _budget)


@budgets.add("remove")
def remove_budget(name: Name) -> None:
    """Remove a shared budget. Jobs that were paused because it was used up are resumed."""
    connect().remove_budget(name)


def _alert(text: str) -> dict[str, Any]:
    share, url = _pair(text, "=", "--alert", "0.8=https://example.com/hook")
    try:
        return {"at": float(share), "url": url}
    except ValueError as error:
        raise typer.BadParameter(f"{share!r} is not a share such as 0.8", param_hint="--alert") from error


def _pair(text: str, mark: str, option: str, example: str) -> tuple[str, str]:
    first, separator, second = text.partition(mark)
    if not separator or not first:
        raise typer.BadParameter(
            f"has no {mark!r}, or no text before it; write it as {example}", param_hint=option
        )
    return first, second


def _budgets_table(items: Sequence[SharedBudgetAnswer]) -> RenderableType:
    columns = ("spent", "held", "of", "GPU-hours", "of", "period", "ends", "runs out", "jobs waiting")
    table = tables.plain("budget", *columns)
    for budget in items:
        spend, period_end, runs_out = budget.spend, budget.period_end, budget.forecast.runs_out_at
        money = (escape.usd(spend.usd), escape.usd(spend.held_usd), escape.usd(budget.usd))
        hours = (escape.amount(spend.gpu_hours), escape.amount(budget.gpu_hours))
        when = (budget.period or "-", escape.moment(period_end), escape.moment(runs_out))
        table.add_row(budget.name, *money, *hours, *when, str(len(budget.waiting_jobs)))
    return table if items else Text("no budgets")


def _budget(budget: SharedBudgetAnswer) -> RenderableType:
    lines: list[RenderableType] = [_budgets_table([budget])]
    if budget.match:
        lines.append(Text("jobs with " + ", ".join(f"{key}:{value}" for key, value in budget.match.items())))
    if budget.parent:
        lines.append(Text(f"under {budget.parent}"))
    lines.extend(Text(f"{job} waits for this budget") for job in budget.waiting_jobs)
    lines.extend(Text(f"at {alert.at:.0%} to {alert.url}") for alert in budget.alerts)
    lines.extend(
        Text(
            f"{delivery.created_at} {delivery.url} {delivery.state} after {escape.plural(delivery.tries, 'try', 'tries')}: {delivery.answer}"
        )
        for delivery in budget.deliveries
    )
    if budget.webhook_secret:
        lines.append(Text(f"webhooks are signed with {budget.webhook_secret}, which is shown only now"))
    return Group(*lines)


quota = CommandGroup(
    "quota", help="Show or set the project's limits on spend and on concurrent jobs and trials."
)


@quota.add("show")
def show_quota(as_json: Json = False) -> None:
    """Show the limits of the project and how much of them is used."""
    Output(as_json).show(connect().quota(), _quota_table)


@quota.add("set")
def set_quota(
    usd: PeriodUsd = None,
    gpu_hours: PeriodGpuHours = None,
    period: Annotated[
        str | None, typer.Option(help="day, week or month. Without it, the quota is never reset.")
    ] = None,
    timezone: PeriodTimezone = "UTC",
    concurrent_jobs: Annotated[
        int | None, typer.Option(help="Maximum number of running jobs. Other jobs wait.")
    ] = None,
    concurrent_trials: Annotated[
        int | None, typer.Option(help="Maximum number of trials that run at once, over all jobs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Replace all limits of the project's quota. Limits that are not given are removed. Only for the operator."""
    body = {
        "usd": usd,
        "gpu_hours": gpu_hours,
        "period": period,
        "timezone": timezone,
        "concurrent_jobs": concurrent_jobs,
        "concurrent_trials": concurrent_trials,
    }
    Output(as_json).show(connect().put_quota(**body), _quota_table)


def _quota_table(quota: Quota) -> RenderableType:
    used, ends = quota.used, f", until {quota.period_end}" if quota.period_end else ""
    table = tables.plain("of", "used", "held", "quota")
    table.add_row(
        "dollars", escape.usd(used.usd), escape.usd(used.held_usd), f"{escape.usd(quota.usd)}{ends}"
    )
    hours = (escape.amount(used.gpu_hours), escape.amount(used.held_gpu_hours))
    table.add_row("GPU-hours", *hours, f"{escape.amount(quota.gpu_hours)}{ends}")
    table.add_row("jobs at once", str(used.concurrent_jobs), "", escape.amount(quota.concurrent_jobs))
    table.add_row("trials at once", str(used.concurrent_trials), "", escape.amount(quota.concurrent_trials))
    return table


def spend(
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="Group by tag:KEY, owner, trainable, market, day or job. Can be repeated. Default: tag:project."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Only spend from this time on: a date, or a time with a UTC offset, such as 2026-01-31T08:00:00+01:00."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="Only spend before this time: a date, or a time with a UTC offset, such as 2026-01-31T08:00:00+01:00."
        ),
    ] = None,
    timezone: Annotated[
        str, typer.Option(help="Time zone of dates and days, such as Europe/Berlin.")
    ] = "UTC",
    as_csv: Annotated[bool, typer.Option("--csv", help="The same as --format csv.")] = False,
    style: Format = Style.TABLE,
    as_json: Json = False,
) -> None:
    """Show spend, grouped by the tag `project` or by the keys given with --by."""
    groups, client = by or ["tag:project"], connect()
    if as_csv and (as_json or style not in (Style.TABLE, Style.CSV)):
        raise typer.BadParameter("give only one of --csv, --json and --format", param_hint="--csv")
    if as_csv or (style is Style.CSV and not as_json):
        typer.echo(client.spend_csv(groups, since=since, until=until, timezone=timezone), nl=False)
        return
    answer = client.spend(groups, since=since, until=until, timezone=timezone)
    Output(as_json, style).show(answer, _with_idle)


def _spend(answer: SpendAnswer) -> Table:
    table = tables.plain(*answer.group_by, *FIGURES)
    for group in answer.items:
        table.add_row(*(group.keys[name] or "-" for name in answer.group_by), *_cells(group))
    if answer.group_by:
        table.add_row("total", *[""] * (len(answer.group_by) - 1), *_cells(answer.total), style="bold")
    return table


FIGURES: dict[str, Callable[[SpendFigures], object]] = {
    "spent": lambda spend: escape.usd(spend.usd),
    "GPU-hours": lambda spend: escape.amount(spend.gpu_hours),
    "jobs": lambda spend: spend.jobs,
    "trials": lambda spend: spend.trials,
    "completed": lambda spend: spend.completed_trials,
    "per completed": lambda spend: escape.usd(spend.usd_per_completed_trial),
    "preempted": lambda spend: spend.preemptions,
    "retried": lambda spend: spend.retries,
    "lost": lambda spend: escape.usd(spend.lost_usd),
    "storage": lambda spend: escape.usd(spend.storage_usd),
}


def _cells(spend: SpendFigures) -> list[str]:
    return [str(cell(spend)) for cell in FIGURES.values()]


def _with_idle(answer: SpendAnswer) -> RenderableType:
    """Return a table of the spend with lines below it for the storage, the transfers and the idle machines, which are part of no job's bill."""
    cluster, total = answer.cluster, answer.total
    lines = [Text(_stored(total))] if total.storage_gb_months else []
    lines += [Text(_moved(total))] if total.read_bytes or total.written_bytes else []
    lines += [Text(_downloaded(total))] if total.data_read_bytes else []
    if cluster is None:
        return Group(_spend(answer), *lines)
    by_kind = [_machines(cluster)] if cluster.kinds else []
    return Group(_spend(answer), *lines, Text(_idle(answer, cluster)), *by_kind)


def _moved(total: SpendFigures) -> str:
    cost = _transfer(total.transfer_usd)
    return f"checkpoints: {total.read_bytes} bytes read, {total.written_bytes} written{cost}"


def _downloaded(total: SpendFigures) -> str:
    return f"datasets: {total.data_read_bytes} bytes read{_transfer(total.data_transfer_usd)}"


def _transfer(cost: float | None) -> str:
    return "" if cost is None else f", {escape.usd(cost)} for transfer between regions"


def _stored(total: SpendFigures) -> str:
    cost = "at an unknown price" if total.storage_usd is None else f"for {escape.usd(total.storage_usd)}"
    return f"storage: {total.storage_gb_months:g} GB-months {cost}, not counted in bills and budgets"


def _idle(answer: SpendAnswer, cluster: ClusterCost) -> str:
    if answer.cluster_idle_usd is None:
        text = "idle machines: their cost is not known"
    else:
        idle, whole = escape.usd(answer.cluster_idle_usd), escape.usd(cluster.usd)
        text = f"idle machines: {idle} of the {whole} that workers cost, not counted in bills"
    if cluster.unpriced_node_hours:
        text += f"; {escape.amount(cluster.unpriced_node_hours)} node-hours have no known price"
    if cluster.unseen_hours:
        text += f"; the cluster was not observed for {escape.amount(cluster.unseen_hours)} h"
    is_older = answer.since is None or answer.since < cluster.known_since
    return f"{text}; counted since {cluster.known_since}" if is_older else text


def _machines(cluster: ClusterCost) -> Table:
    return tables.rows(
        cluster.kinds,
        {
            "machine": lambda kind: kind.instance_type or "-",
            "market": lambda kind: kind.market,
            "hours": lambda kind: escape.amount(kind.node_hours),
            "idle hours": lambda kind: escape.amount(kind.idle_hours),
            "cost": lambda kind: escape.usd(kind.usd),
            "cost idle": lambda kind: escape.usd(kind.idle_usd),
        },
    )


def topup(
    job: JobId,
    usd: Annotated[float | None, typer.Option(help="Dollars to add.")] = None,
    gpu_hours: Annotated[float | None, typer.Option(help="GPU-hours to add.")] = None,
    as_json: Json = False,
) -> None:
    """Add to a job's budget. If the job ended because its budget was used up, resume the job.

    A warning says if the job may spend the rest of its budget on the start of its workers, before the first step.
    """
    if usd is None and gpu_hours is None:
        raise typer.BadParameter("give --usd or --gpu-hours")
    from tuner.client import ApiError
    from tuner.client.changes import not_resumed, raised, wants_more

    client = connect()
    before = client.job(job)
    try:
        change = raised(before.budget, usd=usd, gpu_hours=gpu_hours)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    try:
        after = client.patch(job, if_match=before.revision, budget=change)
    except ApiError as error:
        if error.status != 412 and not error.in_doubt:
            raise
        typer.echo(_refused(client, before, change, error), err=True)
        raise typer.Exit(1) from error
    if wants_more(after):
        try:
            after = client.resume(job)
        except ApiError as error:
            raise not_resumed(before, after, error) from error
    Output(as_json).show(after, _topped_up)


def _topped_up(job: Job) -> RenderableType:
    shown = render.job(job)
    if job.state != "succeeded":
        return shown
    ended, resume = f"The job ended with `{job.stop_reason}`", f"`tuner resume {job.id}` continues it."
    match job.stop_reason:
        case "trials" | "wall_clock":
            limit = f"`budget.{job.stop_reason}`"
            more = f"{ended}: raise {limit} with PATCH /v1/jobs/{job.id}, and {resume}"
        case "space_exhausted":
            more = f"{ended}, so more money does not continue it."
        case _:
            more = f"{ended} and was not resumed: {resume}"
    return Group(shown, Text(more))


def _refused(client: Client, before: Job, change: dict[str, float], error: ApiError) -> str:
    """Return the error message for a top-up that was refused or whose answer was lost. It contains the budget's current limits if they can
    be read.
    """
    from tuner.client import ApiError
    from tuner.client.changes import limits_text

    asked, had = limits_text(change), limits_text(before.budget)
    try:
        now = client.job(before.id)
    except ApiError:
        return (
            f"{error.title}\nWhether the budget was changed from {had} to {asked} is unknown: "
            f"check with `tuner job {before.id}` before you try again\n{error.detail}"
        )
    if now.revision == before.revision:
        return f"{error.title}\nNothing was added; the budget is still {had}. Try again\n{error.detail}"
    has = limits_text(now.budget)
    if error.in_doubt:
        return (
            f"{error.title}\nThe budget was {had} and is now {has}. An answer was lost; it is unknown whether this includes your amount: "
            "add only what is missing"
        )
    return (
        f"{error.title}\nAnother user changed the job: its budget was {had} and is now {has}. "
        "Your amount was not added. Try again to add it to the new budget"
    )
