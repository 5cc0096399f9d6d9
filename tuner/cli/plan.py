"""`tuner plan`: the expected cost, duration and result of a job, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from tuner.cli import tables
from tuner.cli.arguments import Json
from tuner.cli.escape import number, plural, usd
from tuner.cli.job_yaml import read_job
from tuner.cli.output import Frame, connect, with_problems
from tuner.cli.pilot import run as run_pilot
from tuner.cli.tables import Format, Style

if TYPE_CHECKING:
    from tuner.schemas.plan import Plan, PlanAlternative, PlanChance

CORRECT = {"grid_search": "grid search", "random_search": "random search", "on_demand": "on demand"}


@with_problems
def plan(
    file: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="Job file; - reads standard input.")],
    step_seconds: Annotated[
        float | None, typer.Option(help="Seconds per step, if no earlier job has measured them.")
    ] = None,
    steps_from: Annotated[
        list[str] | None, typer.Option(metavar="JOB", help="Use the step times of this job. Can be repeated.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="When the job should have ended: 6h from now, or a time.")
    ] = None,
    pilot_usd: Annotated[
        float | None,
        typer.Option(help="Run a pilot first, for at most this many dollars, unless the job has had one."),
    ] = None,
    style: Format = Style.TABLE,
    as_json: Json = False,
) -> None:
    """Plan a job without running it: expected trials, cost and time at each rung, chosen settings, and cost on other machines."""
    job = read_job(file)
    words: dict[str, Any] = {
        "step_seconds": step_seconds,
        "steps_from": steps_from or None,
        "deadline": deadline,
    }
    said = {name: value for name, value in words.items() if value is not None}
    if said and isinstance(job.get("planning", {}), dict):
        job = {**job, "planning": {**job.get("planning", {}), **said}}
    client = connect()
    ran = None if pilot_usd is None else run_pilot(client, job, pilot_usd, quiet=as_json)
    Frame(as_json, style).show(client.plan(job), shown)
    if ran is not None and not as_json and style is Style.TABLE:
        typer.echo(f"The pilot {ran.id} cost {usd(ran.spend.usd)}.")


def shown(found: Plan) -> RenderableType:
    parts: list[RenderableType] = [_summary(found), _rungs(found)]
    if len(found.alternatives) > 1:
        parts.append(_alternatives(found))
    parts += [_comparisons(found), _choices(found), Text(_evidence(found))]
    parts += [Text(f"! {warning}", style="yellow") for warning in found.warnings]
    return Group(*parts)


def hours(seconds: float | None) -> str:
    """Return a duration as text for people.

    >>> hours(90), hours(5400), hours(None)
    ('90 s', '1.5 h', '-')
    """
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 5400 else f"{seconds / 3600:.4g} h"


def _summary(found: Plan) -> RenderableType:
    table = tables.plain("", "expected", "8 of 10 within")
    table.add_row("dollars", usd(found.usd.expected), f"{usd(found.usd.low)} to {usd(found.usd.high)}")
    if found.gpu_hours.high:
        span = f"{found.gpu_hours.low:.4g} to {found.gpu_hours.high:.4g}"
        table.add_row("GPU-hours", f"{found.gpu_hours.expected:.4g}", span)
    finish = found.finish_seconds
    table.add_row("done after", hours(finish.expected), f"{hours(finish.low)} to {hours(finish.high)}")
    trials = found.trials
    table.add_row("trials", f"{trials.expected:g}", f"{trials.low:g} to {trials.high:g}")
    if found.best is not None:
        span = f"{number(found.best.low)} to {number(found.best.high)}"
        table.add_row(f"best {found.job['objective']['metric']}", number(found.best.expected), span)
    if found.in_time is not None:
        table.add_row(f"in {hours(found.deadline_seconds)}", _chance(found.in_time), "")
    if found.target is not None:
        table.add_row("reaches its target", _chance(found.target), "")
    runs = plural(found.inputs.runs, "run")
    table.add_row(
        "ends by", ", ".join(f"{reason} in {count} of {runs}" for reason, count in found.ends.items()), ""
    )
    return table


def _chance(chance: PlanChance) -> str:
    return f"{chance.chance:.0%}"


def _rungs(found: Plan) -> RenderableType:
    unit = found.job["fidelity"]["unit"]
    table = tables.plain(
        "to " + unit, "trials", "steps", "a step", "training", "overhead", "dollars", "GPU-hours"
    )
    for rung in found.rungs:
        table.add_row(
            str(rung.step),
            f"{rung.trials:.3g}",
            f"{rung.steps:.4g}",
            hours(rung.step_seconds),
            usd(rung.train_usd),
            usd(rung.overhead_usd),
            usd(rung.usd),
            f"{rung.gpu_hours:.4g}",
        )
    return table


def _alternatives(found: Plan) -> RenderableType:
    table = tables.plain("machine", "market", "an hour", "dollars", "done after", "1000 steps", "in time", "")
    for one in found.alternatives:
        table.add_row(
            one.instance_type,
            one.market,
            usd(one.usd_per_hour),
            usd(one.usd),
            hours(one.finish_seconds),
            usd(one.usd_per_1000_steps),
            _chance(one.in_time) if one.in_time is not None else "-",
            _said(one),
            style="bold" if one.chosen else None,
        )
    return table


def _said(one: PlanAlternative) -> str:
    return "chosen" if one.chosen else one.why_not or ""


def _comparisons(found: Plan) -> RenderableType:
    table = tables.plain("instead", "dollars", "GPU-hours", "done after", "trials", "what")
    for one in found.comparisons:
        name = CORRECT.get(one.name, one.name.replace("_", " "))
        table.add_row(
            name, usd(one.usd), f"{one.gpu_hours:.4g}", hours(one.finish_seconds), str(one.trials), one.note
        )
    return table


def _choices(found: Plan) -> RenderableType:
    table = tables.plain("setting", "asked", "chosen", "why")
    for one in found.choices:
        table.add_row(one.what, one.asked or "-", one.chosen, one.why)
    return table


def _evidence(found: Plan) -> str:
    evidence = found.inputs.evidence
    by = {
        "pilot": f"a pilot of {plural(evidence.trials, 'trial')}",
        "history": f"{plural(evidence.trials, 'trial')} of {plural(len(evidence.jobs), 'earlier job')}",
        "given": "step times that were given",
        "none": "nothing but defaults",
    }[evidence.source]
    return f"By {by}: {hours(evidence.step_seconds)} a step, in {plural(found.inputs.runs, 'simulated run')}."
