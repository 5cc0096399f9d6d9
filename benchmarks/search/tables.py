"""Recorded learning curves: one row per configuration, one column per training step."""

from dataclasses import dataclass
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
        return float(self.metric.max())

    @cached_property
    def median(self) -> float:
        return float(np.median(self.metric.max(axis=1)))

    @cached_property
    def worst(self) -> float:
        """Return the best value of the worst row, which counts as found before the first report."""
        return float(self.metric.max(axis=1).min())

    def normalised_regret(self, value: float) -> float:
        """Return the normalised regret: 0 for the best known value, 1 for a median configuration trained in full."""
        return (self.best - value) / (self.best - self.median)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a table in the product's format."""
        from tuner.simulator.table_file import load_table

        table = load_table(path)
        return cls(table.name, table.unit, table.metric, table.step_s)

    def write(self, folder: Path) -> Path:
        """Write the table for `read`, which needs only NumPy."""
        np.savez(path := folder / f"{self.name}.npz", unit=self.unit, metric=self.metric, step_s=self.step_s)
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        with np.load(path, allow_pickle=False) as arrays:
            return cls(path.stem, arrays["unit"], arrays["metric"], arrays["step_s"])


def regrets_of(table: Table, values: Curve) -> Curve:
    """Return the best values as normalised regrets. The worst row counts as found at the start."""
    better = [(spent, value) for spent, value in values if value > table.worst]
    return [(spent, table.normalised_regret(value)) for spent, value in [(0.0, table.worst), *better]]


def find(folder: Path, pattern: str) -> list[Path]:
    """Return the tables of a folder, sorted by name. `pattern` is a glob without the suffix."""
    return sorted(folder.glob(f"{pattern}.npz"))


def family(table: str) -> str:
    """Return the family of a table, such as `lcbench` for `lcbench_higgs`."""
    return table.partition("_")[0]
