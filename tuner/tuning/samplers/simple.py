"""Samplers that do not learn from results: random and grid."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tuner.domain.records import PastTrial
from tuner.domain.space import Config, Space
from tuner.tuning.samplers.base import Forecast, number_rng

if TYPE_CHECKING:
    from tuner.tuning.samplers.priors import Priors

PRIOR_TRIES = 100  # stop after this many draws from the priors that were all suggested before
# Each configuration of a space with at most this many is suggested once. Counting them at the start takes a few hundredths of a second.
DISTINCT_MAX = 10_000
GRID_POINTS = 5  # number of values of a numeric parameter on the grid


class Oblivious:
    """Base class of samplers that ignore results."""

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
        pass

    def finish(self, number: int, *, failed: bool) -> None:
        pass

    def adopt(self, number: int, config: Config | None) -> None:
        pass

    def forecast(self) -> Mapping[int, Forecast] | None:
        return None


class RandomSampler(Oblivious):
    """Random search by independent draws (Bergstra & Bengio, JMLR 13, 2012).

    In a small finite space, each configuration is suggested only once, and the search ends when all were suggested. A configuration whose
    result the user gave counts as suggested. If the space has priors, a part of the configurations is drawn from the priors.
    """

    def __init__(self, space: Space, seed: int, history: Sequence[PastTrial] = ()) -> None:
        self._space, self._seed = space, seed
        size = space.size()
        countable = size is not None and size <= 10 * DISTINCT_MAX
        distinct = sum(1 for _ in islice(space.grid(size), DISTINCT_MAX + 1)) if size and countable else None
        self._distinct = None if distinct is None or distinct > DISTINCT_MAX else distinct
        self._adopted: dict[int, str] = {}
        self._seen = Counter({_key(past.config) for past in history if past.is_given})
        self.priors = priors_of(space, seed)

    @property
    def is_exhausted(self) -> bool:
        """Whether every configuration of a small finite space was suggested."""
        return self._distinct is not None and len(self._seen) >= self._distinct

    def suggest(self, number: int, step_s: float = math.inf) -> Config | None:
        if self.is_exhausted:
            return None
        rng = number_rng(self._seed, number)
        config = None
        if self.priors is not None and self.priors.draws(number):
            drawn = (self.priors.sample(rng) for _ in range(PRIOR_TRIES))
            config = next(filter(self.is_new, drawn), None)
        while config is None or not self.is_new(config):
            config = self._space.sample(rng)
        self.adopt(number, config)
        return config

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
        if at_rung and self.priors is not None:
            self.priors.tell(number, step, score, violation)

    def is_new(self, config: Config) -> bool:
        """Return whether the configuration was not suggested yet. For spaces that are not small and finite it is always true."""
        return self._distinct is None or _key(config) not in self._seen

    def adopt(self, number: int, config: Config | None) -> None:
        """Set the actual configuration of a trial. It counts as suggested, in place of the one that `suggest` returned for the trial."""
        if config is None:
            return
        if self.priors is not None:
            self.priors.adopt(number, config)
        if self._distinct is None:
            return
        before, now = self._adopted.get(number), _key(config)
        if before is not None:
            self._seen[before] -= 1
            if not self._seen[before]:
                del self._seen[before]
        self._adopted[number] = now
        self._seen[now] += 1


def priors_of(space: Space, seed: int) -> "Priors | None":
    """Return the priors of a space, or None if no parameter has one."""
    if all(parameter.prior is None for parameter in space.parameters.values()):
        return None
    from tuner.tuning.samplers.priors import Priors  # imports NumPy, which other random searches do not need

    return Priors(space, seed)


def _key(config: Config) -> str:
    return str(sorted(config.items(), key=str))


class GridSampler(Oblivious):
    """Suggest every combination once, in a shuffled order, so that a small budget still covers the whole space sparsely.

    A numeric parameter takes at most five values, evenly spaced on its linear or logarithmic scale. A parameter with a step takes all
    of its values, but at most 1000. If the grid has more points than the argument `listed` allows, points of the grid
    are drawn at random instead.

    If a trial runs with another configuration than the suggested point, this point moves to the end of the list. Points whose result the
    user gave are not in the list.
    """

    def __init__(
        self, space: Space, seed: int, history: Sequence[PastTrial] = (), *, listed: int = 100_000
    ) -> None:
        combinations = math.prod(len(p.grid(GRID_POINTS)) for p in space.parameters.values())
        rng = number_rng(seed, -1)
        self._space = space
        self._seed = seed
        self._grid: list[Config] | None
        if combinations <= listed:
            points = list(space.grid(GRID_POINTS))
            rng.shuffle(points)
            given = {_key(past.config) for past in history if past.is_given}
            self._grid = [point for point in points if _key(point) not in given] if given else points
        else:
            self._grid = None

    def adopt(self, number: int, config: Config | None) -> None:
        if self._grid is None or config is None or self._grid[number : number + 1] == [config]:
            return
        if config in self._grid[number:]:
            place = self._grid.index(config, number)
            self._grid[number], self._grid[place] = config, self._grid[number]
        else:
            self._grid += self._grid[number : number + 1]
            self._grid[number : number + 1] = [config]

    def suggest(self, number: int, step_s: float = math.inf) -> Config | None:
        if self._grid is not None:
            return self._grid[number] if number < len(self._grid) else None
        # The grid is too large to list. Its points are drawn at random, and no budget will reach all of them.
        rng = number_rng(self._seed, number)
        config: Config = {}
        for name in self._space.order:
            if self._space.active(name, config):
                config[name] = rng.choice(self._space.parameters[name].grid(GRID_POINTS))
        return config
