"""Run jobs over recorded learning curves: a table of configurations with the metric and the seconds of each step.

- `RecordedTable` holds the table. Budgets over a table are counted in trainings: 1 is the mean cost of training one row
  to its last step.
- `RowsSampler` restricts a sampler to the table: it replaces a proposal by the nearest unused row, in the unit cube of
  the search space.
- `TableTraining` trains by looking up the table.
- `BestCurve` and `TraceWriter` record the results of a simulated job while it runs: the best value against the money
  spent, and a trace.

For a `lin1m` parameter x, small distances from 1 matter, so it is searched as the parameter `1-x` on a log scale.
`RecordedTable.shown` converts a configuration back to the table's own names and values.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from tuner.database.codec import encode
from tuner.domain import events as ev
from tuner.domain.ids import trial_number
from tuner.domain.money import ZERO, Money
from tuner.domain.space import Categorical, Config, Float, Int, Parameter, Space, Value
from tuner.domain.time import NS
from tuner.simulator.journal import Committed, Tables
from tuner.simulator.world import SimulatedRun
from tuner.tuning.samplers import Sampler
from tuner.tuning.samplers.base import Forecast

COMPLEMENT = "1-"  # prefix of a parameter that is searched as 1 minus its value
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RecordedTable:
    """A table of n configurations with d parameters. No two rows have the same configuration."""

    name: str
    space: Space
    unit: Floats  #: Shape (n, d): each row's position in the unit cube.
    metric: Floats  #: Shape (n, steps): higher is better.
    step_s: Floats  #: Shape (n, steps): seconds of each step.
    configs: list[Config]

    @property
    def steps(self) -> int:
        return int(self.metric.shape[1])

    @cached_property
    def full_s(self) -> float:
        """Mean seconds of training one row to its last step on one worker, which is a budget of 1."""
        return float(self.step_s.sum(axis=1).mean())

    @cached_property
    def mean_step_s(self) -> float:
        return float(self.step_s.mean())

    def lasting(self, full_s: float) -> "RecordedTable":
        """Return a table with the same curves, scaled in time so that a mean training takes `full_s` seconds."""
        return replace(self, step_s=self.step_s * (full_s / self.full_s))

    @cached_property
    def best(self) -> float:
        return float(self.metric.max())

    @cached_property
    def median(self) -> float:
        """The median of the rows' best values: the expected result of one random configuration that is trained to the end."""
        return float(np.median(self.metric.max(axis=1)))

    def normalised_regret(self, value: float) -> float:
        """Return the regret of a metric value, scaled to 0 at the best value of the table and 1 at `median`."""
        return (self.best - value) / (self.best - self.median)

    def unit_of(self, config: Mapping[str, Value]) -> Floats:
        """Return the configuration's position in the unit cube."""
        return np.array([scale(config[name]) for name, scale in self._scales])

    @cached_property
    def _scales(self) -> list[tuple[str, Callable[[Any], float]]]:
        return [(name, place(parameter, math.log)) for name, parameter in self.space.parameters.items()]

    def row(self, config: Mapping[str, Value]) -> int | None:
        """Return the row of exactly this configuration, or None."""
        return self._rows.get(tuple(map(config.get, self.space.parameters)))

    @cached_property
    def _rows(self) -> dict[tuple[Value, ...], int]:
        return {tuple(config.values()): row for row, config in enumerate(self.configs)}

    def shown(self, config: Mapping[str, Value]) -> Config:
        """Return the configuration as the table file writes it: a parameter `1-x`, which the sampler uses in place of `x`, is
        converted back to `x`.
        """
        return {
            name.removeprefix(COMPLEMENT): 1 - value
            if name.startswith(COMPLEMENT) and isinstance(value, float)
            else value
            for name, value in config.items()
        }


