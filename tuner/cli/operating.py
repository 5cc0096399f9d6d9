"""`tuner doctor`, `replay`, `migrate`, `backup`, `restore`, `dashboard` and `packages`: commands for operating a service."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner import web
from tuner.cli import arguments, tables
from tuner.cli.arguments import JobId, Json
from tuner.cli.command_group import CommandGroup
from tuner.cli.escape import harmless, moment, plural, usd
from tuner.cli.output import Output, connect
from tuner.domain.errors import Unavailable
from tuner.domain.money import amounts
from tuner.domain.text import did_you_mean
from tuner.settings import Settings

if TYPE_CHECKING:
    from tuner.schemas.answers import Package, Replay, ReplayDifference
    from tuner.service.backup import BackedUp, PausedJob, Restored
    from tuner.service.doctor import Diagnosis
    from tuner.service.maintenance import Migrated


SHOWN = 10


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write. It must not exist.")],
    as_json: Json = False,
) -> None:
    """Back up the database to a single file. Jobs can keep running. Checkpoints are not included; they remain in the storage."""
    from tuner.service import backup as its  # imported late because it is slow

    Output(as_json).show(its.backup(Settings.from_env(), file), _backed_up)


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File that `tuner backup` wrote.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Allow replacing a database that has jobs or shared budgets.")
    ] = False,
    nothing_spent: Annotated[
        bool,
        typer.Option(
            "--nothing-spent",
            help="No job has run since the backup, so subtract nothing from budgets if the replaced database is gone.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Restore the database from a backup while no service runs. Unfinished jobs are paused."""
    from tuner.service import backup as its

    answer = its.restore(Settings.from_env(), file, replace=replace, nothing_spent=nothing_spent)
    Output(as_json).show(answer, _restored)


def _backed_up(answer: BackedUp) -> str:
    return (
        f"{answer.file}: {plural(answer.jobs, 'job')}, {answer.bytes / 1e6:.1f} MB, {answer.kind} at revision {answer.revision}, "
        f"of {answer.taken_at}"
    )


def _restored(answer: Restored) -> str:
    were = "job was restored to its" if answer.jobs == 1 else "jobs were restored to their"
    lines = [f"database: {answer.database}", f"{answer.jobs:,} {were} state at {answer.taken_at}"]
    if answer.revision_before != answer.revision:
        lines.append(f"the database was migrated from revision {answer.revision_before} to {answer.revision}")
    if answer.kept:
        lines.append(f"the damaged database is kept as {answer.kept}")
    lines += _some("these are not in the backup but were in the replaced database", answer.gone)
    if answer.empty_storage:
        lines.append(f"no checkpoint was found in {answer.empty_storage}: is TUNER_STORAGE right?")
    else:
        lines += _some(
            "the storage does not have these checkpoints; trials continue from older ones", answer.missing
        )
    if answer.storage_fault:
        lines.append(f"the storage could not be searched for checkpoints: {answer.storage_fault}")
    lines += _some(
        "these ended jobs may have spent the rest of their budgets after the backup, so the rest is subtracted",
        answer.lowered,
    )
    if answer.paused:
        lines += [
            "",
            "These jobs had not ended and are now paused. Their holds at the time of the backup count as spent:",
        ]
        lines += [_paused(job) for job in answer.paused]
        lines.append(
            "Start the service, then continue a job with `tuner resume JOB` or end it with `tuner cancel JOB`."
        )
    return "\n".join(lines)


def _some(what: str, names: tuple[str, ...]) -> list[str]:
    if not names:
        return []
    more = [f"  … and {len(names) - SHOWN} more; --json lists all"] if len(names) > SHOWN else []
    return [f"{what}:", *(f"  {name}" for name in names[:SHOWN]), *more]


def _paused(paused_job: PausedJob) -> str:
    since = amounts(paused_job.since_usd or None, paused_job.since_gpu_hours or None)
    if paused_job.exact:
        spent = f"spent {since} after the backup"
        spent += "" if since == "nothing" else ", which counts as lost"
    elif since == "nothing":
        spent = "had nothing left of its budget"
    else:
        spent = f"may have spent {since} after the backup, which is deducted from its budget"
    return f"  {paused_job.id}  {paused_job.name}  was {paused_job.state_before}, held {usd(paused_job.settled_usd)}; {spent}"


packages = CommandGroup(
    "packages", help="Manage uploaded packages of trainables, if the operator allows them."
)


