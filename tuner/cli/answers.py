"""`tuner curves`, `advice` and `logs`: learning curves, ways to save money, and trials' output."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.cli import tables
from tuner.cli.arguments import JobId, Json, TrialId
from tuner.cli.escape import number, usd
from tuner.cli.output import Output, connect
from tuner.domain.job import FINAL
from tuner.domain.trial import TRIAL_FINAL

if TYPE_CHECKING:
    from tuner.client import Client
    from tuner.schemas.answers import Advice, Change, Curves, Finding, TrialLog


WIDTH = 30
BARS = "▁▂▃▄▅▆▇█"


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
    Output(as_json).show(connect().curves(job, metric=metric), _shown_curve)


def _shown_curve(answer: Curves) -> RenderableType:
    if not answer.trials:
        return Text("no trials")
    values = [value for trial in answer.trials for value in trial.metric if value is not None]
    low, high = min(values, default=0.0), max(values, default=0.0)
    table = tables.rows(
        answer.trials,
        {
            "trial": lambda trial: trial.id,
            "state": lambda trial: trial.state,
            "steps": lambda trial: trial.steps[-1] if trial.steps else 0,
            "best": lambda trial: number(trial.best_metric),
            "paid": lambda trial: usd(trial.total_usd),
            "promoted at": lambda trial: _steps(trial.promotions_at),
            "preempted at": lambda trial: _steps(trial.preemptions_at),
            f"curve of {answer.metric}": lambda trial: sparkline(trial.metric, low, high),
        },
    )
    return Group(table, Text(f"Reported metrics: {', '.join(answer.metrics)}"))


def sparkline(values: Sequence[float | None], low: float, high: float) -> str:
    """Return a curve as a text with one bar per value. The lowest bar means `low` and the highest bar means `high`.

    If there are more than `WIDTH` values, `WIDTH` evenly spaced ones are shown. A missing value is a space.

    >>> sparkline([0, None, 0.5, 1], 0, 1)
    '▁ ▅█'
    """
    shown = values
    if len(values) > WIDTH:
        shown = [values[round(at * (len(values) - 1) / (WIDTH - 1))] for at in range(WIDTH)]
    height = (high - low) or 1.0
    return "".join(
        " " if value is None else BARS[min(7, int((value - low) / height * len(BARS)))] for value in shown
    )


def _steps(items: Sequence[int]) -> str:
    return ", ".join(map(str, items)) or "-"


def advice(
    job: JobId,
    as_json: Json = False,
) -> None:
    """Show what would have made a job cheaper, with the evidence and a way to check that quality does not regress."""
    Output(as_json).show(connect().advice(job), _shown)


def _shown(answer: Advice) -> RenderableType:
    head = f"{usd(answer.spent_usd)} spent, {usd(answer.measured_usd)} of it measured; prices: {answer.prices}, {answer.prices_age}"
    parts: list[RenderableType] = [Text(head)]
    if not answer.findings:
        parts.append(Text("no change was found that would have saved money"))
    for finding in answer.findings:
        parts += [Text(""), _finding(finding)]
    if answer.not_measured:
        table = tables.plain("not measured", "why", "how to measure it")
        for gap in answer.not_measured:
            table.add_row(Text(gap.what), Text(gap.why), Text(gap.how))
        parts += [Text(""), table]
    return Group(*parts)


def _finding(finding: Finding) -> RenderableType:
    saves = "unknown" if finding.saves_usd is None else usd(finding.saves_usd)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(
        Text("saves", style="bold"), Text(f"{saves} ({finding.confidence} confidence): {finding.saves_note}")
    )
    table.add_row(
        "evidence",
        Text(", ".join(f"{name} {_figure(value, name)}" for name, value in finding.evidence.items())),
    )
    for title, change in [("change", finding.change), *(("or", other) for other in finding.alternatives)]:
        table.add_row(title, Text(_change(change)))
    table.add_row("verify", Text(finding.verify))
    return Group(Text(f"{finding.title} [{finding.kind}]", style="bold"), table)


def _change(change: Change) -> str:
    step = (
        f"{change.setting}: {change.now} → {change.then}"
        if change.now is not None
        else f"{change.setting}: {change.then}"
    )
    return f"{step}. {change.how}" if change.how else step


def _figure(value: Any, name: str) -> str:
    if value is None:
        return "unknown"
    if name.endswith("_usd"):
        return usd(value)
    return number(value) if isinstance(value, float) else str(value)


UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
MOST_BYTES = 512 << 10  # the service returns at most this much per request
LOOK_S = 1.0


def logs(
    job: JobId,
    trial: TrialId,
    attempt: Annotated[
        int | None,
        typer.Option(min=1, help="Number of the attempt. Default: the newest one that printed anything."),
    ] = None,
    tail: Annotated[
        str,
        typer.Option(
            help="Number of bytes to print from the end of the output, such as 64KiB. The maximum is 512KiB."
        ),
    ] = "64KiB",
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Print new output until the trial ends. With --attempt, until the attempt ends."
        ),
    ] = False,
    node: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Print the output of this node, for a trial on several nodes. Nodes are counted from 0. Default: 0.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the output of a trial's own code."""
    client, size = connect(), _bytes(tail)
    if follow:
        _follow(client, job, trial, attempt, size, node=node, as_json=as_json)
        return
    answer = client.logs(job, trial, attempt=attempt, tail=size, node=node)
    if as_json:
        typer.echo(json.dumps(answer.model_dump(), indent=2))
    else:
        typer.echo(answer.text, nl=not answer.text.endswith("\n"))


