"""`tuner estimate`: the cost of a training run or of serving a model, which is described by a file, by options or by both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.cli import tables
from tuner.cli.escape import number, usd
from tuner.cli.job_yaml import read_mapping
from tuner.cli.output import Output, connect, with_problems

if TYPE_CHECKING:
    from tuner.schemas import estimate_answers as show

Words = list[str] | None
PARTS = "an estimate: a mapping with run, choices, scaling, compute_optimal, recurring, ownership or serving"


@with_problems
def estimate(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE.yaml]", help="Description of the run; - reads standard input."),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            help="Duration of the whole run in hours, on the number of GPUs given with --gpus. Requires exactly one --accelerator or one --instance-type."
        ),
    ] = None,
    samples: Annotated[float | None, typer.Option(help="Samples in one epoch.")] = None,
    tokens: Annotated[float | None, typer.Option(help="Tokens in one epoch.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Number of epochs.")] = None,
    flops: Annotated[float | None, typer.Option(help="FLOPs of the whole run.")] = None,
    throughput: Annotated[
        Words,
        typer.Option(
            metavar="RATE@GPU",
            help="Samples or tokens per second on one GPU, such as 850@A10G, or on several together, such as 6000@8xA100. Can be repeated.",
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            help="Number of GPUs that the run uses, or all for all GPUs of each machine. Default: 1."
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            help="Latest end of the run: 12h or 2d from now, or a time such as 2026-12-01T08:00:00Z."
        ),
    ] = None,
    accelerator: Annotated[Words, typer.Option(help="Only machines with this GPU. Can be repeated.")] = None,
    instance_type: Annotated[Words, typer.Option(help="Only this machine type. Can be repeated.")] = None,
    region: Annotated[Words, typer.Option(help="Only this region. Can be repeated.")] = None,
    cloud: Annotated[Words, typer.Option(help="Only this cloud. Can be repeated.")] = None,
    market: Annotated[
        Words, typer.Option(help="Only this market: on_demand or spot. Can be repeated.")
    ] = None,
    latency_ms: Annotated[
        float | None,
        typer.Option(
            help="Estimate the cost of serving a model that takes this many milliseconds per prediction, instead of a training run."
        ),
    ] = None,
    measured: Annotated[
        str | None,
        typer.Option(
            metavar="JOB/EXPORT/VARIANT",
            help="Estimate the cost of serving this exported model, from the latency measured at its export, instead of a training run. VARIANT is a format, such as int8-dynamic.",
        ),
    ] = None,
    requests_per_second: Annotated[
        float | None, typer.Option(help="Requests per second, for an estimate of serving. Default: 10.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=5000, help="Maximum number of machines to list.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the REST response as JSON.")] = False,
) -> None:
    """Estimate the cost of a training run, or of a million predictions, on each machine of the catalogue. Nothing runs.

    A training run is billed for whole machines. With --latency-ms or --measured, the estimate is of serving a model.
    """
    where = {
        "accelerators": accelerator,
        "instance_types": instance_type,
        "regions": region,
        "clouds": cloud,
        "markets": market,
        "limit": limit,
    }
    serving = {
        "latency_ms": latency_ms,
        "measured": None if measured is None else _exported(measured),
        "requests_per_second": requests_per_second,
    }
    run = {
        "hours": hours,
        "samples": samples,
        "tokens": tokens,
        "epochs": epochs,
        "flops": flops,
        "throughput": None if throughput is None else [_measured(text) for text in throughput],
        "gpus": int(gpus) if gpus is not None and gpus.isdigit() else gpus,
        "deadline": deadline,
    }
    parts = {} if file is None else read_mapping(file, PARTS)
    has_run, has_serving = (any(value is not None for value in given.values()) for given in (run, serving))
    if has_run and has_serving:
        raise typer.BadParameter(
            "give options of a run or of serving, not of both; a file may describe both",
            param_hint="--latency-ms",
        )
    # Options such as --region, which select machines, are added to the part that the other options are about: the run or serving. If only
    # machines are selected, they are added to serving if the file has serving and no run, and otherwise to the run.
    if has_serving or (not has_run and "serving" in parts and "run" not in parts):
        parts = _with_options(parts, "serving", {**serving, **where})
    else:
        parts = _with_options(parts, "run", {**run, **where})
    Output(as_json).show(connect().estimate(**parts), shown)


def _with_options(parts: dict[str, Any], part: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the request `parts`, with the command-line options `given` added to the part of it that is named `part`.

    An option that is None is skipped. Any other option replaces the value in `parts`.
    """
    options = {name: value for name, value in given.items() if value is not None}
    if not options:
        return parts
    described = parts.get(part) or {}
    return {**parts, part: {**described, **options} if isinstance(described, dict) else described}


