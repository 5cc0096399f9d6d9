"""What a sampler that learns would propose, without its model: in a plan hundreds of trials are drawn in a second.

After the first few, each proposal is the best of several random ones, by what they would come to at the last step, and for the
sampler `auto` by their pace, too: so the trials of a plan grow better, and dearer or cheaper, as those of the job will.
"""

import math

from tuner.domain.space import Config, Space
from tuner.planning.paces import DrawnTraining
from tuner.tuning.samplers.base import number_rng
from tuner.tuning.samplers.simple import Oblivious

FIRST_RANDOM = 8
RANDOM_SHARE = 0.1
BEST_OF = 8


class KnowingSampler(Oblivious):
    """`thrifty`: a configuration that takes half as long is worth as much more as one is better by 0.7 standard deviations."""

    def __init__(self, space: Space, seed: int, training: DrawnTraining, *, last: int, thrifty: bool) -> None:
        self._space, self._seed, self._training = space, seed, training
        self._last, self._thrifty = last, thrifty

    def suggest(self, number: int, step_s: float = math.inf) -> Config:
        rng = number_rng(self._seed, number)
        learned = number >= FIRST_RANDOM and rng.random() >= RANDOM_SHARE
        drawn = [self._space.sample(rng) for _ in range(BEST_OF if learned else 1)]
        return max(drawn, key=self._worth) if learned else drawn[0]

    def _worth(self, config: Config) -> float:
        worth = self._training.standing(config, self._last)
        return worth - math.log(self._training.step_ns(config, 1)) if self._thrifty else worth
