"""`tuner checkpoint`: download stored checkpoints of trials."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tuner.cli import completing
from tuner.cli.arguments import JobId, Json
from tuner.cli.output import Frame, connect, with_problems

if TYPE_CHECKING:
    from tuner.client.downloads import Downloaded

checkpoint = typer.Typer(no_args_is_help=True, help="Download the checkpoints that trials stored.")


@checkpoint.command("get")
@with_problems
def get(
    job: JobId,
    to: Annotated[Path, typer.Option(metavar="DIRECTORY", help="New or empty directory for the files.")],
    trial: Annotated[
        str | None,
        typer.Option(
            help="Trial of the checkpoint. Default: the job's best trial.", autocompletion=completing.trials
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(min=1, help="Step of the checkpoint. Default: the best step that has a checkpoint."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Download a checkpoint and verify its files. Repeat the command to continue an interrupted download."""
    Frame(as_json).show(connect().download_checkpoint(job, trial, to=to, step=step), _line)


def _line(found: Downloaded) -> Text:
    return Text(
        f"{found.trial} at step {found.step}: {found.size_bytes} bytes in {found.directory}", no_wrap=True
    )
