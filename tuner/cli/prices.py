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
    from tuner.schemas.prices import CatalogueAge, Prices


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

    from tuner.api.routers.prices import catalogue_age
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
    table = tables.plain(
        "cloud",
        "region",
        "instance type",
        "vCPUs",
        "GiB",
        "accelerators",
        "on demand",
        "spot",
        "dates",
    )
    for listing in answer.items:
        gpus = f"{listing.accelerators:g} {listing.accelerator} of {number(listing.gpu_memory_gib)} GiB"
        dates = dict.fromkeys(
            date
            for price, date in (
                (listing.on_demand_usd_per_hour, listing.on_demand_date),
                (listing.spot_usd_per_hour, listing.spot_date),
            )
            if price is not None
        )
        table.add_row(
            listing.cloud,
            listing.zone or listing.region,
            listing.instance_type,
            f"{listing.vcpus:g}",
            number(listing.memory_gib),
            gpus if listing.accelerator else "",
            usd(listing.on_demand_usd_per_hour),
            usd(listing.spot_usd_per_hour),
            ", ".join(dates),
        )
    lines: list[RenderableType] = [table if answer.items else Text("no machine matches all of this")]
    if answer.total > len(answer.items):
        lines.append(Text(f"{len(answer.items)} of {answer.total}: more with --limit"))
    lines.append(_catalogue(answer.catalogue))
    if answer.warning:
        lines.append(Text(answer.warning, style="bold"))
    return Group(*lines)


def _catalogue(answer: CatalogueAge) -> RenderableType:
    return Text(f"{answer.listings} prices, {answer.name}: {answer.age}")
