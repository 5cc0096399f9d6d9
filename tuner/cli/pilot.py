"""`tuner pilot`: train a few steps of a few configurations to measure step times for plans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import escape, render, watch
from tuner.cli.arguments import Json
from tuner.cli.job_of_code import with_recorded_space
from tuner.cli.job_yaml import read_job
from tuner.cli.output import Output, connect, with_problems

if TYPE_CHECKING:
    from tuner.client import Client, Job


@with_problems
def pilot(
    file: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="Job file; - reads standard input.")],
    usd: Annotated[float | None, typer.Option(help="Maximum cost of the pilot, in dollars.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until the pilot ends.")] = False,
    as_json: Json = False,
) -> None:
    """Train a few steps of a few configurations to measure how long a step takes. `tuner plan` uses the result."""
    client, job = connect(), with_recorded_space(read_job(file))
    pilot_job = run(client, job, usd, quiet=as_json) if wait else client.pilot(job, usd=usd)
    Output(as_json).show(pilot_job, render.job)


def run(client: Client, job: dict[str, Any], usd: float | None, *, quiet: bool) -> Job:
    """Return the pilot of a job after the pilot has ended or is paused. Start one if there is none.

    Progress is shown unless `quiet`.

    Raises:
        typer.Exit: With status 1, if the pilot completed no step, so that it has no step times.
    """
    pilot_job = client.pilot(job, usd=usd)
    if pilot_job.state not in ("succeeded", "paused"):
        with watch.may_leave(pilot_job.id):
            if not quiet:
                typer.echo(f"pilot {pilot_job.id}")
                watch.watch(client, pilot_job.id)
            pilot_job = client.wait(pilot_job.id, progress=False)
    if not pilot_job.progress.steps:
        why = (
            pilot_job.detail
            or f"{pilot_job.stop_reason} before the first step; give it more than {escape.usd(pilot_job.spend.usd)}"
        )
        typer.echo(f"The pilot {pilot_job.id} measured no step\n{why}", err=True)
        raise typer.Exit(1)
    return pilot_job
