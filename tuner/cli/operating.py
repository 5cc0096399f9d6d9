"""`tuner doctor` and `tuner migrate`: what an operator does around a service."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from tuner.cli.frame import Frame, with_problems
from tuner.settings import Settings

if TYPE_CHECKING:
    from tuner.service.doctor import Findings
    from tuner.service.upkeep import Migrated

To = Annotated[
    str | None, typer.Option("--to", help="Go back to this older revision, for an older version of tuner.")
]
Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@with_problems
def migrate(to: To = None, as_json: Json = False) -> None:
    """Bring the database up to date, and end: for where services are started by something that wants this done before."""
    from tuner.service import upkeep  # the parts of a service, which other commands need not wait for

    settings = Settings.from_env()
    done = upkeep.migrate(settings) if to is None else upkeep.downgrade(settings, to)
    Frame(as_json).show(done, _migrated)


@with_problems
def doctor(as_json: Json = False) -> None:
    """Look whether key, database, storage and Ray are fit for jobs, and say what to do; exit status 1 where something is wrong."""
    from tuner.service.doctor import examine

    found = examine(Settings.from_env())
    Frame(as_json).show(found, _findings)
    if not found.ok:
        raise typer.Exit(1)


def _findings(found: "Findings") -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for one in found.findings:
        said = one.seen if one.ok else f"{one.seen}\n{one.mend}"
        table.add_row("OK" if one.ok else "WRONG", one.part, Text(said))
    return table


def _migrated(found: "Migrated") -> str:
    if found.before == found.after:
        return f"the database is up to date, at revision {found.after}"
    return f"the database was {'empty' if found.before is None else f'at revision {found.before}'}, and is at {found.after}"
