"""`tuner estimate`: the cost of a training run, which is described by a file, by options or by both."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner.cli.estimate_tables import estimate as shown
from tuner.cli.job_yaml import read_mapping
from tuner.cli.output import Frame, connect, with_problems

Words = list[str] | None
PARTS = "estimate: a mapping with run, choices, scaling, compute_optimal, recurring or ownership"


@with_problems
def estimate(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE.yaml]", help="Description of the run; - reads standard input."),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            help="Hours of the whole run on --gpus GPUs. Needs exactly one machine, given by --accelerator or --instance-type."
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
        str | None, typer.Option(help="Number of GPUs that the run uses. Default: all GPUs of a machine.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="When the run must have ended: 12h or 2d from now, or a time.")
    ] = None,
    accelerator: Annotated[Words, typer.Option(help="Only machines with this GPU. Can be repeated.")] = None,
    instance_type: Annotated[Words, typer.Option(help="Only this machine type. Can be repeated.")] = None,
    region: Annotated[Words, typer.Option(help="Only this region. Can be repeated.")] = None,
    cloud: Annotated[Words, typer.Option(help="Only this cloud. Can be repeated.")] = None,
    market: Annotated[
        Words, typer.Option(help="Only this market: on_demand or spot. Can be repeated.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=5000, help="Maximum number of candidates to list.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the REST response as JSON.")] = False,
) -> None:
    """Estimate the time and cost of a training run on each machine of the catalogue, without running it. Whole machines are billed."""
    given = {
        "hours": hours,
        "samples": samples,
        "tokens": tokens,
        "epochs": epochs,
        "flops": flops,
        "throughput": None if throughput is None else [_measured(text) for text in throughput],
        "gpus": int(gpus) if gpus is not None and gpus.isdigit() else gpus,
        "deadline": deadline,
        "accelerators": accelerator,
        "instance_types": instance_type,
        "regions": region,
        "clouds": cloud,
        "markets": market,
        "limit": limit,
    }
    Frame(as_json).show(connect().estimate(**_asked(file, given)), shown)


def _asked(file: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return the estimate request: the file's content, with the values of the given options in its `run` section."""
    parts = {} if file is None else read_mapping(file, PARTS)
    options = {name: value for name, value in given.items() if value is not None}
    if not options:
        return parts
    run = parts.get("run") or {}
    return {**parts, "run": {**run, **options} if isinstance(run, dict) else run}


def _measured(text: str) -> dict[str, Any]:
    found = re.fullmatch(r"([^@]+)@(?:([1-9]\d{0,3})x)?(.+)", text)
    try:
        if found is None:
            raise ValueError
        per_second = float(found[1])
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not RATE@GPU, such as 850@A10G or 6000@8xA100", param_hint="--throughput"
        ) from None
    gpus = {} if found[2] is None else {"gpus": int(found[2])}
    return {"per_second": per_second, "accelerator": found[3], **gpus}