@packages.add("push")
def push(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Folder, .py file, .zip or .whl to upload.")],
    name: Annotated[
        str | None, typer.Option(help="Name of the package. Default: the name of the path.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Upload the code of a trainable as a package, and print its id for the field `package` of a job file. Uploading the same files again returns the same package."""
    Output(as_json).show(connect().upload(path, name=name), lambda package: Text(package.id))


@packages.add("list")
def list_packages(as_json: Json = False) -> None:
    """List all packages, newest first."""
    Output(as_json).show_all(list(connect().packages()), _table)


@packages.add("show")
def show_package(
    package: Annotated[str, typer.Argument(metavar="PACKAGE", help="The package's id.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Show one package."""
    Output(as_json).show(connect().package(package), lambda shown_package: _table([shown_package]))


def _table(items: Sequence[Package]) -> RenderableType:
    table = tables.plain("package", "name", "files", "bytes", "uploaded")
    for package in items:
        sizes = (str(package.files), str(package.bytes))
        table.add_row(package.id, package.name, *sizes, moment(package.created_at))
    return table if items else Text("no packages")


To = Annotated[
    str | None, typer.Option("--to", help="Downgrade to this revision, for an older version of tuner.")
]


def migrate(to: To = None, as_json: Json = False) -> None:
    """Upgrade the database schema and exit, for deployments that migrate before they start services."""
    from tuner.service import maintenance  # imported late because it is slow

    settings = Settings.from_env()
    done = maintenance.migrate(settings) if to is None else maintenance.downgrade(settings, to)
    Output(as_json).show(done, _migrated)


def dashboard(
    job: Annotated[
        str,
        typer.Argument(
            metavar="[JOB]",
            help="Job to show. Default: Ray's overview.",
            autocompletion=arguments.jobs,
        ),
    ] = "",
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open a browser, if this machine has one.")
    ] = True,
) -> None:
    """Print the address of Ray's dashboard and open it in a browser."""
    client = connect()
    if not job:
        client.whoami()  # raises an error if the service does not answer or refuses the key
    elif client.job(job).links.ray_dashboard is None:
        raise Unavailable(
            "Ray's dashboard cannot be shown: the Ray cluster is still starting, or this key is not allowed to see the jobs of all projects"
        )
    # On a terminal the printed address contains the key, as the address that `tuner serve` prints does. The browser is started without the
    # key, because other users of this machine can see the arguments of processes. The page asks for the key if the browser has none.
    key = ""
    if sys.stdout.isatty():
        from tuner.client.http import address

        key = address(None, None).headers.get("Authorization", "").removeprefix("Bearer ")
    typer.echo(harmless(web.ray_address(client.url, key, job)))
    has_display = sys.platform in ("darwin", "win32") or any(
        map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))
    )
    if open_browser and not (has_display and webbrowser.open(web.ray_address(client.url, "", job))):
        typer.echo("No browser could be opened here. Open the address above in one.", err=True)


def doctor(as_json: Json = False) -> None:
    """Check the API key, home directory, database, storage and Ray, and say how to fix problems. The exit status is 1 if there is a problem."""
    from tuner.service.doctor import examine

    findings = examine(Settings.from_env())
    Output(as_json).show(findings, _findings)
    if not findings.ok:
        raise typer.Exit(1)


POLICIES = ("scheduler", "sampler")


def replay(
    job: JobId,
    instead: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="NAME=VALUE",
            help="Show where this scheduler or sampler would decide differently from the job's own: scheduler=NAME or sampler=NAME, as in a job file. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a job's decisions again from its recorded events, without training, and show the first that differs from the record.

    The exit status is 1 if a decision differs from the record. With --with, differences do not change the exit status.
    """
    answer = connect().replay(job, **_policies(instead or []))
    Output(as_json).show(answer, _replayed)
    if answer.difference is not None and answer.instead is None:
        raise typer.Exit(1)


def _policies(given: Sequence[str]) -> dict[str, str]:
    answer: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if name not in POLICIES or not equals or not value:
            hint = "" if name in POLICIES else did_you_mean(name, POLICIES)
            problem = f"write it as scheduler=NAME or sampler=NAME, not {text!r}{hint}"
            raise typer.BadParameter(problem, param_hint="--with")
        answer[name] = value
    return answer


def _replayed(answer: Replay) -> RenderableType:
    counts = f"{plural(answer.events, 'event')}, {plural(answer.decisions, 'decision')} and {plural(answer.answers, 'answer')}"
    parts: list[RenderableType] = [Text(f"{counts} of the sampler were replayed")]
    own = f"{answer.policy.scheduler} and {answer.policy.sampler}"
    other = "" if answer.instead is None else f"{answer.instead.scheduler} and {answer.instead.sampler}"
    if answer.difference is None:
        same = (
            f"the other policy ({other}) decides the same"
            if other
            else "replaying the events gives the recorded decisions"
        )
        parts.append(Text(f"no difference: {same}"))
    else:
        parts.append(_difference(answer.difference, own if other else "decided", other or "recorded"))
    if answer.not_checked:
        table = tables.plain("not checked", "why")
        for unchecked in answer.not_checked:
            table.add_row(Text(unchecked.what), Text(unchecked.why))
        parts += [Text(""), table]
    return Group(*parts)


def _difference(difference: ReplayDifference, ours: str, theirs: str) -> Table:
    other = difference.recorded or difference.instead
    assert other is not None
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(
        Text("first difference", style="bold"),
        Text(f"event {difference.event} at {difference.at} [{difference.code}]"),
    )
    table.add_row(Text(ours), Text(difference.decided.summary))
    table.add_row(Text(theirs), Text(other.summary))
    return table


def _findings(answer: Diagnosis) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in answer.findings:
        text = finding.seen if finding.ok else f"{finding.seen}\n{finding.fix}"
        table.add_row("OK" if finding.ok else "WRONG", finding.part, Text(text))
    return table


def _migrated(answer: Migrated) -> str:
    if answer.before == answer.after:
        change = f"the database is up to date, at revision {answer.after}"
    else:
        before = "empty" if answer.before is None else f"at revision {answer.before}"
        change = f"the database was {before}, and is at {answer.after}"
    return f"database: {answer.database}\n{change}"
