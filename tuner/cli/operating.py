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
    """Upgrade the database schema and exit, for deployments that do so before services start."""
    from tuner.service import upkeep  # the parts of a service, which other commands need not wait for

    settings = Settings.from_env()
    done = upkeep.migrate(settings) if to is None else upkeep.downgrade(settings, to)
    Frame(as_json).show(done, _migrated)


@with_problems
def doctor(as_json: Json = False) -> None:
    """Check key, home, database, storage and Ray, and say how to fix what is wrong. The exit status is 1 if something is."""
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
