"""`tuner audit`: the log of changes and the users who made them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from tuner.cli import escape, tables
from tuner.cli.arguments import Json
from tuner.cli.output import Frame, connect, with_problems
from tuner.cli.style import Format, Style

if TYPE_CHECKING:
    from tuner.schemas.audit import AuditEntry


@with_problems
def audit(
    user: Annotated[str | None, typer.Option(help="Only changes by this user.")] = None,
    action: Annotated[
        str | None, typer.Option(help="Only this action, such as job.pause, budget.put or key.revoke.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Only changes of this job id, or of the object with this name.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only changes from this time on: a date in UTC, or a time with an offset."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(help="Only changes before this time: a date in UTC, or a time with an offset."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of changes to list.")] = 50,
    style: Format = Style.TABLE,
    as_json: Json = False,
) -> None:
    """List who changed what in the project, newest first."""
    chosen = {"user": user, "action": action, "target": target, "since": since, "until": until}
    Frame(as_json, style).show_all(list(connect().audit(**chosen, limit=limit)), _table)


def _table(found: Sequence[AuditEntry]) -> RenderableType:
    table = tables.plain("when", "who", "what", "of", "before", "after")
    for one in found:
        who = f"{one.user} ({one.key})" if one.key else one.user
        facts = (_facts(one.before), _facts(one.after))
        table.add_row(f"{one.at[:19]}Z".replace("T", " "), who, one.action, one.target, *facts)
    return table if found else Text("no changes")


def _facts(facts: dict[str, Any] | None) -> str:
    parts = (
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in (facts or {}).items()
    )
    return escape.harmless("  ".join(parts)) or "-"
