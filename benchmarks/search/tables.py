"""Recorded learning curves: one row a configuration, one column a training step."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


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
        """From an `.npz` without pickles; 16-bit codes, where `metric_aff` or `time_aff` is given, are undone."""
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        space = json.loads(str(arrays["meta"]))["space"]
        metric, time = arrays["metric"].astype(float), arrays["time"].astype(float)
        if "metric_aff" in arrays:
            a, b = arrays["metric_aff"].astype(float)
            metric = metric * a + b
        if "time_aff" in arrays:
            a, b = arrays["time_aff"].astype(float)
            time = np.exp(time * a + b)
        return cls(path.stem, to_unit(arrays["X"].astype(float), space), metric, time)


def to_unit(configs: Array, space: Sequence[Sequence[Any]]) -> Array:
    """Each axis on its own scale, 0 its lower end, 1 its upper."""
    scales = {"log": np.log, "lin": np.asarray, "lin1m": lambda x: np.log(1 - x)}
    unit = np.empty_like(configs)
    for axis, (_, low, high, scale, _) in enumerate(space):
        on_scale = scales[scale]
        low, high = on_scale(low), on_scale(high)
        unit[:, axis] = (on_scale(configs[:, axis]) - low) / (high - low)
    return np.clip(unit, 0, 1)


def find(folder: Path, pattern: str) -> list[Path]:
    """The tables of a folder, by name; `pattern` is a glob without the ending."""
    return sorted(folder.glob(f"{pattern}.npz"))


def family(table: str) -> str:
    """`lcbench_higgs` is of the family `lcbench`."""
    return table.partition("_")[0]
