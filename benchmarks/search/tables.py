"""Recorded learning curves: one row per configuration, one column per training step."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Curve = list[tuple[float, float]]  # money in mean trainings, and the best value found


@dataclass(frozen=True)
class Table:
    """A table with n configurations of d parameters, trained for E steps."""

    name: str
    unit: Array  #: (n, d) configurations in the unit cube.
    metric: Array  #: (n, E) value after each step.
    step_s: Array  #: (n, E) seconds of each step.
    #: (n, E) the values without noise, if `metric` has noise. Regrets are measured with these.
    exact: Array | None = None

    @property
    def _true(self) -> Array:
        return self.metric if self.exact is None else self.exact

    @property
    def configs(self) -> int:
        return len(self.unit)

    @property
    def dims(self) -> int:
        return int(self.unit.shape[1])

    @property
    def steps(self) -> int:
        return int(self.metric.shape[1])

    @cached_property
    def full_s(self) -> float:
        """Return the mean seconds of a training to the last step, which a budget of 1 pays for."""
        return float(self.step_s.sum(axis=1).mean())

    @cached_property
    def mean_step_s(self) -> float:
        return float(self.step_s.mean())

    @cached_property
    def best(self) -> float:
        return float(self._true.max())

    @cached_property
    def median(self) -> float:
        return float(np.median(self._true.max(axis=1)))

    @cached_property
    def worst(self) -> float:
        """Return the best value of the worst row, which counts as found before the first report."""
        return float(self._true.max(axis=1).min())

    def normalised_regret(self, value: float) -> float:
        """Return the normalised regret: 0 for the best known value, 1 for a median configuration trained in full."""
        return (self.best - value) / (self.best - self.median)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a table in the product's format."""
        from tuner.simulator.table_file import load_table

        table = load_table(path)
        return cls(table.name, table.unit, table.metric, table.step_s)

    def with_metric(self, noisy: Array) -> "Table":
        """Return this table with noisy values, of which a run reports the exact ones."""
        return replace(self, metric=noisy, exact=self.metric)

    def exact_of(self, value: float) -> float:
        """Return the value without noise where a run has found `value`, which occurs only once in a table with noise."""
        if self.exact is None:
            return value
        return float(self.exact.flat[np.abs(self.metric - value).argmin()])

    def write(self, folder: Path) -> Path:
        """Write the table for `read`, which needs only NumPy."""
        columns: dict[str, Any] = {"unit": self.unit, "metric": self.metric, "step_s": self.step_s}
        if self.exact is not None:
            columns["exact"] = self.exact
        np.savez(path := folder / f"{self.name}.npz", **columns)
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        with np.load(path, allow_pickle=False) as arrays:
            exact = arrays.get("exact")
            return cls(path.stem, arrays["unit"], arrays["metric"], arrays["step_s"], exact)


def with_noise(path: Path, noise: float, folder: Path) -> tuple[Path, Table]:
    """Add normal noise to each value of a table. Write the noisy table to `folder`, in the product's format.

    Args:
        path: The table.
        noise: The standard deviation, as a share of the difference between the best and the median row.
        folder: Where to write the noisy table, under the same name.

    Returns:
        The noisy file, and the table for all other methods.
    """
    table = Table.load(path)
    with np.load(path, allow_pickle=False) as arrays:
        columns = {name: arrays[name] for name in arrays.files if name not in ("metric", "metric_aff")}
        coded = np.asarray(arrays["metric"], dtype=np.float64)
        if "metric_aff" in arrays:
            slope, intercept = arrays["metric_aff"]
            coded = coded * slope + intercept
    drawn = np.random.default_rng(0).standard_normal(coded.shape)
    np.savez(
        noisy := folder / path.name, metric=coded + noise * (table.best - table.median) * drawn, **columns
    )
    return noisy, table.with_metric(Table.load(noisy).metric)


def regrets_of(table: Table, values: Curve) -> Curve:
    """Return the best values as normalised regrets. The worst row counts as found at the start.

    In a table with noise, a run takes the highest value for the best. Its regret is that of this value without noise, so it may rise.
    """
    if table.exact is None:
        found = [(spent, value) for spent, value in values if value > table.worst]
    else:
        found = [(spent, table.exact_of(value)) for spent, value in values]
    return [(spent, table.normalised_regret(value)) for spent, value in [(0.0, table.worst), *found]]


def find(folder: Path, pattern: str) -> list[Path]:
    """Return the tables of a folder, sorted by name. `pattern` is a glob without the suffix."""
    return sorted(folder.glob(f"{pattern}.npz"))


def family(table: str) -> str:
    """Return the family of a table, such as `lcbench` for `lcbench_higgs`."""
    return table.partition("_")[0]
