"""`tuner doctor`, `tuner migrate` and `tuner dashboard`: commands for operating a service."""

import os
import sys
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from tuner import web
from tuner.cli import completing
from tuner.cli.escape import harmless
from tuner.cli.output import Frame, connect, with_problems
from tuner.domain.errors import Unavailable
from tuner.settings import Settings

if TYPE_CHECKING:
    from tuner.service.doctor import Findings
    from tuner.service.upkeep import Migrated

To = Annotated[
    str | None, typer.Option("--to", help="Downgrade to this revision, for an older version of tuner.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@with_problems
def migrate(to: To = None, as_json: Json = False) -> None:
    """Upgrade the database schema and exit, for deployments that migrate before they start services."""
    from tuner.service import upkeep  # imported late because it is slow

    settings = Settings.from_env()
    done = upkeep.migrate(settings) if to is None else upkeep.downgrade(settings, to)
    Frame(as_json).show(done, _migrated)


@with_problems
def dashboard(
    job: Annotated[
        str,
        typer.Argument(
            metavar="[JOB]",
            help="Show this job. Without one, Ray's overview is shown.",
            autocompletion=completing.jobs,
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
            "the Ray cluster is still starting, or this key may not see the jobs of all projects"
        )
    # On a terminal the printed address contains the key, as the address that `tuner serve` prints does. The browser is started without the
    # key, because other users of this machine can see the arguments of processes. The page asks for the key if the browser has none.
    key = _key() if sys.stdout.isatty() else ""
    typer.echo(harmless(web.ray_address(client.url, key, job)))
    if open_browser and not (_has_display() and webbrowser.open(web.ray_address(client.url, "", job))):
        typer.echo("No browser could be opened here. Open the address above in one.", err=True)


def _key() -> str:
    from tuner.client.http import address

    return address(None, None).headers.get("Authorization", "").removeprefix("Bearer ")


def _has_display() -> bool:
    return sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


@with_problems
def doctor(as_json: Json = False) -> None:
    """Check the key, home, database, storage and Ray, and say how to fix problems. The exit status is 1 if there is a problem."""
    from tuner.service.doctor import examine

    found = examine(Settings.from_env())
    Frame(as_json).show(found, _findings)
    if not found.ok:
        raise typer.Exit(1)


def _findings(found: "Findings") -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for one in found.findings:
        said = one.seen if one.ok else f"{one.seen}\n{one.fix}"
        table.add_row("OK" if one.ok else "WRONG", one.part, Text(said))
    return table


def _migrated(found: "Migrated") -> str:
    if found.before == found.after:
        return f"the database is up to date, at revision {found.after}"
    return f"the database was {'empty' if found.before is None else f'at revision {found.before}'}, and is at {found.after}"
