"""Imitation of a learning sampler in simulations, without its model, because a plan draws hundreds of trials per second.

After the first few trials, each proposal is the best of several random configurations by their score at the last step. For the sampler
`auto`, the step time counts too. The simulated trials therefore become better, and cheaper or more expensive, as those of the job will.
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
    """Proposes the best of several random configurations by the scores that the simulation will give them.

    With `thrifty`, halving the step time is worth as much as a score that is better by 0.7 standard deviations (ln 2).
    """

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
