"""Plots of a job: learning curves, best metric against dollars, the Pareto front, and the bill.

The figures are independent of `pyplot`, so drawing one opens no window. The colours can be distinguished by colour-blind
readers (Okabe and Ito, 2008).
"""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from tuner.domain.money import plain
from tuner.schemas.answers import Bill, Curves, JobReport, TrialBill, TrialCurve
from tuner.schemas.best import Pareto

if TYPE_CHECKING:
    from tuner.client.job import Acting

ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PURPLE = (
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
OTHERS = "#9aa5b1"
LEADERS = ((BLUE, "o"), (RED, "s"), (GREEN, "^"), (PURPLE, "D"), (ORANGE, "v"))
KINDS = (
    ("train", BLUE, ""),
    ("setup", SKY, "//"),
    ("restore", GREEN, "\\\\"),
    ("checkpoint", YELLOW, ".."),
    ("lost", RED, "xx"),
    ("idle", "#bbbbbb", "--"),
    ("export", PURPLE, "oo"),
)
BARS = 12
# If the largest cost is more than this many times the smallest, costs are drawn on a logarithmic scale.
WIDE = 30.0


class NotebookFigure(Figure):
    """A figure that a notebook displays as PNG, even if matplotlib's notebook integration is not set up."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self.savefig(png, format="png", dpi=100)
        return png.getvalue()


@dataclass(frozen=True, slots=True)
class PlotData:
    """The data of a job to draw. Fields that no requested plot needs are None."""

    job: "Acting"
    curves: Curves | None = None
    report: JobReport | None = None
    pareto: Pareto | None = None
    bill: Bill | None = None

    @property
    def metric(self) -> str:
        return str(self.job.objective["metric"])

    @property
    def sign(self) -> int:
        """The factor by which a metric is multiplied so that larger is better: 1 or -1."""
        return -1 if self.job.objective.get("mode") == "min" else 1


def draw(data: PlotData, kinds: Sequence[str]) -> Figure:
    """Draw one plot per kind, with two plots in a row of the figure."""
    columns = min(2, len(kinds))
    rows = math.ceil(len(kinds) / columns)
    figure = NotebookFigure(6.4 * columns, 4.4 * rows)
    _text(figure.suptitle, data.job.name)
    for axes, kind in zip(figure.subplots(rows, columns, squeeze=False).flat, kinds, strict=False):
        DRAWN[kind](axes, data)
        axes.grid(visible=True, alpha=0.25)
        axes.set_axisbelow(True)
    return figure


def draw_curves(axes: Axes, data: PlotData) -> None:
    """Draw the learning curves of all trials. The best trials have colours, rungs are lines, promotions triangles, and preemptions crosses."""
    assert data.curves is not None
    began = [trial for trial in data.curves.trials if trial.steps]
    ranked = sorted(began, key=lambda trial: _rank(trial, data), reverse=True)
    rest = [list(zip(trial.steps, _numbers(trial.metric), strict=True)) for trial in ranked[len(LEADERS) :]]
    axes.add_collection(LineCollection(rest, colors=OTHERS, linewidths=0.8, alpha=0.6))
    for rung in data.job.rungs:
        axes.axvline(rung, color="#555555", linewidth=0.8, linestyle=":", zorder=0)
    for trial, (colour, marker) in zip(ranked, LEADERS, strict=False):
        sparse = max(1, len(trial.steps) // 10)
        axes.plot(
            trial.steps,
            _numbers(trial.metric),
            color=colour,
            marker=marker,
            markevery=sparse,
            markersize=4,
            linewidth=1.6,
            label=trial.id,
        )
    _marks(axes, ranked, "promotions_at", marker="^", color="#333333", label="promoted")
    _marks(axes, ranked, "preemptions_at", marker="X", color=RED, label="preempted")
    axes.autoscale_view()
    _labels(axes, "Learning curves", str(data.job.fidelity.get("unit", "step")), data.metric)
    _legend(axes)


def draw_best(axes: Axes, data: PlotData) -> None:
    """Draw the best metric so far against the dollars that the job had spent."""
    assert data.report is not None
    points = [(point.spent_usd, point.value) for point in data.report.best_curve]
    if points:
        # The last point repeats the best metric, so that the line reaches the present. Only the points include the part of running
        # leases that is not posted, so the newest of them may lie beyond what the job has spent.
        now_usd, newest = max(data.report.spent_usd, points[-1][0]), points[-1][1]
        spent, best = zip(*points, (now_usd, newest), strict=True)
        axes.step(
            spent,
            best,
            where="post",
            color=BLUE,
            linewidth=1.6,
            marker="o",
            markersize=3,
            label="best so far",
        )
    budget = data.job.budget.get("usd")
    if budget is not None:
        axes.axvline(budget, color=RED, linestyle="--", linewidth=1.2, label="budget")
    target = data.job.objective.get("target")
    if target is not None:
        axes.axhline(target, color=GREEN, linestyle="-.", linewidth=1.2, label="target")
    _labels(axes, "Best against dollars", "dollars spent by the job", data.metric)
    axes.set_xlim(left=0)
    _legend(axes)


def draw_pareto(axes: Axes, data: PlotData) -> None:
    """Draw the Pareto front: the best metric that can be reached for each training cost.

    If the job has two objectives, draw both metrics against each other. The colour of a point is then its training cost.
    """
    assert data.pareto is not None
    second = data.pareto.second_metric
    if second is not None:
        triples = [(point.metrics[second], point.metric, point.cost_usd) for point in data.pareto.items]
        xs, ys, costs = zip(*triples, strict=True) if triples else ((), (), ())
        drawn = axes.scatter(xs, ys, c=costs, cmap="viridis", s=24)
        axes.figure.colorbar(drawn, ax=axes, label="dollars to train one configuration")
        _labels(axes, "Pareto front", second, data.metric)
        return
    points = [(point.cost_usd, point.metric) for point in data.pareto.items if point.metric is not None]
    points.sort()
    if points:
        cost, metric = zip(*points, strict=True)
        axes.step(cost, metric, where="post", color=GREEN, linewidth=1.6, marker="D", markersize=4)
        if cost[0] > 0 and cost[-1] / cost[0] > WIDE:
            axes.set_xscale("log")
    _labels(axes, "Pareto front", "dollars to train one configuration", data.metric)


def draw_bill(axes: Axes, data: PlotData) -> None:
    """Draw the cost of the most expensive trials by kind. All other trials share one bar."""
    assert data.bill is not None
    names, kinds = bars(data.bill)
    left = [0.0] * len(names)
    for kind, colour, hatch in KINDS:
        widths = [costs.get(kind, 0.0) for costs in kinds]
        if any(widths):
            axes.barh(names, widths, left=left, color=colour, hatch=hatch, edgecolor="white", label=kind)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=7)
    _labels(axes, f"Bill: {plain(data.bill.total_usd)} dollars", "dollars", "")
    _legend(axes)


DRAWN = {"curves": draw_curves, "best": draw_best, "pareto": draw_pareto, "bill": draw_bill}


def bars(bill: Bill) -> tuple[list[str], list[dict[str, float]]]:
    """Return the names of the bars and, for each bar, the cost by kind. The most expensive trial comes first.

    Trials beyond the first BARS share the last bar. Spend that does not belong to a trial, such as the cost of exports, is left out.
    """
    ranked = sorted(bill.trials, key=lambda trial: trial.total_usd, reverse=True)
    shown, rest = ranked[:BARS], ranked[BARS:]
    names, kinds = [trial.trial for trial in shown], [trial.by_kind for trial in shown]
    if rest:
        names.append(f"{len(rest)} others")
        kinds.append(_sum(rest))
    return names, kinds


def _sum(trials: Sequence[TrialBill]) -> dict[str, float]:
    return {kind: sum(trial.by_kind.get(kind, 0.0) for trial in trials) for kind, *_ in KINDS}


def _rank(trial: TrialCurve, data: PlotData) -> tuple[bool, float]:
    """Return the key by which trials are ranked; greater is better.

    The job's best trial comes first, because with proxies its metric may be lower than one of an earlier stage.
    """
    best = data.job.best_so_far
    reached = -math.inf if trial.best_metric is None else data.sign * trial.best_metric
    return best is not None and trial.id == best.trial, reached


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _marks(axes: Axes, trials: Sequence[TrialCurve], what: str, **style: Any) -> None:
    points = [
        (step, metric)
        for trial in trials
        for step, metric in zip(trial.steps, trial.metric, strict=True)
        if step in getattr(trial, what) and metric is not None
    ]
    if points:
        steps, metrics = zip(*points, strict=True)
        axes.scatter(steps, metrics, s=22, zorder=3, linewidths=0.5, edgecolors="white", **style)


def _labels(axes: Axes, title: str, x: str, y: str) -> None:
    _text(axes.set_title, title)
    _text(axes.set_xlabel, x)
    _text(axes.set_ylabel, y)


def _text(put: Any, text: str) -> None:
    """Set a label with the method `put` of `Axes`, without parsing `$…$` in it as a formula: names chosen by users may contain dollar signs."""
    put(text, parse_math=False)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        for text in axes.legend(fontsize=7, framealpha=0.7).get_texts():
            text.set_parse_math(False)
