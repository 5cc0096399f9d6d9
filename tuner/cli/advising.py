"""`tuner advice`: changes that would have made a job cheaper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.cli import tables
from tuner.cli.arguments import JobId, Json
from tuner.cli.escape import number, usd
from tuner.cli.output import Frame, connect, with_problems

if TYPE_CHECKING:
    from tuner.schemas.advice import Advice, Change, Finding


@with_problems
def advice(
    job: JobId,
    as_json: Json = False,
) -> None:
    """Show what would have made a job cheaper, with the evidence and a way to check that quality does not regress."""
    Frame(as_json).show(connect().advice(job), _shown)


def _shown(found: Advice) -> RenderableType:
    head = f"{usd(found.spent_usd)} spent, {usd(found.measured_usd)} of it measured; prices: {found.prices}, {found.prices_age}"
    parts: list[RenderableType] = [Text(head)]
    if not found.findings:
        parts.append(Text("no change was found that would have saved money"))
    for one in found.findings:
        parts += [Text(""), _finding(one)]
    if found.not_measured:
        table = tables.plain("not measured", "why", "to have it measured")
        for gap in found.not_measured:
            table.add_row(Text(gap.what), Text(gap.why), Text(gap.how))
        parts += [Text(""), table]
    return Group(*parts)


def _finding(one: Finding) -> RenderableType:
    saves = "unknown" if one.saves_usd is None else usd(one.saves_usd)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(
        Text("saves", style="bold"), Text(f"{saves} ({one.confidence} confidence): {one.saves_note}")
    )
    table.add_row(
        "evidence", Text(", ".join(f"{name} {_figure(value, name)}" for name, value in one.evidence.items()))
    )
    for title, change in [("change", one.change), *(("or", other) for other in one.alternatives)]:
        table.add_row(title, Text(_change(change)))
    table.add_row("verify", Text(one.verify))
    return Group(Text(f"{one.title} [{one.kind}]", style="bold"), table)


def _change(one: Change) -> str:
    step = f"{one.setting}: {one.now} → {one.then}" if one.now is not None else f"{one.setting}: {one.then}"
    return f"{step}. {one.how}" if one.how else step


def _figure(value: Any, name: str) -> str:
    if value is None:
        return "unknown"
    if name.endswith("_usd"):
        return usd(value)
    return number(value) if isinstance(value, float) else str(value)