def _follow(
    client: Client, job: str, trial: str, named: int | None, tail: int, *, node: int | None, as_json: bool
) -> None:
    """Print the output of a trial until the trial has ended. If `named` is given, print the attempt with this number until it has ended.
    With JSON, print one response per line.

    First print the last `tail` bytes that the service has stored. Then print all output that it stores later.
    """
    attempt, after, size = named, 0, tail
    while True:
        log = _stored_log(client, job, trial, attempt, size, after, node)
        if log is not None:
            if log.text and as_json:
                typer.echo(json.dumps(log.model_dump()))
            elif log.text:
                if after and log.bytes_left_out:
                    typer.echo(f"[{log.bytes_left_out} bytes are omitted]", err=True)
                typer.echo(log.text, nl=False)
            attempt, after, size = log.attempt, log.bytes_until, MOST_BYTES
            if log.complete or (log.ended and not log.text):
                later = [number for number in log.attempts if number > log.attempt and named is None]
                if later:
                    attempt, after = later[0], 0
                    continue
                if named is not None or _is_over(client, job, trial):
                    return
        time.sleep(LOOK_S)


def _stored_log(
    client: Client, job: str, trial: str, attempt: int | None, tail: int, after: int, node: int | None
) -> TrialLog | None:
    """Skip the first `after` bytes of the trial's output, and return at most the last `tail` bytes of the rest.

    Return None if the trial has not ended and has stored no output yet.
    """
    from tuner.client import ApiError

    try:
        return client.logs(job, trial, attempt=attempt, tail=tail, after=after, node=node)
    except ApiError as error:
        if error.status != 404 or _is_over(client, job, trial):
            raise
        return None


def _is_over(client: Client, job: str, trial: str) -> bool:
    return client.trial(job, trial).state in TRIAL_FINAL or client.job(job).state in FINAL


def _bytes(text: str) -> int:
    """Return the number of bytes of a size such as 64KiB, 64k or 65536."""
    match = re.fullmatch(r"(\d{1,9})\s*(?:([km])(?:i?b)?|b)?", text.strip().lower())
    if match is None:
        raise typer.BadParameter(f"write the size as 64KiB or 65536, not {text!r}", param_hint="--tail")
    return int(match[1]) * UNITS[match[2] or ""]
