"""`tuner migrate`: what an operator does around a service."""

from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.frame import Frame, with_problems
from tuner.settings import Settings

if TYPE_CHECKING:
    from tuner.service.upkeep import Migrated

Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@with_problems
def migrate(as_json: Json = False) -> None:
    """Bring the database up to date, and end: for where services are started by something that wants this done before."""
    from tuner.service import upkeep  # the parts of a service, which other commands need not wait for

    Frame(as_json).show(upkeep.migrate(Settings.from_env()), _migrated)


def _migrated(found: "Migrated") -> str:
    if found.before == found.after:
        return f"the database is up to date, at revision {found.after}"
    return f"the database was {'empty' if found.before is None else f'at revision {found.before}'}, and is at {found.after}"
