"""Prediction of step times from parameters: a ridge regression of the logarithm of step times on the unit cube.

Step times are mostly products of factors such as width, depth and the inverse of the batch size, so their logarithms are sums. The ridge
penalty is chosen by leave-one-out cross-validation. If the mean predicts nearly as well, no model is used.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from tuner.domain.space import Config, Space
from tuner.tuning.samplers.encoding import UnitCube

Floats = npt.NDArray[np.float64]
PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0)
# The model is used if its squared error is below this share of the squared error of predicting the mean. With a dozen trials, a smaller
# improvement may be chance.
BETTER = 0.35
TRIALS_MIN = 6


@dataclass(frozen=True)
class PaceModel:
    """A fitted regression. Step times are natural logarithms of nanoseconds."""

    cube: UnitCube
    centre: Floats  #: The mean of the trials' points in the unit cube.
    level: float  #: The mean of the trials' step times.
    slopes: Floats
    #: The error of each trial's step time if it is predicted from all other trials.
    residuals: tuple[float, ...]
    parts: float  #: The effective number of parameters.
    #: The fastest and the slowest step time seen. Predictions are clipped to this range before a residual is added.
    bounds: tuple[float, float]

    @property
    def spread(self) -> float:
        """The standard deviation of the residuals."""
        return math.sqrt(math.fsum(residual * residual for residual in self.residuals) / len(self.residuals))

    def drawn_ns(self, config: Config, rng: Random) -> float:
        """Draw a step time for a configuration: the prediction plus a random residual."""
        level = self.level + float((self.cube.point(config) - self.centre) @ self.slopes)
        low, high = self.bounds
        return math.exp(min(high, max(low, level)) + rng.choice(self.residuals))


def fitted(space: Space, configs: Sequence[Config], paces_ns: Sequence[int]) -> PaceModel | None:
    """Fit the model. Return None if there are too few trials, or the mean predicts nearly as well."""
    count = len(configs)
    if count < TRIALS_MIN:
        return None
    cube = UnitCube(space)
    points: Floats = np.array([cube.point(config) for config in configs])
    logs = np.log(np.array(paces_ns, dtype=np.float64))
    centre, level = points.mean(axis=0), float(logs.mean())
    centred, wanted = points - centre, logs - level
    fits: list[tuple[float, Floats, Floats, float]] = []
    for penalty in PENALTIES:
        gram = centred.T @ centred + penalty * np.eye(centred.shape[1])
        solved = np.linalg.solve(gram, centred.T)
        hat = centred @ solved + 1 / count
        # The leave-one-out errors follow from the hat matrix, so nothing is fitted again.
        left_out = (wanted - hat @ wanted) / np.maximum(1 - np.diag(hat), 1 / count)
        fits.append((float((left_out**2).mean()), solved @ wanted, left_out, float(np.trace(hat))))
    error, slopes, residuals, parts = min(fits, key=lambda fit: fit[0])
    alone = float(((wanted * count / (count - 1)) ** 2).mean())
    if error >= BETTER * alone:
        return None
    centred_residuals = residuals - residuals.mean()
    bounds = float(logs.min()), float(logs.max())
    return PaceModel(cube, centre, level, slopes, tuple(map(float, centred_residuals)), parts, bounds)
