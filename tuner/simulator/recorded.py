"""Run jobs over recorded learning curves: a table of configurations with the metric and the seconds of each step.

- `RecordedTable` is the table. It "trains" by looking up the recorded metric and seconds of a step. Budgets over a table are counted in
  trainings: 1 is the mean cost of training one row to its last step.
- `RowsSampler` restricts a sampler to the table: it replaces a proposal by the nearest unused row, in the unit cube of
  the search space.
- `BestCurve` records the best value of a simulated job against the money spent.

For a `lin1m` parameter x, small distances from 1 matter, so it is searched as the parameter `1-x` on a log scale.
`RecordedTable.shown` converts a configuration back to the table's own names and values.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tuner.domain import events as ev
from tuner.domain.ids import trial_number
from tuner.domain.money import ZERO, Money
from tuner.domain.space import Categorical, Config, Parameter, Space, Value
from tuner.domain.time import NS
from tuner.simulator.journal import Committed, Tables
from tuner.simulator.world import SimulatedRun
from tuner.tuning.samplers import Sampler
from tuner.tuning.samplers.base import Forecast

COMPLEMENT = "1-"  # prefix of a parameter that is searched as 1 minus its value
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RecordedTable:
    """A table of n configurations with d parameters. No two rows have the same configuration.

    It implements the simulator's `Training` protocol. `step_ns` and `value` raise KeyError for a configuration that is not in the table.
    """

    name: str
    space: Space
    metric: Floats  #: Shape (n, steps): higher is better.
    step_s: Floats  #: Shape (n, steps): seconds of each step.
    configs: list[Config]

    @property
    def steps(self) -> int:
        return int(self.metric.shape[1])

    @cached_property
    def full_s(self) -> float:
        """The mean seconds of training one row to its last step on one worker. The cost of this training is a budget of 1."""
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
        """Return the regret: how far a metric value is below the best value of the table, scaled to be 1 for the value `median`."""
        return (self.best - value) / (self.best - self.median)

    def step_ns(self, config: Config, step: int) -> int:
        return max(1, round(float(self.step_s[self.rows[self.key(config)], step - 1]) * NS))

    def value(self, config: Config, step: int) -> float:
        return float(self.metric[self.rows[self.key(config)], step - 1])

    @cached_property
    def rows(self) -> dict[tuple[Value, ...], int]:
        """The index of each configuration's row, by the tuple of the configuration's values."""
        return {self.key(config): row for row, config in enumerate(self.configs)}

    def key(self, config: Mapping[str, Value]) -> tuple[Value, ...]:
        return tuple(config[name] for name in self.space.parameters)

    @cached_property
    def unit(self) -> Floats:
        """Each row's position in the unit cube: an array of shape (n, d)."""
        return np.array([self.unit_of(config) for config in self.configs])

    def unit_of(self, config: Mapping[str, Value]) -> Floats:
        """Return the configuration's position in the unit cube."""
        return np.array([_position(p, config[name]) for name, p in self.space.parameters.items()])

    def shown(self, config: Mapping[str, Value]) -> Config:
        """Return the configuration with the names and values of the table file.

        The sampler uses a parameter `1-x` in place of a `lin1m` parameter `x`. It is converted back to `x`.
        """
        return {
            name.removeprefix(COMPLEMENT): 1 - value
            if name.startswith(COMPLEMENT) and isinstance(value, float)
            else value
            for name, value in config.items()
        }


def _position(parameter: Parameter, value: Value) -> float:
    """Return the position of a value in [0, 1], linearly on the parameter's scale."""
    assert not isinstance(parameter, Categorical), "recorded tables cannot have categorical parameters"
    assert isinstance(value, float | int)
    low, high = float(parameter.low), float(parameter.high)
    if parameter.log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low)


class RowsSampler:
    """A sampler that suggests only rows of a table.

    It replaces each proposal of the sampler `inner` by the nearest unused row. `inner` then adopts the configuration of that row.
    """

    def __init__(self, table: RecordedTable, inner: Sampler) -> None:
        self._table, self._inner = table, inner
        # |row|², which is the part of |row - proposal|² that does not depend on the proposal. It becomes infinite when the row is used.
        self._squares = np.einsum("ij,ij->i", table.unit, table.unit)
        self._left = len(table.configs)

    def suggest(self, number: int, step_s: float = math.inf) -> Config | None:
        """Return the next configuration. Return None if every row is used, or if the inner sampler has no more proposals."""
        proposed = self._inner.suggest(number, step_s) if self._left else None
        if proposed is None:
            return None
        row = int(np.argmin(self._squares - 2 * (self._table.unit @ self._table.unit_of(proposed))))
        config = self._table.configs[row]
        self._use(row)
        self._inner.adopt(number, config)
        return config

    def adopt(self, number: int, config: Config | None) -> None:
        row = None if config is None else self._table.rows.get(self._table.key(config))
        if row is not None:
            self._use(row)
        self._inner.adopt(number, config)

    def tell(
        self,
        number: int,
        step: int,
        score: float,
        trained_ns: int,
        *,
        at_rung: bool,
        violation: float = 0.0,
    ) -> None:
        self._inner.tell(number, step, score, trained_ns, at_rung=at_rung, violation=violation)

    def forecast(self) -> Mapping[int, Forecast] | None:
        return self._inner.forecast()

    def finish(self, number: int, *, failed: bool) -> None:
        self._inner.finish(number, failed=failed)

    def _use(self, row: int) -> None:
        self._left -= int(self._squares[row] < np.inf)
        self._squares[row] = np.inf


class BestCurve:
    """The best value that a simulated job has reported, as a function of the money that the job had spent by then.

    The money includes amounts that are spent but not posted yet. It does not include the cost of idle time. Create the curve before the
    run starts: it contains only what is recorded after its creation.
    """

    def __init__(self, run: SimulatedRun) -> None:
        self.points: list[tuple[Money, float]] = []
        self.best = -math.inf
        self.best_trial: int | None = None
        self.best_step = 0
        self._run, self._busy_posted = run, ZERO
        run.journal.watchers.append(self._recorded)

    def _recorded(self, tables: Tables, committed: Committed) -> None:
        for entry in committed.entries:
            if entry.kind is not None and entry.kind != "idle":
                self._busy_posted = self._busy_posted + entry.cost.usd
        for event in committed.events:
            if isinstance(event, ev.Reported) and event.value is not None and event.value > self.best:
                self.best, self.best_step = event.value, event.step
                self.best_trial = trial_number(event.trial)
                self.points.append((self._busy_posted + self._unposted(), event.value))

    def _unposted(self) -> Money:
        """Return the money that running attempts have spent but that is not posted yet, without idle time."""
        spent = ZERO
        for lease in self._run.loop.leases.values():
            attempt = self._run.world.attempts.get(lease.trial)
            if attempt is not None and attempt.given.attempt == lease.attempt:
                busy_ns = max(0, attempt.meter().busy_ns - lease.settled.busy_ns)
                spent = spent + lease.rate.price.of(busy_ns)
        return spent
