"""Plot regret against money as an SVG file, with a panel for each family of tables and number of workers."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search import statistics
from benchmarks.search.methods import Method
from benchmarks.search.runner import Result
from benchmarks.search.tables import family

POINTS = 120
TICKS = [2, 5, 10, 20, 50, 100]
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
DASHES = ("-", "--", ":", "-.")


def plot(results: Sequence[Result], methods: Mapping[str, Method], folder: Path) -> str:
    """Write regret.svg. Return a message that says so, or what is missing."""
    try:
        import matplotlib
    except ImportError:
        return "\nNo plot: matplotlib is not installed (pip install '.[bench]')."
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "search", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot

    panels = sorted({(r.task.workers, family(r.task.table)) for r in results})
    if not panels:
        return "\nNo plot: there are no results."
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(4.2 * len(panels), 4), squeeze=False, layout="constrained"
    )
    for axis, (workers, group) in zip(axes[0], panels, strict=True):
        here = [r for r in results if r.task.workers == workers and family(r.task.table) == group]
        _panel(axis, here, methods)
        axis.set(title=f"{group}, {workers} workers", xlabel="dollars, in mean full trainings")
    axes[0][0].set_ylabel("mean normalised regret")
    figure.legend(
        *axes[0][-1].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    path = folder / "regret.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return f"\nPlot: {path}"


def _panel(axis: Any, results: Sequence[Result], methods: Mapping[str, Method]) -> None:
    cells = statistics.by_cell(results)
    tables = {table for _, table, _ in cells}
    largest = max(r.task.budget for r in results)
    styles = zip(cycle(COLOURS), (dash for dash in DASHES for _ in COLOURS), strict=False)
    for (name, method), (colour, dash) in zip(methods.items(), styles, strict=False):
        runs = [of for (cell_method, _, _), of in cells.items() if cell_method == name]
        if len(runs) < len(tables):
            continue
        reached = max(run.task.budget for run in runs[0])
        grid = np.geomspace(largest / 50, reached, POINTS)
        curves = [
            np.array([statistics.at(r.curve, grid) for r in of if r.task.budget == reached]) for of in runs
        ]
        low, high = np.percentile(
            np.mean([statistics.resampled(c, i) for i, c in enumerate(curves)], axis=0), [2.5, 97.5], axis=0
        )
        mean = np.mean([c.mean(axis=0) for c in curves], axis=0)
        axis.plot(grid, mean, dash, color=colour, label=method.title, lw=2.4 if name == "ours" else 1.1)
        axis.fill_between(grid, low, high, color=colour, alpha=0.15, lw=0)
    axis.set(ylim=(0, 0.8), xscale="log")
    axis.set_xticks(TICKS, [str(tick) for tick in TICKS])
    axis.minorticks_off()
    axis.grid(alpha=0.3, lw=0.5)
