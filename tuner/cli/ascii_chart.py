"""`tuner report`: a text chart of the best metric over money spent, and the estimates for other search methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.cli import tables
from tuner.cli.escape import config, number, plural, usd

if TYPE_CHECKING:
    from tuner.schemas import answers as show

WIDTH, HEIGHT, LABEL = 60, 8, 12  # in characters; LABEL fits the longest number, -1.2345e-123
NAMES = {"random_search": "random search, every trial in full", "stopping_asha": "ASHA that only stops"}


def report(found: show.JobReport) -> RenderableType:
    if found.best is None or found.best_spent_usd is None:
        return Text(f"{usd(found.spent_usd)} spent; no trial has reported {found.metric} yet")
    best, spent = found.best, usd(found.spent_usd)
    return Group(
        Text(f"{usd(found.best_spent_usd)} bought {found.metric} {number(best.metric)}", style="bold"),
        Text(f"{best.trial} at step {best.step}: {config(best.config)}"),
        Text(f"{spent} was spent in all, on {plural(found.trials, 'trial')} that reported"),
        *(Text(line, no_wrap=True) for line in curve(found.best_curve, found.spent_usd)),
        _estimates(found.estimates),
        *(Text(f"{_name(one)}: {one.note}", style="dim") for one in found.estimates),
    )


def curve(points: Sequence[show.SpentPoint], spent_usd: float) -> list[str]:
    """Return a text chart of the best metric so far over dollars spent. Better values are at the top, also when minimizing."""
    whole_usd = max(spent_usd, points[-1].spent_usd)
    held = columns(points, whole_usd)
    first, last = points[0].value, points[-1].value
    levels = [None if value is None else _level(value, first, last) for value in held]
    lines = []
    for row in reversed(range(HEIGHT)):
        name = {0: number(first) if first != last else "", HEIGHT - 1: number(last)}.get(row, "")
        drawn = "".join("•" if level == row else " " for level in levels)
        lines.append(f"{name:>{LABEL}} │{drawn}".rstrip())
    lines.append(f"{'':>{LABEL}} └{'─' * WIDTH}")
    return [*lines, f"{'':>{LABEL + 2}}$0{usd(whole_usd):>{WIDTH - 2}}"]


def columns(points: Sequence[show.SpentPoint], whole_usd: float) -> list[float | None]:
    """Return the best metric so far at the end of each of WIDTH equal parts of `whole_usd`. It is None before the first report."""
    found: list[float | None] = []
    for column in range(1, WIDTH + 1):
        limit = whole_usd * column / WIDTH if column < WIDTH else whole_usd
        found.append(next((one.value for one in reversed(points) if one.spent_usd <= limit), None))
    return found


def _level(value: float, first: float, last: float) -> int:
    span = last - first
    flat = span == 0 or not math.isfinite(span)
    return HEIGHT - 1 if flat else round((value - first) / span * (HEIGHT - 1))


def _estimates(found: Sequence[show.PeerEstimate]) -> Table:
    table = tables.plain("for the same, estimated", "would have spent", "5 to 95 %", "saved")
    for one in found:
        table.add_row(_name(one), *_figures(one))
    return table


def _figures(one: show.PeerEstimate) -> tuple[str, str, str]:
    if one.status == "not_enough_data":
        return "not enough data", "", ""
    low = "never" if one.low_usd is None else usd(one.low_usd)
    high = "never" if one.high_usd is None else usd(one.high_usd)
    if one.usd is None or one.saved_usd is None:
        return "would have missed it", f"{low} to {high}", ""
    sign = "-" if one.saved_usd < 0 else ""
    bias = ", likely more" if one.is_biased_low else ""
    return f"{usd(one.usd)}{bias}", f"{low} to {high}", f"{sign}{usd(abs(one.saved_usd))}"


def _name(one: show.PeerEstimate) -> str:
    return NAMES.get(one.method, one.method)
