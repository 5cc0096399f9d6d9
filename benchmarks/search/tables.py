"""Recorded learning curves: one row a configuration, one column a training step."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Curve = list[tuple[float, float]]  # money in mean trainings, and what it found


@dataclass(frozen=True)
class Table:
    """`unit` (n, d): configurations in the unit cube; `metric` and `step_s` (n, E): value and seconds of each step."""

    name: str
    unit: Array
    metric: Array
    step_s: Array

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
        """Seconds of one mean training to the last step: what budget 1 pays for."""
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
        """The best value of the worst row: what counts as found where nothing was found yet."""
        return float(self.metric.max(axis=1).min())

    def normalised_regret(self, value: float) -> float:
        """0: the best known value; 1: a median configuration trained in full."""
        return (self.best - value) / (self.best - self.median)

    @classmethod
    def load(cls, path: Path) -> Self:
        """As the product reads it."""
        from tuner.simulator.table_file import load_table

        table = load_table(path)
        return cls(table.name, table.unit, table.metric, table.step_s)

    def write(self, folder: Path) -> Path:
        """For `read`, under an interpreter that has NumPy only."""
        np.savez(path := folder / f"{self.name}.npz", unit=self.unit, metric=self.metric, step_s=self.step_s)
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        with np.load(path, allow_pickle=False) as arrays:
            return cls(path.stem, arrays["unit"], arrays["metric"], arrays["step_s"])


def regrets_of(table: Table, values: Curve) -> Curve:
    """Best values as normalised regret, from the start on, where the worst row counts as found."""
    better = [(spent, value) for spent, value in values if value > table.worst]
    return [(spent, table.normalised_regret(value)) for spent, value in [(0.0, table.worst), *better]]


def find(folder: Path, pattern: str) -> list[Path]:
    """The tables of a folder, by name; `pattern` is a glob without the ending."""
    return sorted(folder.glob(f"{pattern}.npz"))


def family(table: str) -> str:
    """`lcbench_higgs` is of the family `lcbench`."""
    return table.partition("_")[0]
