"""`tuner curves`: one line per trial with its learning curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from tuner.cli import tables
from tuner.cli.arguments import JobId, Json
from tuner.cli.escape import number, usd
from tuner.cli.output import Frame, connect, with_problems

if TYPE_CHECKING:
    from tuner.schemas.curves import Curves

WIDTH = 30
BARS = "▁▂▃▄▅▆▇█"


@with_problems
def curves(
    job: JobId,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Reported metric to plot. Default: the metric of the objective.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Plot the learning curves of all trials, with promotions and preemptions."""
    Frame(as_json).show(connect().curves(job, metric=metric), _shown)


def _shown(found: Curves) -> RenderableType:
    values = [one for trial in found.trials for one in trial.metric if one is not None]
    low, high = min(values, default=0.0), max(values, default=0.0)
    curve = f"curve of {found.metric}"
    table = tables.plain("trial", "state", "steps", "best", "paid", "promoted at", "preempted at", curve)
    for one in found.trials:
        table.add_row(
            one.id,
            one.state,
            str(one.steps[-1]) if one.steps else "0",
            number(one.best_metric),
            usd(one.total_usd),
            _steps(one.promotions_at),
            _steps(one.preemptions_at),
            spark(one.metric, low, high),
        )
    if not found.trials:
        return Text("no trials")
    return Group(table, Text(f"Reported metrics: {', '.join(found.metrics)}"))


def spark(values: Sequence[float | None], low: float, high: float) -> str:
    """Return a curve as a text of bars between `low` and `high`.

    Of a curve longer than `WIDTH`, evenly spaced points are shown. A missing value is a space.

    >>> spark([0, None, 0.5, 1], 0, 1)
    '▁ ▅█'
    """
    shown = values
    if len(values) > WIDTH:
        shown = [values[round(at * (len(values) - 1) / (WIDTH - 1))] for at in range(WIDTH)]
    height = (high - low) or 1.0
    return "".join(
        " " if one is None else BARS[min(7, int((one - low) / height * len(BARS)))] for one in shown
    )


def _steps(found: Sequence[int]) -> str:
    return ", ".join(map(str, found)) or "-"
