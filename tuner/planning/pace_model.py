"""How a configuration's pace follows from its parameters: a ridge regression of the logarithm of step times on the unit cube.

Step times are mostly products (width, depth, one over the batch size), so their logarithms are sums. How strongly the slopes are held
back is chosen by leaving one out, and where a single mean foretells nearly as well, that is what is believed.
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
BETTER = 0.35  # of the mean's squared error: of a dozen trials, less of an improvement may be chance
TRIALS_MIN = 6


@dataclass(frozen=True)
class PaceModel:
    """`residuals`: of each trial, foretold by all others, as logarithms. `parts`: how many numbers were learnt, as effective ones.
    `bounds`: no configuration is taken to be faster or slower than what was seen, but for its residual."""

    cube: UnitCube
    centre: Floats
    level: float
    slopes: Floats
    residuals: tuple[float, ...]
    parts: float
    bounds: tuple[float, float]

    @property
    def spread(self) -> float:
        """Standard deviation of what remains."""
        return math.sqrt(math.fsum(one * one for one in self.residuals) / len(self.residuals))

    def drawn_ns(self, config: Config, rng: Random) -> float:
        """A pace for this configuration."""
        level = self.level + float((self.cube.point(config) - self.centre) @ self.slopes)
        low, high = self.bounds
        return math.exp(min(high, max(low, level)) + rng.choice(self.residuals))


def fitted(space: Space, configs: Sequence[Config], paces_ns: Sequence[int]) -> PaceModel | None:
    """None where the mean of all is as good."""
    count = len(configs)
    if count < TRIALS_MIN:
        return None
    cube = UnitCube(space)
    points: Floats = np.array([cube.point(config) for config in configs])
    logs = np.log(np.array(paces_ns, dtype=np.float64))
    centre, level = points.mean(axis=0), float(logs.mean())
    centred, wanted = points - centre, logs - level
    found: list[tuple[float, Floats, Floats, float]] = []
    for penalty in PENALTIES:
        gram = centred.T @ centred + penalty * np.eye(centred.shape[1])
        solved = np.linalg.solve(gram, centred.T)
        hat = centred @ solved + 1 / count
        left_out = (wanted - hat @ wanted) / np.maximum(1 - np.diag(hat), 1 / count)
        found.append((float((left_out**2).mean()), solved @ wanted, left_out, float(np.trace(hat))))
    error, slopes, residuals, parts = min(found, key=lambda one: one[0])
    alone = float(((wanted * count / (count - 1)) ** 2).mean())
    if error >= BETTER * alone:
        return None
    centred_residuals = residuals - residuals.mean()
    bounds = float(logs.min()), float(logs.max())
    return PaceModel(cube, centre, level, slopes, tuple(map(float, centred_residuals)), parts, bounds)