def _exported(text: str) -> dict[str, str]:
    names = text.split("/")
    if len(names) != 3 or not all(names):
        raise typer.BadParameter(f"{text!r} is not JOB/EXPORT/VARIANT", param_hint="--measured")
    return dict(zip(("job", "export", "variant"), names, strict=True))


def _measured(text: str) -> dict[str, Any]:
    match = re.fullmatch(r"([^@]+)@(?:([1-9]\d{0,3})x)?(.+)", text)
    try:
        if match is None:
            raise ValueError
        per_second = float(match[1])
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not RATE@GPU, such as 850@A10G or 6000@8xA100", param_hint="--throughput"
        ) from None
    gpus = {} if match[2] is None else {"gpus": int(match[2])}
    return {"per_second": per_second, "accelerator": match[3], **gpus}


def shown(answer: show.Estimate) -> RenderableType:
    return Group(*_parts(answer), Text(f"{answer.prices} ({answer.catalogue})"))


def _parts(answer: show.Estimate) -> Iterator[RenderableType]:
    if answer.run is not None:
        yield from _run(answer.run)
    if answer.choices is not None:
        yield from _choices(answer.choices)
    if answer.scaling is not None:
        yield from _scaling(answer.scaling)
    if answer.compute_optimal is not None:
        yield from _compute(answer.compute_optimal)
    if answer.recurring is not None:
        yield _yearly(answer.recurring)
    if answer.ownership is not None:
        yield _ownership(answer.ownership)
    if answer.serving is not None:
        yield from _serving(answer.serving)


def _run(answer: show.RunEstimate) -> Iterator[RenderableType]:
    yield _candidates(answer.candidates)
    yield Text(f"{len(answer.candidates)} of {answer.count} machines that fit the run as described")
    if answer.with_changes:
        yield Text("\nwould fit with changes", style="bold")
        yield _candidates(answer.with_changes[:5])
        yield Text(f"{len(answer.with_changes[:5])} of {answer.with_changes_count}")
    named = {
        "cheapest": answer.cheapest,
        "cheapest on demand": answer.cheapest_on_demand,
        "cheapest in time": answer.cheapest_in_time,
        "fastest": answer.fastest,
    }
    table = Table.grid(padding=(0, 2))
    for name, candidate in named.items():
        if candidate is not None:
            where = f"{candidate.instance_type} in {candidate.region}, {candidate.market.replace('_', ' ')}"
            table.add_row(name, where, f"{number(candidate.hours)} h", usd(candidate.usd))
    yield table
    yield Text(
        "prices are for whole machines; a job of the service pays only its trials' share of a machine (see tuner plan)"
    )
    if answer.memory_gib is not None:
        yield Text(f"GPU memory as described: {answer.memory_gib.total:.1f} GiB")
    yield from _notes(answer)


def _notes(answer: show.RunEstimate | show.ServingEstimate) -> Iterator[RenderableType]:
    yield from (Text(f"! {warning}", style="bold") for warning in answer.warnings)
    yield from (Text(f"left out, {excluded.count}: {excluded.reason}") for excluded in answer.left_out)
    yield from (Text(f"assumed, {each.name}: {each.value} ({each.why})") for each in answer.assumptions)


def _candidates(rows: Sequence[show.Candidate]) -> Table:
    return tables.rows(
        rows,
        {
            "machine": lambda row: row.instance_type,
            "where": _where,
            "market": lambda row: row.market,
            "GPUs": lambda row: f"{row.gpus} of {row.accelerators:g} {row.accelerator}",
            "speed": lambda row: row.basis,
            "hours": lambda row: number(row.hours),
            "dollars": lambda row: usd(row.usd),
            "from": lambda row: usd(row.usd_range[0]),
            "to": lambda row: usd(row.usd_range[1]),
            "per $": lambda row: number(row.per_dollar),
            "": lambda row: ", ".join([*(row.fit.changes if row.fit else []), *_late(row)]),
        },
    )


def _where(candidate: show.Candidate) -> str:
    zones = candidate.zones
    if len(zones) == 1:
        return zones[0]
    return f"{candidate.region} ({len(zones)} zones)" if zones else candidate.region


