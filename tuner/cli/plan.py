"""`tuner plan`: the expected cost, duration and result of a job, before anything runs. `tuner pilot`: measure its step times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from tuner.cli import escape, render, tables, watch
from tuner.cli.arguments import Json
from tuner.cli.escape import number, plural, usd
from tuner.cli.job_of_code import with_recorded_space
from tuner.cli.job_yaml import read_job
from tuner.cli.output import Output, connect, maybe_done, with_problems
from tuner.cli.tables import Format, Style

if TYPE_CHECKING:
    from tuner.client import Client, Job
    from tuner.schemas.plan import Plan, PlanChance, PlanTarget, Range

CORRECT = {"grid_search": "grid search", "random_search": "random search", "on_demand": "on demand"}


@with_problems
def plan(
    file: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="Job file; - reads standard input.")],
    step_seconds: Annotated[
        float | None,
        typer.Option(
            help="Seconds per step to assume. Without it, the step time that earlier jobs measured is used."
        ),
    ] = None,
    steps_from: Annotated[
        list[str] | None, typer.Option(metavar="JOB", help="Use the step times of this job. Can be repeated.")
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(help="Latest end of the job: 6h from now, or a time such as 2026-12-01T08:00:00Z."),
    ] = None,
    pilot_usd: Annotated[
        float | None,
        typer.Option(help="Run a pilot first, for at most this many dollars, unless the job has had one."),
    ] = None,
    style: Format = Style.TABLE,
    as_json: Json = False,
) -> None:
    """Plan a job without running it: the expected trials, cost and time at each rung, the settings that the service would choose, and the cost on other machines."""
    job = with_recorded_space(read_job(file))
    words: dict[str, Any] = {
        "step_seconds": step_seconds,
        "steps_from": steps_from or None,
        "deadline": deadline,
    }
    options = {name: value for name, value in words.items() if value is not None}
    if options and isinstance(job.get("planning", {}), dict):
        job = {**job, "planning": {**job.get("planning", {}), **options}}
    client = connect()
    ran = None if pilot_usd is None else run_pilot(client, job, pilot_usd, quiet=as_json)
    Output(as_json, style).show(client.plan(job), shown)
    if ran is not None and not as_json and style is Style.TABLE:
        typer.echo(f"The pilot {ran.id} cost {usd(ran.spend.usd)}.")


@with_problems
def pilot(
    file: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="Job file; - reads standard input.")],
    usd: Annotated[float | None, typer.Option(help="Maximum cost of the pilot, in dollars.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until the pilot ends.")] = False,
    as_json: Json = False,
) -> None:
    """Train a few steps of a few configurations to measure how long a step takes. `tuner plan` uses the result."""
    client, job = connect(), with_recorded_space(read_job(file))
    pilot_job = run_pilot(client, job, usd, quiet=as_json) if wait else _begin_pilot(client, job, usd)
    Output(as_json).show(pilot_job, render.job)


def run_pilot(client: Client, job: dict[str, Any], usd: float | None, *, quiet: bool) -> Job:
    """Return the pilot of a job after the pilot has ended or is paused. Start a pilot if the job has none.

    `usd` is the maximum cost of a new pilot. Progress is shown unless `quiet` is true.

    Raises:
        typer.Exit: With status 1, if the pilot completed no step and therefore measured no step times.
    """
    pilot_job = _begin_pilot(client, job, usd)
    if pilot_job.state not in ("succeeded", "paused"):
        with watch.may_leave(pilot_job.id):
            if not quiet:
                typer.echo(f"pilot {pilot_job.id}")
                watch.watch(client, pilot_job.id)
            pilot_job = client.wait(pilot_job.id, progress=False)
    if not pilot_job.progress.steps:
        why = (
            pilot_job.detail
            or f"the pilot ended before its first step ({pilot_job.stop_reason}); give it more than {escape.usd(pilot_job.spend.usd)}"
        )
        typer.echo(escape.harmless(f"The pilot {pilot_job.id} did not measure a step\n{why}"), err=True)
        raise typer.Exit(1)
    return pilot_job


def _begin_pilot(client: Client, job: dict[str, Any], usd: float | None) -> Job:
    with maybe_done("the pilot may have begun; check `tuner jobs`"):
        return client.pilot(job, usd=usd)


def shown(answer: Plan) -> RenderableType:
    parts: list[RenderableType] = [_summary(answer), _rungs(answer)]
    if len(answer.alternatives) > 1:
        parts.append(_alternatives(answer))
    parts += [_comparisons(answer), _choices(answer), Text(_evidence(answer))]
    parts += [Text(f"! {warning}", style="yellow") for warning in answer.warnings]
    return Group(*parts)


def _summary(answer: Plan) -> RenderableType:
    table = tables.plain("", "expected", "8 of 10 from", "to")

    def add(name: str, interval: Range, shown: Callable[[float], str]) -> None:
        table.add_row(name, *map(shown, (interval.expected, interval.low, interval.high)))

    add("dollars", answer.usd, usd)
    if answer.gpu_hours.high:
        add("GPU-hours", answer.gpu_hours, "{:.4g}".format)
    add("done after", answer.finish_seconds, escape.span)
    add("trials", answer.trials, "{:g}".format)
    if answer.best is not None:
        add(f"best {answer.job['objective']['metric']}", answer.best, number)
    if answer.in_time is not None:
        table.add_row(f"in {escape.span(answer.deadline_seconds)}", _chance(answer.in_time))
    if answer.target is not None:
        table.add_row("reaches its target", _chance(answer.target))
    runs = plural(answer.inputs.runs, "run")
    table.add_row(
        "ends by", ", ".join(f"{reason} in {count} of {runs}" for reason, count in answer.ends.items())
    )
    return table


def _chance(chance: PlanChance | PlanTarget) -> str:
    return f"{chance.chance:.0%}"


def _rungs(answer: Plan) -> RenderableType:
    return tables.rows(
        answer.rungs,
        {
            f"to {answer.job['fidelity']['unit']}": lambda rung: rung.step,
            "trials": lambda rung: f"{rung.trials:.3g}",
            "steps": lambda rung: f"{rung.steps:.4g}",
            "a step": lambda rung: escape.span(rung.step_seconds),
            "training": lambda rung: usd(rung.train_usd),
            "overhead": lambda rung: usd(rung.overhead_usd),
            "dollars": lambda rung: usd(rung.usd),
            "GPU-hours": lambda rung: f"{rung.gpu_hours:.4g}",
        },
    )


def _alternatives(answer: Plan) -> RenderableType:
    table = tables.plain("machine", "market", "an hour", "dollars", "done after", "1000 steps", "in time", "")
    for alternative in answer.alternatives:
        table.add_row(
            alternative.instance_type,
            alternative.market,
            usd(alternative.usd_per_hour),
            usd(alternative.usd),
            escape.span(alternative.finish_seconds),
            usd(alternative.usd_per_1000_steps),
            _chance(alternative.in_time) if alternative.in_time is not None else "-",
            "chosen" if alternative.chosen else alternative.why_not or "",
            style="bold" if alternative.chosen else None,
        )
    return table


def _comparisons(answer: Plan) -> RenderableType:
    return tables.rows(
        answer.comparisons,
        {
            "instead": lambda other: CORRECT.get(other.name, other.name.replace("_", " ")),
            "dollars": lambda other: usd(other.usd),
            "GPU-hours": lambda other: f"{other.gpu_hours:.4g}",
            "done after": lambda other: escape.span(other.finish_seconds),
            "trials": lambda other: other.trials,
            "what": lambda other: other.note,
        },
    )


def _choices(answer: Plan) -> RenderableType:
    table = tables.plain("setting", "requested", "chosen", "why")
    for choice in answer.choices:
        table.add_row(choice.what, choice.asked or "-", choice.chosen, choice.why)
    return table


def _evidence(answer: Plan) -> str:
    evidence = answer.inputs.evidence
    by = {
        "pilot": f"a pilot of {plural(evidence.trials, 'trial')}",
        "history": f"{plural(evidence.trials, 'trial')} of {plural(len(evidence.jobs), 'earlier job')}",
        "given": "step times that were given",
        "none": "default assumptions only",
    }[evidence.source]
    return f"Based on {by}: {escape.span(evidence.step_seconds)} per step, in {plural(answer.inputs.runs, 'simulated run')}."
