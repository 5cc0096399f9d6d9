"""Tables that show `tuner best`, `tuner best-of-all` and `tuner pareto`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.cli import tables
from tuner.cli.escape import config, number, usd
from tuner.cli.render import best_line

if TYPE_CHECKING:
    from tuner.schemas import best as show


def best(found: show.BestAnswer, metric: str = "metric") -> RenderableType:
    lines = _choice(found, metric, found.pricing)
    if found.next_better:
        lines.append(
            Text(f"next better: {best_line(found.next_better, metric)}{_for(found.next_dollar.next_point)}")
        )
    return Group(*lines, *_forecast(found.next_dollar.forecast))


def best_of_all(found: show.BestOfAll, metric: str = "metric") -> RenderableType:
    return Group(Text(f"of {found.job}:"), *_choice(found, metric, found.pricing))


def pareto(found: show.Pareto) -> RenderableType:
    shown = tables.plain("cost to train", "metric", "trial", "step", "configuration")
    for point in found.items:
        shown.add_row(_cost(point), number(point.metric), point.trial, str(point.step), config(point.config))
    return Group(shown, *_pricing(found.pricing))


def _choice(found: show.PricedBest, metric: str, pricing: show.Pricing | None) -> list[RenderableType]:
    lines: list[RenderableType] = [Text(best_line(found, metric), style="bold")]
    grid = Table.grid(padding=(0, 2))
    for name, value in found.config.items():
        grid.add_row(f"  {name}", number(value) if isinstance(value, float) else str(value))
    lines.append(grid)
    if found.checkpoint:
        lines.append(Text(f"checkpoint: {found.checkpoint}", no_wrap=True))
    if pricing is not None and found.cost_low_usd != found.cost_high_usd:
        lines.append(Text(f"between {usd(found.cost_low_usd)} and {usd(found.cost_high_usd)} there"))
    return [*lines, *_pricing(pricing)]


def _pricing(found: show.Pricing | None) -> list[RenderableType]:
    if found is None:
        return []
    place = f" in {found.region}" if found.region else ""
    price = (
        f"{found.instance_type}{place}, {found.market}: {usd(found.usd_per_hour)}/h ({found.price_source})"
    )
    speed = f"{number(found.relative_time)} times as long as where it ran ({found.speed_source})"
    return [Text(f"priced on {price}, {speed}"), *(Text(f"  {note}") for note in found.notes)]


def _cost(point: show.PricedBest) -> str:
    if point.cost_low_usd == point.cost_high_usd:
        return usd(point.cost_to_train_usd)
    return f"{usd(point.cost_to_train_usd)} ({usd(point.cost_low_usd)} to {usd(point.cost_high_usd)})"


def _for(point: show.NextPoint | None) -> str:
    return "" if point is None else f", {usd(point.extra_usd)} more for {number(point.gain)}"


def _forecast(found: show.Forecast | None) -> list[RenderableType]:
    if found is None:
        return []
    if not found.items:
        return [Text(f"training longer: {found.reason}")]
    lines: list[RenderableType] = [Text("training longer, estimated from trials that did (80 % interval):")]
    for one in found.items:
        gain = f"gains {number(one.expected_gain)} ({number(one.low_gain)} to {number(one.high_gain)})"
        way = f"{one.trial} from step {one.from_step} to {one.to_step}"
        lines.append(Text(f"  {way} for {usd(one.extra_usd)} {gain}"))
    return lines
