"""`tuner prices`: list the price catalogue or update it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from tuner.cli import tables
from tuner.cli.arguments import Json
from tuner.cli.escape import number, usd
from tuner.cli.output import Output, connect
from tuner.cli.tables import Format, Style

if TYPE_CHECKING:
    from tuner.schemas.prices import CatalogueAge, PriceListing, Prices


def prices(
    cloud: Annotated[str | None, typer.Option(help="Only this cloud.")] = None,
    region: Annotated[str | None, typer.Option(help="Only this region.")] = None,
    zone: Annotated[str | None, typer.Option(help="Only this zone.")] = None,
    instance_type: Annotated[str | None, typer.Option(help="Only this machine type.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="Only machines with these GPUs.")] = None,
    market: Annotated[
        str | None, typer.Option(help="Only machines with a known price on this market: on_demand or spot.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of prices to list.")] = 100,
    update: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Replace the catalogue of this TUNER_HOME with the prices of this CSV file."
        ),
    ] = None,
    style: Format = Style.TABLE,
    as_json: Json = False,
) -> None:
    """List machine prices with their dates, cheapest first, or update the catalogue."""
    words = {
        "cloud": cloud,
        "region": region,
        "zone": zone,
        "instance_type": instance_type,
        "accelerator": accelerator,
        "market": market,
    }
    if update is None:
        Output(as_json, style).show(connect().prices(limit=limit, **words), _prices)
        return
    if any(words.values()):
        raise typer.BadParameter("give a file or filters, not both", param_hint="--update")
    Output(as_json).show(_update(update), _catalogue)


def _update(file: Path) -> CatalogueAge:
    from datetime import UTC, datetime

    from tuner.api.serialize_prices import catalogue_age
    from tuner.service.catalogue import update
    from tuner.settings import Settings

    settings = Settings.from_env()
    catalogue = update(settings, file)
    if settings.prices:
        typer.echo(
            f"TUNER_PRICES is set: {settings.prices} is used instead of the updated catalogue", err=True
        )
    return catalogue_age(catalogue, datetime.now(UTC).date())


def _prices(answer: Prices) -> RenderableType:
    table = tables.rows(
        answer.items,
        {
            "cloud": lambda row: row.cloud,
            "region": lambda row: row.zone or row.region,
            "instance type": lambda row: row.instance_type,
            "vCPUs": lambda row: f"{row.vcpus:g}",
            "GiB": lambda row: number(row.memory_gib),
            "accelerators": _accelerators,
            "on demand": lambda row: usd(row.on_demand_usd_per_hour),
            "spot": lambda row: usd(row.spot_usd_per_hour),
            "dates": _dates,
        },
    )
    lines: list[RenderableType] = [table if answer.items else Text("no machine matches all filters")]
    if answer.total > len(answer.items):
        lines.append(Text(f"{len(answer.items)} of {answer.total}: more with --limit"))
    lines.append(_catalogue(answer.catalogue))
    if answer.warning:
        lines.append(Text(answer.warning, style="bold"))
    return Group(*lines)


def _accelerators(row: PriceListing) -> str:
    if not row.accelerator:
        return ""
    return f"{row.accelerators:g} {row.accelerator} of {number(row.gpu_memory_gib)} GiB"


def _dates(row: PriceListing) -> str:
    """Return the dates of a machine's known on-demand and spot prices, separated by a comma if they differ."""
    prices = ((row.on_demand_usd_per_hour, row.on_demand_date), (row.spot_usd_per_hour, row.spot_date))
    return ", ".join(dict.fromkeys(date for price, date in prices if price is not None))


def _catalogue(answer: CatalogueAge) -> RenderableType:
    return Text(f"{answer.listings} prices, {answer.name}: {answer.age}")
