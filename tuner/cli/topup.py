"""`tuner topup`: add to the budget of a job exactly once, even if the connection fails or another user changes the job meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import escape, render
from tuner.cli.arguments import JobId, Json
from tuner.cli.output import Frame, connect, with_problems

if TYPE_CHECKING:
    from tuner.client import ApiError, Client, Job


@with_problems
def topup(
    job: JobId,
    usd: Annotated[float | None, typer.Option(help="Dollars to add.")] = None,
    gpu_hours: Annotated[float | None, typer.Option(help="GPU-hours to add.")] = None,
    as_json: Json = False,
) -> None:
    """Add to a job's budget, and resume the job if the budget had ended it."""
    if usd is None and gpu_hours is None:
        raise typer.BadParameter("give --usd or --gpu-hours")
    for option, more in (("--usd", usd), ("--gpu-hours", gpu_hours)):
        if more is not None and not more > 0:
            raise typer.BadParameter("what is added must be more than 0", param_hint=option)
    from tuner.client import ApiError
    from tuner.client.changes import raised, wants_more

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
        after = client.resume(job)
    Frame(as_json).show(after, render.job)


def _refused(client: Client, before: Job, change: dict[str, float], error: ApiError) -> str:
    """Return a text about the budget's present state, after a change of it was refused or the answer to the change was lost."""
    asked, had = _limits(change), _limits(before.budget)
    from tuner.client import ApiError

    try:
        now = client.job(before.id)
    except ApiError:
        return (
            f"{error.title}\nWhether the budget was changed from {had} to {asked} is unknown: "
            f"check with `tuner job {before.id}` before you try again\n{error.detail}"
        )
    if now.revision == before.revision:
        return f"{error.title}\nNothing was added; the budget is still {had}. Try again\n{error.detail}"
    has = _limits(now.budget)
    if error.in_doubt:
        return (
            f"{error.title}\nThe budget was {had} and is now {has}. An answer was lost; it is unknown whether this includes your amount: "
            "add only what is missing"
        )
    return (
        f"{error.title}\nAnother user changed the job: its budget was {had} and is now {has}. "
        "Your amount was not added. Try again to add it to the new budget"
    )


def _limits(budget: dict[str, Any]) -> str:
    found = [] if budget.get("usd") is None else [escape.usd(budget["usd"])]
    if budget.get("gpu_hours") is not None:
        found.append(f"{budget['gpu_hours']:g} GPU-hours")
    return " and ".join(found)
