"""`tuner report`: the report on a job, and the monthly report of a project as Markdown or CSV."""

from __future__ import annotations

import csv
import io
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import arguments, render
from tuner.cli.arguments import Json
from tuner.cli.escape import amount, harmless, number, usd
from tuner.cli.output import PROJECT, Output, connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tuner.schemas.base import Answer
    from tuner.schemas.finops import MonthlyReport

Row = tuple[str, ...]


class ReportStyle(StrEnum):
    MARKDOWN = "markdown"
    MD = "md"  #: The same as `markdown`.
    CSV = "csv"


def report(
    job: Annotated[
        str | None,
        typer.Argument(
            help="Job to report on. Without a job, the report is on a month of the project.",
            show_default=False,
            autocompletion=arguments.jobs,
        ),
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", help="Project to report on. Default: that of your key.")
    ] = None,
    month: Annotated[
        str | None, typer.Option(help="Month to report on, such as 2026-11. Default: the current one.")
    ] = None,
    timezone: Annotated[
        str, typer.Option(help="Time zone in which the month begins, such as Europe/Berlin.")
    ] = "UTC",
    style: Annotated[
        ReportStyle, typer.Option("--format", help="Format of the monthly report.")
    ] = ReportStyle.MARKDOWN,
    as_json: Json = False,
) -> None:
    """Report on a job, or on a month of the project.

    For a job, show how the best metric improved as money was spent, and estimate what other search methods would have spent. For a month, show the spend
    by kind, the share that paid for training, the jobs that ended, and what would have made these jobs cheaper.
    """
    if project is not None:
        PROJECT.set(project)
    if job is not None:
        if month is not None:
            raise typer.BadParameter("give a job or a month, not both", param_hint="--month")
        if timezone != "UTC":
            raise typer.BadParameter("applies only to the report on a month", param_hint="--timezone")
        if style is ReportStyle.CSV:
            raise typer.BadParameter("applies only to the report on a month", param_hint="--format")
        Output(as_json).show(connect().report(job), render.report)
        return
    answer = connect().monthly_report(month, timezone=timezone)
    if as_json:
        Output(as_json).show(answer, str)
        return
    text = as_csv(answer) if style is ReportStyle.CSV else markdown(answer)
    typer.echo("\n".join(map(harmless, text.splitlines())))


def markdown(report: MonthlyReport) -> str:
    """Return the report as Markdown."""
    state = "" if report.is_complete else ", which is not over yet"
    parts = [
        f"# {report.project} in {report.month}{state}",
        f"From {report.since[:19]}Z to {report.until[:19]}Z, the month in {report.timezone}. "
        "The cost of storage, transfer and idle machines does not count in bills and budgets.",
        _table(("figure", "value"), _figures(report)),
        "## Spend by kind",
        _table(
            ("kind", "spent", "GPU-hours"),
            [(spend.kind, usd(spend.usd), amount(spend.gpu_hours)) for spend in report.by_kind],
        ),
        "## Savings",
        f"These figures cover the {report.examined_jobs} most expensive jobs that ended in the month, over the whole life of each job.",
        _table(("saving", "jobs", "spent", "instead", "saved", "compared with"), _savings(report)),
        "## Right-sizing",
        "From `tuner advice JOB` of the same jobs. Savings of different kinds overlap: do not add them.",
        _table(
            ("advice", "jobs", "would save", "example"),
            [
                (advice.kind, str(advice.jobs), usd(advice.saves_usd), advice.title)
                for advice in report.right_sizing
            ],
        ),
        "## Maturity",
        "Against the levels of the FinOps Foundation's maturity model. docs/finops.md says how to reach the next level.",
        _table(("capability", "measure", "value", "level", "walk", "run", "thresholds"), _maturity(report)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def as_csv(report: MonthlyReport) -> str:
    """Return the report as CSV with the columns section, name, figure and value. Numbers have no units, and unknown values are empty cells."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("section", "name", "figure", "value"))
    for row in _lines(report):
        writer.writerow(row)
    return text.getvalue()


def _lines(report: MonthlyReport) -> Iterator[Sequence[object]]:
    plain = ("project", "month", "timezone", "since", "until", "is_complete", "goodput", "spot_share")
    for name in (*plain, "cluster_usd", "cluster_idle_usd", "examined_jobs"):
        yield "report", report.month, name, _cell(getattr(report, name))
    for name, value in report.total.model_dump().items():
        yield "total", report.month, name, _cell(value)
    for state, count in report.ended_jobs.items():
        yield "ended_jobs", state, "jobs", count
    sections: dict[str, tuple[str, Sequence[Answer]]] = {
        "by_kind": ("kind", report.by_kind),
        "savings": ("name", report.savings),
        "right_sizing": ("kind", report.right_sizing),
        "maturity": ("capability", report.maturity),
    }
    for section, (key, items) in sections.items():
        for item in items:
            fields = item.model_dump()
            name = fields.pop(key)
            for figure, value in fields.items():
                yield section, name, figure, _cell(value)


def _cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".")
    return "" if value is None else value


def _figures(report: MonthlyReport) -> list[Row]:
    total = report.total
    ended = ", ".join(f"{count} {state}" for state, count in report.ended_jobs.items() if count)
    return [
        ("spent", usd(total.usd)),
        ("GPU-hours", amount(total.gpu_hours)),
        ("jobs that ended", ended or "none"),
        ("completed trials", str(total.completed_trials)),
        ("cost per completed trial", usd(total.usd_per_completed_trial)),
        ("goodput", _percent(report.goodput)),
        ("lost work", usd(total.lost_usd)),
        ("preemptions", str(total.preemptions)),
        ("spot share of the spend", _percent(report.spot_share)),
        ("machines of the cluster", usd(report.cluster_usd)),
        ("idle machines", usd(report.cluster_idle_usd)),
        ("storage, in GB-months", number(total.storage_gb_months)),
        ("storage", usd(total.storage_usd)),
        ("checkpoints that left a region", usd(total.transfer_usd)),
        ("datasets that left a region", usd(total.data_transfer_usd)),
    ]


def _savings(report: MonthlyReport) -> list[Row]:
    return [
        (
            saving.name,
            str(saving.jobs),
            usd(saving.usd),
            usd(saving.counterfactual_usd),
            usd(saving.saved_usd),
            saving.counterfactual,
        )
        for saving in report.savings
    ]


def _maturity(report: MonthlyReport) -> list[Row]:
    return [
        (
            maturity.capability,
            maturity.measure,
            _percent(maturity.value),
            maturity.level or "not measured",
            _percent(maturity.walk),
            _percent(maturity.run),
            maturity.thresholds,
        )
        for maturity in report.maturity
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _table(head: Row, rows: Sequence[Row]) -> str:
    """Return a Markdown table, or the text "None." if `rows` is empty. A vertical bar in a cell would end the cell, so it is escaped."""
    if not rows:
        return "None."
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
