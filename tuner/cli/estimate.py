"""`tuner estimate`: what a described run would cost, from a file, from options, or from both."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner.cli.estimate_tables import estimate as shown
from tuner.cli.frame import Frame, connect, with_problems
from tuner.cli.job_yaml import read_mapping

Words = list[str] | None
PARTS = "estimate: a mapping with run, choices, scaling, compute_optimal, recurring or ownership"


@with_problems
def estimate(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE.yaml]", help="What to estimate; - reads standard input.")
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            help="Hours that the whole run takes with --gpus GPUs of the one machine that --accelerator or --instance-type names."
        ),
    ] = None,
    samples: Annotated[float | None, typer.Option(help="Samples to train on, of one epoch.")] = None,
    tokens: Annotated[float | None, typer.Option(help="Tokens to train on, of one epoch.")] = None,
    epochs: Annotated[float | None, typer.Option(help="How often over them.")] = None,
    flops: Annotated[float | None, typer.Option(help="FLOPs of the whole run.")] = None,
    throughput: Annotated[
        Words,
        typer.Option(
            metavar="RATE@GPU",
            help="Samples or tokens a second on one GPU: 850@A10G; or on several together: 6000@8xA100.",
        ),
    ] = None,
    gpus: Annotated[str | None, typer.Option(help="GPUs that the run uses; or all of each machine.")] = None,
    deadline: Annotated[str | None, typer.Option(help="12h, 2d, or a time.")] = None,
    accelerator: Annotated[Words, typer.Option(help="Only these GPUs.")] = None,
    instance_type: Annotated[Words, typer.Option(help="Only these machines.")] = None,
    region: Annotated[Words, typer.Option(help="Only these regions.")] = None,
    cloud: Annotated[Words, typer.Option(help="Only these clouds.")] = None,
    market: Annotated[Words, typer.Option(help="on_demand or spot.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, max=5000, help="At most so many candidates.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what REST answers, as JSON.")] = False,
) -> None:
    """Estimate time and cost of a training on each machine of the catalogue. Whole machines are billed. Nothing runs."""
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
    """The file's parts, options standing for what its run says."""
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
