"""Samplers that learn nothing: random and grid."""

import math
from itertools import islice

from tuner.domain.space import Config, Space
from tuner.tuning.samplers.base import number_rng

GRID_POINTS = 5  # values a numeric parameter has on the grid


class Oblivious:
    """Shared by samplers that do not look at results."""

    def tell(self, number: int, step: int, score: float, trained_ns: int) -> None:
        pass

    def finish(self, number: int, *, failed: bool) -> None:
        pass

    def adopt(self, number: int, config: Config | None) -> None:
        pass


class RandomSampler(Oblivious):
    """Independent draws (Bergstra & Bengio, JMLR 13, 2012). A small finite space is drawn without replacement in effect:
    it ends once every configuration was proposed."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._seed = space, seed
        size = space.size()
        countable = size is not None and size <= 100_000
        self._distinct = sum(1 for _ in islice(space.grid(size), 10_001)) if size and countable else None
        self._seen: set[str] = set()

    def suggest(self, number: int) -> Config | None:
        if self._distinct is None or self._distinct > 10_000:
            return self._space.sample(number_rng(self._seed, number))
        if len(self._seen) >= self._distinct:
            return None
        rng = number_rng(self._seed, number)
        while (config := self._space.sample(rng)) and str(sorted(config.items(), key=str)) in self._seen:
            pass
        self.adopt(number, config)
        return config

    def adopt(self, number: int, config: Config | None) -> None:
        if config is not None:
            self._seen.add(str(sorted(config.items(), key=str)))


class GridSampler(Oblivious):
    """Every combination once, in a shuffled order, so that a budget that ends early has seen all of the space thinly.

    Numbers take at most five values, evenly spaced on their own scale.
    """

    def __init__(self, space: Space, seed: int) -> None:
        combinations = math.prod(len(p.grid(GRID_POINTS)) for p in space.parameters.values())
        rng = number_rng(seed, -1)
        self._space = space
        self._seed = seed
        if combinations <= 100_000:
            self._grid: list[Config] | None = list(space.grid(GRID_POINTS))
            rng.shuffle(self._grid)
        else:
            self._grid = None

    def suggest(self, number: int) -> Config | None:
        if self._grid is not None:
            return self._grid[number] if number < len(self._grid) else None
        # Too large to list: points of the grid drawn at random, which no budget will exhaust.
        rng = number_rng(self._seed, number)
        config: Config = {}
        for name in self._space.order:
            if self._space.active(name, config):
                config[name] = rng.choice(self._space.parameters[name].grid(GRID_POINTS))
        return config
