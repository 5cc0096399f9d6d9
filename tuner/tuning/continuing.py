"""Where trials that were cut short would end, by the model of learning curves that proposals are made with.

The model (`samplers.curve_gp`) is fitted to the scores at rungs of the best trials and asked about the last step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import erf, exp, pi, sqrt

import numpy as np
from threadpoolctl import ThreadpoolController

from tuner.domain.space import Config, Space
from tuner.tuning.samplers.curve_gp import CurveGP
from tuner.tuning.samplers.curves import Curves
from tuner.tuning.samplers.encoding import UnitCube

FEWEST = 8  # trials, as for proposals: below that there is nothing to learn from
FIT_POINTS = 120
POINTS = 200
Z80 = 1.2815515655446004  # of a normal distribution's middle 80 %
_THREADS = ThreadpoolController()


@dataclass(frozen=True, slots=True)
class Curve:
    """`scores`: (step, score) at the levels that it came to, ascending, at least one."""

    config: Config
    scores: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Outlook:
    """A score at the last step: expected, and its standard deviation."""

    mean: float
    deviation: float

    def gain(self, best: float) -> float:
        """What is expected to be won over `best`, which is not lost where the score is lower: the expected improvement."""
        if self.deviation <= 0:
            return max(0.0, self.mean - best)
        u = (self.mean - best) / self.deviation
        below = 0.5 * (1 + erf(u / sqrt(2)))
        return max(0.0, self.deviation * (u * below + exp(-0.5 * u * u) / sqrt(2 * pi)))

    def gain_between(self, best: float) -> tuple[float, float]:
        """The gain at the ends of the middle 80 % of scores."""
        low, high = self.between()
        return max(0.0, low - best), max(0.0, high - best)

    def between(self) -> tuple[float, float]:
        """The ends of the middle 80 %."""
        spread = Z80 * self.deviation
        return self.mean - spread, self.mean + spread


def outlooks(
    space: Space, levels: Sequence[int], trials: Mapping[int, Curve], asked: Sequence[int]
) -> dict[int, Outlook] | None:
    """Of the trials asked for, by number; None where too few trials are known. `levels`: rungs and last step, ascending."""
    if len(trials) < FEWEST:
        return None
    cube = UnitCube(space)
    curves = Curves(cube, levels)
    for number, trial in trials.items():
        curves.add(number, trial.config)
        for step, score in trial.scores:
            curves.tell(number, step, score, 0)
    middle, scale = curves.scale()
    model = CurveGP(cube.dimensions)
    numbers = list(asked)
    with _THREADS.limit(limits=1):
        model.fit(curves.known(FIT_POINTS))
        model.condition(curves.known(POINTS))
        mean, deviation = model.predict(
            curves.features(numbers), curves.last_t, np.array(numbers, dtype=np.int64)
        )
    return {
        number: Outlook(m * scale + middle, s * scale)
        for number, m, s in zip(numbers, mean.tolist(), deviation.tolist(), strict=True)
    }
