"""Answers about spend by group."""

from typing import Any

from tuner.domain.money import NS_PER_HOUR, Money
from tuner.domain.time import Instant, rfc3339
from tuner.schemas import spend as show
from tuner.service.cluster_meter import ClusterCost
from tuner.service.spend import SpendRow, SpendView

FIGURES = tuple(show.SpendFigures.model_fields)


def spend_of(view: SpendView) -> show.SpendAnswer:
    return show.SpendAnswer(
        group_by=list(view.group_by),
        since=_time(view.since),
        until=_time(view.until),
        timezone=view.timezone,
        items=[show.SpendGroup(keys=_keys(view, row), **_figures(row)) for row in view.rows],
        total=show.SpendFigures(**_figures(view.total)),
        cluster_idle_usd=None if view.cluster is None else _usd(view.cluster.idle),
        cluster=None if view.cluster is None else cluster_of(view.cluster),
    )


def cluster_of(cost: ClusterCost) -> show.ClusterCost:
    kinds = [
        show.MachineCost(
            instance_type=one.kind[0],
            market=one.kind[1],
            node_hours=_hours(one.alive_ns),
            idle_hours=_hours(one.idle_ns),
            usd=one.cost.usd,
            idle_usd=one.idle.usd,
        )
        for one in cost.kinds
    ]
    return show.ClusterCost(
        known_since=rfc3339(cost.since),
        unseen_hours=_hours(cost.unseen_ns),
        unpriced_node_hours=_hours(cost.unpriced_ns),
        usd=_usd(cost.cost),
        kinds=kinds,
    )


def spend_table(view: SpendView) -> list[list[str]]:
    """Return the header and the rows of a CSV file. Tags are escaped, so that a spreadsheet does not run them as formulas."""
    lines = [[*view.group_by, *FIGURES]]
    for row in view.rows:
        figures = _figures(row)
        shown = ["" if figures[name] is None else _plain(figures[name]) for name in FIGURES]
        lines.append([*(_inert(key or "") for key in row.keys), *shown])
    return lines


def _keys(view: SpendView, row: SpendRow) -> dict[str, str | None]:
    return dict(zip(view.group_by, row.keys, strict=True))


def _figures(row: SpendRow) -> dict[str, Any]:
    per_trial = row.usd_per_completed
    return {
        "usd": row.cost.usd.usd,
        "gpu_hours": round(row.cost.gpu_hours, 9),
        "jobs": row.jobs,
        "trials": row.trials,
        "completed_trials": row.completed,
        "usd_per_completed_trial": None if per_trial is None else per_trial.usd,
        "preemptions": row.preemptions,
        "retries": row.retries,
        "lost_usd": row.lost.usd.usd,
        "lost_gpu_hours": round(row.lost.gpu_hours, 9),
    }


def _usd(amount: Money | None) -> float | None:
    return None if amount is None else amount.usd


def _hours(ns: int) -> float:
    return round(ns / NS_PER_HOUR, 6)


def _plain(value: float) -> str:
    """Format a number without an exponent, because some programs that read CSV do not understand exponents."""
    return str(value) if isinstance(value, int) else f"{value:.9f}".rstrip("0").rstrip(".")


def _inert(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _time(at: Instant | None) -> str | None:
    return None if at is None else rfc3339(at)
