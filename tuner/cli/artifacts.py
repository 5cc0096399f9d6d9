"""`tuner checkpoint`, `artifacts` and `storage`: the stored files of trials, and their deletion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from tuner.cli import arguments, escape, tables
from tuner.cli.arguments import JobId, Json, TrialId
from tuner.cli.command_group import CommandGroup
from tuner.cli.output import Output, connect

if TYPE_CHECKING:
    from tuner.client import Client
    from tuner.client.downloads import Downloaded
    from tuner.schemas.answers import ArtifactList, DeletedArtifacts, StoredFiles, StoredJob


checkpoint = CommandGroup("checkpoint", help="Download the checkpoints that trials stored.")


@checkpoint.add("get")
def get(
    job: JobId,
    to: Annotated[Path, typer.Option(metavar="DIRECTORY", help="New or empty directory for the files.")],
    trial: Annotated[
        str | None,
        typer.Option(
            help="Trial of the checkpoint. Default: the job's best trial.", autocompletion=arguments.trials
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(min=1, help="Step of the checkpoint. Default: the best step that has a checkpoint."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Download a checkpoint and verify its files. The download continues after a broken connection, but not in a later command."""
    Output(as_json).show(connect().download_checkpoint(job, trial, to=to, step=step), _line)


def _line(answer: Downloaded) -> Text:
    return Text(
        f"{answer.trial} at step {answer.step}: {answer.size_bytes} bytes in {answer.directory}", no_wrap=True
    )


def artifacts(
    job: JobId,
    trial: TrialId,
    to: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="Download the files into this directory.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the files that a trial reported with its metrics, or download them."""
    client = connect()
    answer = client.artifacts(job, trial) if to is None else client.download_artifacts(job, trial, to=to)
    Output(as_json).show(answer, _artifacts)


def _artifacts(answer: ArtifactList) -> RenderableType:
    table = tables.plain("file", "step", "bytes", "stored at")
    for file in answer.items:
        table.add_row(Text(file.name), str(file.step), str(file.bytes), escape.moment(file.at))
    return table if answer.items else Text("no artifacts")


storage = CommandGroup("storage", help="Show and delete the files that jobs have in the storage.")


@storage.add("ls")
def list_storage(as_json: Json = False) -> None:
    """List the jobs that have stored files, largest first, with the cost of storing the files for a month."""
    Output(as_json).show(connect().storage(), _storage)


@storage.add("gc")
def collect(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the jobs whose files would be deleted.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete the files of ended jobs that their retention policies do not keep. The service itself deletes such files a few
    minutes after they become due, and tries again if the storage fails."""
    client = connect()
    due = [files for files in client.storage().items if files.due_trials and files.needed_by is None]
    if dry_run:
        Output(as_json).show_all(due, _due)
        return
    done: list[DeletedArtifacts] = []
    try:
        is_complete = _delete(client, due, done, as_json=as_json)
    finally:
        if as_json:  # also if the service does not answer any more
            Output(as_json).show_all(done, lambda _: "")
    if not is_complete:
        raise typer.Exit(1)
    if not due and not as_json:
        typer.echo(NOTHING_DUE)


NOTHING_DUE = "no ended job has files to delete"


def _delete(client: Client, due: Sequence[StoredJob], done: list[DeletedArtifacts], *, as_json: bool) -> bool:
    """Delete files that are due, and append each deletion to `done`. Return False if the service refused one with 409.

    A job may be needed again since the files were listed. The files of the other jobs are deleted nevertheless.
    """
    from tuner.client import ApiError

    is_complete = True
    for files in due:
        try:
            deleted = client.delete_artifacts(files.job, retain=str(files.keeps))
        except ApiError as error:
            if error.status != 409:
                raise
            typer.echo(escape.harmless(f"{files.job}: {error.title}: {error.detail}"), err=True)
            is_complete = False
            continue
        done.append(deleted)
        if not as_json:
            typer.echo(
                f"{deleted.job}: deleted the files of {escape.plural(deleted.trials, 'trial')}, {deleted.checkpoint_bytes} bytes of checkpoints"
            )
    return is_complete


def _due(due: Sequence[StoredJob]) -> RenderableType:
    lines = []
    for files in due:
        kept = "nothing" if files.keeps == "none" else f"the files of {files.keeps}"
        trials = escape.plural(files.due_trials, "trial")
        lines.append(
            f"{files.job} has {files.bytes} bytes and keeps {kept}; the files of {trials} are due for deletion"
        )
    return Text("\n".join(lines) if lines else NOTHING_DUE)


def _storage(answer: StoredFiles) -> RenderableType:
    table = tables.rows(
        answer.items,
        {
            "job": lambda files: files.job,
            "name": lambda files: files.name,
            "state": lambda files: files.state,
            "bytes": lambda files: files.bytes,
            "a month": lambda files: escape.usd(files.usd_per_month),
            "keeps": lambda files: files.keeps or "all",
            "next deletion": lambda files: escape.moment(files.next_deletion),
            "needed": lambda files: files.needed_by or "",
        },
    )
    table.add_row("total", "", "", str(answer.bytes), escape.usd(answer.usd_per_month), style="bold")
    note = "the cost of the storage is not known: set TUNER_STORAGE_USD_PER_GB_MONTH"
    return Group(table, Text(note)) if answer.usd_per_gb_month is None else table