def _late(candidate: show.Candidate) -> list[str]:
    if candidate.meets_deadline is not False:
        return []
    return ["may be late" if candidate.meets_deadline_on_average else "late"]


def _choices(answer: show.ChoicesEstimate) -> Iterator[RenderableType]:
    yield tables.rows(
        answer.options,
        {
            "choice": lambda option: option.name,
            "an hour": lambda option: usd(option.usd_per_hour * option.machines),
            "hours": lambda option: number(option.hours),
            "dollars": lambda option: usd(option.usd),
            "": lambda option: "late" if option.meets_deadline is False else "",
        },
    )
    yield Text(f"cheapest: {answer.cheapest}; in time: {answer.cheapest_in_time or 'none'}")


def _scaling(answer: show.ScalingEstimate) -> Iterator[RenderableType]:
    yield tables.rows(
        answer.points,
        {
            "GPUs": lambda point: point.gpus,
            "link": lambda point: point.link,
            "all-reduce ms": lambda point: number(point.allreduce_seconds * 1e3),
            "efficiency": lambda point: f"{point.efficiency:.0%}",
            "at best": lambda point: f"{point.overlapped:.0%}",
            "measured": lambda point: "" if point.measured is None else f"{point.measured:.0%}",
            "speedup": lambda point: number(point.speedup),
        },
    )
    if answer.machines:
        yield tables.rows(
            answer.machines,
            {
                "GPUs": lambda row: row.gpus,
                "machines": lambda row: f"{row.machines} x {row.instance_type}",
                "where": lambda row: row.region,
                "hours": lambda row: number(row.hours),
                "dollars": lambda row: usd(row.usd),
                "$ per hour saved": lambda row: usd(row.usd_per_hour_saved),
                "pays": lambda row: row.pays,
            },
        )


def _compute(answer: show.ComputeEstimate) -> Iterator[RenderableType]:
    yield Text(f"{answer.flops:.3g} FLOPs")
    yield tables.rows(
        answer.optima,
        {
            "law": lambda optimum: optimum.law,
            "parameters": lambda optimum: f"{optimum.parameters:.3g}",
            "tokens": lambda optimum: f"{optimum.tokens:.3g}",
            "tokens/parameter": lambda optimum: number(optimum.tokens_per_parameter),
            "loss": lambda optimum: number(optimum.loss),
        },
    )
    yield from (Text(f"! {caveat}") for caveat in answer.caveats)


def _yearly(rows: Sequence[show.Yearly]) -> Table:
    return tables.rows(
        rows,
        {
            "training": lambda row: row.name,
            "a run": lambda row: usd(row.usd_per_run),
            "runs a year": lambda row: number(row.runs_per_year),
            "a month": lambda row: usd(row.usd_per_month),
            "a year": lambda row: usd(row.usd_per_year),
            "saved a year": lambda row: usd(row.saving_usd_per_year),
        },
    )


def _ownership(answer: show.OwnershipEstimate) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    even = answer.break_even_utilisation
    table.add_row("owned, an hour of use", usd(answer.owned_usd_per_hour), f"{usd(answer.owned_usd)} in all")
    table.add_row("in the cloud", usd(answer.cloud_usd_per_hour), f"{usd(answer.cloud_usd)} in all")
    table.add_row("cheaper", answer.cheaper, f"by {usd(answer.saving_usd)}")
    table.add_row("owning is cheaper above", "never" if even is None else f"{even:.1%} of all hours")
    return table


def _serving(answer: show.ServingEstimate) -> Iterator[RenderableType]:
    def to_zero(row: show.ServingCandidate) -> str:
        price = row.scale_to_zero_usd_per_million
        return "" if price is None else usd(price)

    yield tables.rows(
        answer.candidates,
        {
            "machine": lambda row: row.instance_type,
            "where": lambda row: row.region,
            "market": lambda row: row.market,
            "an hour": lambda row: usd(row.usd_per_hour),
            "replicas": lambda row: row.replicas,
            "real time": lambda row: usd(row.real_time_usd_per_million),
            "batch": lambda row: usd(row.batch_usd_per_million),
            "to zero": to_zero,
            "below 1/s": lambda row: number(row.break_even_per_second),
            "a month": lambda row: usd(row.usd_per_month),
        },
    )
    yield Text(f"{len(answer.candidates)} of {answer.count}, in dollars per million predictions")
    yield Text(
        f"a new replica answers after {answer.cold_start_seconds:g} s; scaling to zero costs less below the rate in the table"
    )
    yield from _notes(answer)