def place(parameter: Parameter, log: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that maps values of the parameter to [0, 1], linearly on the parameter's scale.

    `log` is `math.log`, or `numpy.log` for arrays.
    """
    assert not isinstance(parameter, Categorical), "tables have numbers only"
    if not parameter.log:
        low, width = parameter.low, parameter.high - parameter.low
        return lambda value: (value - low) / width
    low, width = math.log(parameter.low), math.log(parameter.high) - math.log(parameter.low)
    return lambda value: (log(value) - low) / width


def parameter_of(low: float, high: float, scale: str, kind: str) -> Parameter:
    """Return the parameter of a table's column. Raise ValueError if the scale, type or bounds are invalid."""
    if scale not in ("lin", "log", "lin1m"):
        raise ValueError(f"{scale!r} is no scale: write lin, log or lin1m")
    if kind not in ("float", "int"):
        raise ValueError(f"{kind!r} is no type: write float or int")
    if kind == "int":
        if scale == "lin1m" or low != int(low) or high != int(high):
            raise ValueError("an int needs whole bounds, and the scale lin or log")
        return Int(int(low), int(high), log=scale == "log")
    if scale == "lin1m":
        return Float(1 - high, 1 - low, log=True)
    return Float(float(low), float(high), log=scale == "log")


class RowsSampler:
    """Restrict a sampler to the rows of a table. Each proposal is replaced by the nearest unused row, which the sampler then adopts."""

    def __init__(self, table: RecordedTable, inner: Sampler) -> None:
        self._table, self._inner = table, inner
        # |row|², the part of |row - proposal|² that does not depend on the proposal. Infinite once a row is used.
        self._squares = np.einsum("ij,ij->i", table.unit, table.unit)
        self._left = len(table.configs)

    def suggest(self, number: int, step_s: float = math.inf) -> Config | None:
        """Return the next configuration, or None if every row is used or the inner sampler has no more."""
        proposed = self._inner.suggest(number, step_s) if self._left else None
        if proposed is None:
            return None
        row = int(np.argmin(self._squares - 2 * (self._table.unit @ self._table.unit_of(proposed))))
        config = self._table.configs[row]
        self._use(row)
        self._inner.adopt(number, config)
        return config

    def adopt(self, number: int, config: Config | None) -> None:
        row = None if config is None else self._table.row(config)
        if row is not None:
            self._use(row)
        self._inner.adopt(number, config)

    def tell(self, number: int, step: int, score: float, trained_ns: int, *, at_rung: bool) -> None:
        self._inner.tell(number, step, score, trained_ns, at_rung=at_rung)

    def forecast(self) -> Mapping[int, Forecast] | None:
        return self._inner.forecast()

    def finish(self, number: int, *, failed: bool) -> None:
        self._inner.finish(number, failed=failed)

    def _use(self, row: int) -> None:
        self._left -= int(self._squares[row] < np.inf)
        self._squares[row] = np.inf


class TableTraining:
    """Implements `Training` by looking up the table. The methods raise KeyError if the configuration is not a row."""

    def __init__(self, table: RecordedTable) -> None:
        self._table = table

    def step_ns(self, config: Config, step: int) -> int:
        return max(1, round(float(self._table.step_s[self._row(config), step - 1]) * NS))

    def value(self, config: Config, step: int) -> float:
        return float(self._table.metric[self._row(config), step - 1])

    def _row(self, config: Config) -> int:
        row = self._table.row(config)
        if row is None:
            raise KeyError(f"{config} is no row of the table")
        return row


@dataclass
class BestCurve:
    """The best reported value against the money that the whole job had spent by then, without idle time.

    Pass the method `recorded` to the run as a watcher. Pass the run to `follow` at once, because the curve
    also counts money that is spent but not posted to the ledger yet.
    """

    points: list[tuple[Money, float]] = field(default_factory=list)
    best: float = -math.inf
    best_trial: int | None = None
    best_step: int = 0
    _busy_posted: Money = ZERO
    _run: SimulatedRun | None = None

    def follow(self, run: SimulatedRun) -> None:
        self._run = run

    def recorded(self, tables: Tables, committed: Committed) -> None:
        for entry in committed.entries:
            if entry.kind is not None and entry.kind != "idle":
                self._busy_posted = self._busy_posted + entry.cost.usd
        for event in committed.events:
            if isinstance(event, ev.Reported) and event.value is not None and event.value > self.best:
                self.best, self.best_step = event.value, event.step
                self.best_trial = trial_number(event.trial)
                self.points.append((self._busy_posted + self._unposted(), event.value))

    def _unposted(self) -> Money:
        """Return the money that running attempts have used of their current leases."""
        if self._run is None:
            return ZERO
        spent = ZERO
        for lease in self._run.loop.leases.values():
            attempt = self._run.world.attempts.get(lease.trial)
            if attempt is not None and attempt.given.attempt == lease.attempt:
                busy_ns = max(0, attempt.meter().busy_ns - lease.settled.busy_ns)
                spent = spent + lease.rate.price.of(busy_ns)
        return spent


class TraceWriter:
    """Write every recorded event and ledger entry as one JSON value per line. The same seed writes the same bytes."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def recorded(self, tables: Tables, committed: Committed) -> None:
        for value in (*committed.events, *committed.entries):
            self._file.write(f"{encode(value)}\n")
