"""`tuner export`: export a trained model to files, with the measurements and the serving cost of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from tuner.cli import arguments, tables
from tuner.cli.arguments import JobId, Json
from tuner.cli.escape import number, usd
from tuner.cli.output import Output, connect, maybe_done
from tuner.cli.tables import Format, Style

if TYPE_CHECKING:
    from collections.abc import Callable

    from tuner.client import Client
    from tuner.schemas.exports import Export, ExportVariant, ServingPrice, VariantLatency


def export(
    job: JobId,
    trial: Annotated[
        str | None,
        typer.Option(help="Trial to export. Default: the job's best trial.", autocompletion=arguments.trials),
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Comma-separated: onnx, torch, int8-dynamic, int8-static, int4-weight, pruned, pruned-unstructured. Default: all.",
        ),
    ] = None,
    max_cost_usd: Annotated[float, typer.Option(help="Maximum cost of the export, in dollars.")] = 0.5,
    max_drop: Annotated[
        float | None,
        typer.Option(
            help="Leave out formats whose metric is worse than the original model's by more than this, in the metric's own unit. Default: leave out none."
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Download the files to this directory. It is created if it does not exist.",
        ),
    ] = None,
    export_id: Annotated[
        str | None,
        typer.Option(
            "--export",
            metavar="ID",
            help="Show an earlier export instead of starting a new one, and wait for it if it has not ended. With --to, download its files.",
        ),
    ] = None,
    per_second: Annotated[
        float,
        typer.Option(metavar="NUMBER", help="Requests per second, for the price of serving in real time."),
    ] = 10.0,
    style: Format = Style.TABLE,
    as_json: Json = False,
) -> None:
    """Export a job's best model to files that run elsewhere, and show what a million predictions cost.

    The export is paid for from the job's budget. The exit status is 1 if it fails.
    """
    if export_id is not None and (trial, formats, max_drop) != (None, None, None):
        raise typer.BadParameter(
            "cannot be given with --trial, --formats or --max-drop", param_hint="--export"
        )
    client = connect()
    if to is not None:
        _make(to)  # before the export, which costs money
    if export_id is None:
        wanted = None if formats is None else [format_name.strip() for format_name in formats.split(",")]
        note = "the export may have begun; check the exports on the job's page before you repeat it"
        with maybe_done(note):
            begun = client.export(
                job, trial=trial, formats=wanted, max_cost_usd=max_cost_usd, max_drop=max_drop, wait=False
            )
        export_id = begun.id
        typer.echo(f"{export_id} has begun; tuner export {job} --export {export_id} shows it again", err=True)
    client.wait_export(job, export_id)
    answer = client.get_export(job, export_id, requests_per_second=per_second)
    Output(as_json, style).show(answer, _shown)
    if to is not None:
        _download(client, job, answer, to)
    if answer.state == "failed":
        raise typer.Exit(1)


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(
            f"{directory} cannot be created: {error.strerror}", param_hint="--to"
        ) from error


def _download(client: Client, job: str, answer: Export, to: Path) -> None:
    for variant in answer.variants:
        if variant.file is not None:
            suffix = variant.file.rpartition(".")[2]
            client.download_variant(job, answer.id, variant.format, to=to / f"{variant.format}.{suffix}")


def _shown(answer: Export) -> RenderableType:
    parts: list[RenderableType] = []
    where = f"{answer.trial} at step {answer.step}" + (
        f" on {answer.instance_type}" if answer.instance_type else ""
    )
    before = "" if answer.metric is None else f", {answer.metric_name} {number(answer.metric)} before export"
    parts.append(Text(f"{answer.id} {answer.state}: {where}, {usd(answer.cost_usd)}{before}"))
    if answer.code is not None:
        parts.append(Text(f"{answer.code}: {answer.detail}"))
    delivered = [variant for variant in answer.variants if variant.file is not None]
    if delivered:
        parts += [Text(""), _table(answer, delivered), Text(""), Text(_legend(answer, delivered[0]))]
    missing = [variant for variant in answer.variants if variant.file is None]
    parts += [
        Text(f"{variant.format} was not delivered [{variant.code}]: {variant.detail}") for variant in missing
    ]
    return Group(*parts)


def _table(answer: Export, variants: Sequence[ExportVariant]) -> RenderableType:
    def latency(variant: ExportVariant, batch: int) -> VariantLatency:
        return next(each for each in variant.latency if each.batch == batch)

    def shown_price(variant: ExportVariant, price: Callable[[ServingPrice], float]) -> str:
        serving = _own_market(answer, variant)
        return "" if serving is None else usd(price(serving))

    return tables.rows(
        variants,
        [
            ("format", lambda variant: variant.format),
            (answer.metric_name, lambda variant: "" if variant.metric is None else number(variant.metric)),
            ("bytes", lambda variant: variant.bytes),
            ("load ms", lambda variant: number(round(variant.load_ms or 0, 1))),
            ("p50 ms", lambda variant: number(round(latency(variant, 1).p50_ms, 3))),
            ("p99 ms", lambda variant: number(round(latency(variant, 1).p99_ms, 3))),
            ("1/s", lambda variant: number(round(latency(variant, 1).per_second))),
            ("1/s of 64", lambda variant: number(round(latency(variant, 64).per_second))),
            (
                "real time",
                lambda variant: shown_price(variant, lambda price: price.real_time_usd_per_million),
            ),
            ("batch", lambda variant: shown_price(variant, lambda price: price.batch_usd_per_million)),
            ("front", lambda variant: "*" if variant.format in answer.pareto else ""),
        ],
    )


def _own_market(answer: Export, variant: ExportVariant) -> ServingPrice | None:
    """Return what serving costs on the market that the export ran on, or on the cheapest one if that has no price."""
    own = (serving for serving in variant.serving if serving.market == answer.market)
    return next(own, next(iter(variant.serving), None))


def _legend(answer: Export, variant: ExportVariant) -> str:
    serving = _own_market(answer, variant)
    machine = (
        ""
        if serving is None
        else f", on {serving.instance_type}, {serving.market}, at {usd(serving.usd_per_hour)}/h; --json has the other markets"
    )
    return (
        f"real time and batch: dollars per million predictions, at {answer.requests_per_second:g} requests per second and in batches{machine}. "
        f"Measured with {answer.threads} thread(s); * marks the Pareto front of metric and dollars in batches."
    )
