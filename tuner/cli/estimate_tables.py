"""Tables that show estimates on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.cli import tables
from tuner.cli.escape import number, usd

if TYPE_CHECKING:
    from tuner.schemas import estimate_answers as show


def estimate(found: show.Estimate) -> RenderableType:
    return Group(*_parts(found), Text(f"{found.prices} ({found.catalogue})"))


def _parts(found: show.Estimate) -> Iterator[RenderableType]:
    if found.run is not None:
        yield from _run(found.run)
    if found.choices is not None:
        yield from _choices(found.choices)
    if found.scaling is not None:
        yield from _scaling(found.scaling)
    if found.compute_optimal is not None:
        yield from _compute(found.compute_optimal)
    if found.recurring is not None:
        yield _yearly(found.recurring)
    if found.ownership is not None:
        yield _ownership(found.ownership)


def _run(found: show.RunEstimate) -> Iterator[RenderableType]:
    yield _candidates(found.candidates)
    yield Text(f"{len(found.candidates)} of {found.count} that fit as described")
    if found.with_changes:
        yield Text("\nwould fit with changes", style="bold")
        yield _candidates(found.with_changes[:5])
        yield Text(f"{len(found.with_changes[:5])} of {found.with_changes_count}")
    named = {
        "cheapest": found.cheapest,
        "cheapest on demand": found.cheapest_on_demand,
        "cheapest in time": found.cheapest_in_time,
        "fastest": found.fastest,
    }
    table = Table.grid(padding=(0, 2))
    for name, one in named.items():
        if one is not None:
            where = f"{one.instance_type} in {one.region}, {one.market.replace('_', ' ')}"
            table.add_row(name, where, f"{number(one.hours)} h", usd(one.usd))
    yield table
    yield Text(
        "dollars are of whole machines; a job of the service pays its trials' share of a machine (tuner plan)"
    )
    if found.memory_gib is not None:
        yield Text(f"GPU memory as described: {found.memory_gib.total:.1f} GiB")
    yield from (Text(f"! {warning}", style="bold") for warning in found.warnings)
    yield from (Text(f"left out, {one.count}: {one.reason}") for one in found.left_out)
    yield from (Text(f"assumed, {one.name}: {one.value} ({one.why})") for one in found.assumptions)


def _candidates(found: Sequence[show.Candidate]) -> Table:
    table = tables.plain(
        "machine", "where", "market", "GPUs", "speed", "hours", "dollars", "from", "to", "per $", ""
    )
    for one in found:
        where = f"{one.region} ({len(one.zones)} zones)" if len(one.zones) > 1 else one.region
        notes = [*(one.fit.changes if one.fit else []), *_late(one)]
        table.add_row(
            one.instance_type,
            "".join(one.zones) if len(one.zones) == 1 else where,
            one.market,
            f"{one.gpus} of {one.accelerators:g} {one.accelerator}",
            one.basis,
            number(one.hours),
            usd(one.usd),
            usd(one.usd_range[0]),
            usd(one.usd_range[1]),
            number(one.per_dollar),
            ", ".join(notes),
        )
    return table


def _late(one: show.Candidate) -> list[str]:
    if one.meets_deadline is not False:
        return []
    return ["may be late" if one.meets_deadline_on_average else "late"]


def _choices(found: show.ChoicesEstimate) -> Iterator[RenderableType]:
    table = tables.plain("choice", "an hour", "hours", "dollars", "")
    for one in found.options:
        late = "late" if one.meets_deadline is False else ""
        table.add_row(one.name, usd(one.usd_per_hour * one.machines), number(one.hours), usd(one.usd), late)
    yield table
    yield Text(f"cheapest: {found.cheapest}; in time: {found.cheapest_in_time or 'none'}")


def _scaling(found: show.ScalingEstimate) -> Iterator[RenderableType]:
    table = tables.plain("GPUs", "link", "all-reduce ms", "efficiency", "at best", "speedup")
    for one in found.points:
        table.add_row(
            str(one.gpus),
            one.link,
            number(one.allreduce_seconds * 1e3),
            f"{one.efficiency:.0%}",
            f"{one.overlapped:.0%}",
            number(one.speedup),
        )
    yield table
    if found.machines:
        yield _machines(found.machines)


def _machines(found: Sequence[show.Machines]) -> Table:
    table = tables.plain("GPUs", "machines", "where", "hours", "dollars", "$ for an hour less", "pays")
    for one in found:
        table.add_row(
            str(one.gpus),
            f"{one.machines} x {one.instance_type}",
            one.region,
            number(one.hours),
            usd(one.usd),
            usd(one.usd_per_hour_saved),
            one.pays,
        )
    return table


def _compute(found: show.ComputeEstimate) -> Iterator[RenderableType]:
    table = tables.plain("law", "parameters", "tokens", "tokens/parameter", "loss")
    for one in found.optima:
        table.add_row(
            one.law,
            f"{one.parameters:.3g}",
            f"{one.tokens:.3g}",
            number(one.tokens_per_parameter),
            number(one.loss),
        )
    yield Text(f"{found.flops:.3g} FLOPs")
    yield table
    yield from (Text(f"! {caveat}") for caveat in found.caveats)


def _yearly(found: Sequence[show.Yearly]) -> Table:
    table = tables.plain("training", "a run", "runs a year", "a month", "a year", "saved a year")
    for one in found:
        table.add_row(
            one.name,
            usd(one.usd_per_run),
            number(one.runs_per_year),
            usd(one.usd_per_month),
            usd(one.usd_per_year),
            usd(one.saving_usd_per_year),
        )
    return table


def _ownership(found: show.OwnershipEstimate) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    even = found.break_even_utilisation
    table.add_row("owned, an hour of use", usd(found.owned_usd_per_hour), f"{usd(found.owned_usd)} in all")
    table.add_row("in the cloud", usd(found.cloud_usd_per_hour), f"{usd(found.cloud_usd)} in all")
    table.add_row("cheaper", found.cheaper, f"by {usd(found.saving_usd)}")
    table.add_row("owning pays above", "never" if even is None else f"{even:.1%} of all hours")
    return table
