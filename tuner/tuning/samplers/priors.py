"""Priors: draw configurations near the values that the user expects to be best, and decide how often to do so.

The share of draws from the priors depends on the results, as in PriorBand (Mallik et al., NeurIPS 2023, arXiv:2306.12370). It is `SHARE`
while the best trial is likely under the priors. Otherwise, each trial that is likely under the priors lowers it. Therefore a good prior
is used to the end, and a wrong prior costs only a few trials.
"""

import math
from random import Random
from statistics import NormalDist

from tuner.domain.space import Categorical, Config, Parameter, Prior, Space, Value, same
from tuner.tuning.samplers.encoding import place_of, value_at

SHARE = 0.5
#: Standard deviation of a numeric parameter's prior, by confidence, on the parameter's scale from 0 to 1. The values are PriorBand's.
WIDTHS = {"low": 0.5, "medium": 0.25, "high": 0.125}
#: Weight of the expected choice of a categorical parameter, by confidence. Each other choice has the weight 1.
WEIGHTS = {"low": 2, "medium": 4, "high": 6}
NO_SCORE = (-math.inf, -1, -math.inf)
TINY = 1e-12  # probabilities are kept this far from 0 and 1, where the inverse of the normal distribution is infinite


class Priors:
    """The priors of a space, and the results that show how good they are.

    The state depends only on the calls of `adopt` and `tell`, so that a sampler can be rebuilt after a restart.
    """

    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._seed = space, seed
        self._priors = {name: p.prior for name, p in space.parameters.items() if p.prior is not None}
        # By trial: whether its configuration is likelier by the priors than without them.
        self._is_likely: dict[int, bool] = {}
        self._has_center = False
        # The best trial so far: (-violation, step, score) of its newest report at a rung.
        self._best, self._best_trial = NO_SCORE, -1

    def __bool__(self) -> bool:
        """Return whether any parameter has a prior."""
        return bool(self._priors)

    def adopt(self, number: int, config: Config) -> None:
        """Record the configuration of a trial, and whether it is likelier under the priors than without them."""
        self._is_likely[number] = self.likelihood(config) > 1
        mine = {name: prior.center for name, prior in self._priors.items() if name in config}
        self._has_center |= bool(mine) and all(
            self._is_at(name, config[name], center) for name, center in mine.items()
        )

    def _is_at(self, name: str, value: Value, center: Value) -> bool:
        """Return whether a value is the center. A model rounds numbers when it converts them to positions and back."""
        parameter = self._space.parameters[name]
        if isinstance(parameter, Categorical) or isinstance(value, str) or isinstance(center, str):
            return same(value, center)
        return math.isclose(place_of(parameter, value), place_of(parameter, center), abs_tol=1e-9)

    def tell(self, number: int, step: int, score: float, violation: float = 0.0) -> None:
        """Record a score at a rung, and update which trial is the best.

        Trials are compared by violation of the constraints (lower is better), then by steps, then by score (higher is better).
        """
        if (-violation, step, score) > self._best:
            self._best, self._best_trial = (-violation, step, score), number

    @property
    def share(self) -> float:
        """Return the share of the next configurations, from 0 to 1, that is drawn from the priors."""
        if not self._priors:
            return 0.0
        if self._best_trial < 0 or self._is_likely.get(self._best_trial, False):
            return SHARE
        return SHARE / (1 + sum(self._is_likely.values())) ** 2

    def draws(self, number: int) -> bool:
        """Return whether the configuration of trial `number` is drawn from the priors."""
        return Random(f"{self._seed}/prior/{number}").random() < self.share

    def sample(self, rng: Random) -> Config:
        """Draw a configuration from the priors, or return the values that the user expects to be best if no trial has had them all yet."""
        config: Config = {}
        for name in self._space.order:
            if not self._space.active(name, config):
                continue
            parameter, prior = self._space.parameters[name], self._priors.get(name)
            if prior is None:
                config[name] = parameter.sample(rng)
            elif not self._has_center:
                config[name] = prior.center
            else:
                config[name] = _drawn(parameter, prior, rng)
        return config

    def likelihood(self, config: Config) -> float:
        """Return the likelihood of the configuration under the priors, divided by its likelihood without priors."""
        return math.prod(
            _likelihood(self._space.parameters[name], prior, config[name])
            for name, prior in self._priors.items()
            if name in config
        )


def _drawn(parameter: Parameter, prior: Prior, rng: Random) -> Value:
    if isinstance(parameter, Categorical):
        weights = [_weight(prior, choice) for choice in parameter.choices]
        return rng.choices(parameter.choices, weights)[0]
    normal = NormalDist(place_of(parameter, prior.center), WIDTHS[prior.confidence])
    while not 0 <= (place := normal.inv_cdf(rng.uniform(TINY, 1 - TINY))) <= 1:
        pass
    return value_at(parameter, place)


def _likelihood(parameter: Parameter, prior: Prior, value: Value) -> float:
    if isinstance(parameter, Categorical):
        total = sum(_weight(prior, choice) for choice in parameter.choices)
        return _weight(prior, value) * len(parameter.choices) / total
    normal = NormalDist(place_of(parameter, prior.center), WIDTHS[prior.confidence])
    return normal.pdf(place_of(parameter, value)) / (normal.cdf(1) - normal.cdf(0))


def _weight(prior: Prior, choice: Value) -> int:
    return WEIGHTS[prior.confidence] if same(choice, prior.center) else 1
