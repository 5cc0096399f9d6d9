"""A sampler for simulations that imitates a learning sampler.

It fits no model, because a plan draws hundreds of trials per second and a model would be too slow. After the first few trials, most
proposals are the best of several random configurations, judged by their simulated score at the last step. For the sampler `auto`, a short
step time is an advantage too. The scores and costs of simulated trials therefore change during a job as those of real trials do.
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
    """A sampler that proposes the best of several random configurations, judged by the scores that the simulation will give them.

    With `thrifty`, half the step time is worth as much as a score that is better by 0.7 standard deviations (ln 2).
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
