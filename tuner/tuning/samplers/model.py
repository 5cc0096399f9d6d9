"""The sampler `auto`: a Gaussian process over configurations and steps, which learns from every rung of every trial.

In addition to the Gaussian process (`curve_gp`):

- Scores of early steps are lifted by the mean learning curve, so that a trial is not rated lower because it has fewer steps.
- A suggestion is the point with the greatest expected improvement at the last step per cost, among those that the rest of the
  budget can train to the last step. A linear model of the logarithm of the step time predicts the cost.
- A tenth of the suggestions is random, because the model may be wrong.
- If the space has priors (`priors`), a part of the suggestions is chosen among draws from the priors.
- The scores of trials that violate constraints are lowered. The larger the violation, the more they are lowered (`curves`).

The scheduler `auto` promotes trials by the forecasts of their final scores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tuner.domain.records import PastTrial
from tuner.domain.space import Config, Space
from tuner.tuning.samplers.base import Forecast, number_rng
from tuner.tuning.samplers.curves import Data, LevelScores
from tuner.tuning.samplers.encoding import UnitCube
from tuner.tuning.samplers.simple import RandomSampler

if TYPE_CHECKING:
    from tuner.tuning.samplers.curve_gp import CurveGP

Floats = npt.NDArray[np.float64]
NOBODY = np.iinfo(np.int64).min  # a number that no trial has
RANDOM_SHARE = 0.1
FIRST_RANDOM = 8
CANDIDATES = 1000
PAST_CANDIDATES = 10
CHEAPEST = 0.02  # this share of the candidates, the cheapest ones, always counts as affordable
SHORTEST_S = 1e-9
POINTS = 200  # scores that the model is conditioned on
# How many of the POINTS scores are chosen evenly from all trials. If the model saw only the best trials, it would expect their mean in
# regions where trials were bad, and keep suggesting bad configurations.
EVERYWHERE = POINTS // 2
FIT_POINTS = 120
REFIT_AT = 1.3  # the model is fitted again once it has 1.3 times as many rung reports as at the last fit
KEY_DIGITS = 9  # features that agree to this many decimals are those of the same configuration
FORECASTS = 400  # the largest number of trials with a forecast: the best by their newest score


@dataclass(slots=True)
class _Model:
    """The model, fitted when the sampler had received `reports_seen` scores and failures."""

    reports_seen: int
    gp: "CurveGP"
    cost_weights: Floats
    forecast: dict[int, Forecast] = field(default_factory=dict)
    #: The best predicted final score of this job's trials and of the results that the user gave. 0 if there are none.
    best: float = 0.0


class ModelSampler:
    """Suggest configurations with a model of learning curves.

    In a finite space, the candidates that this job has tried, and those whose result the user gave, are left out, because the same
    training would be paid again.

    Args:
        steps: The rungs and the last step. They are empty if trials have no maximum step.
        repeats: Whether these candidates are not left out. The decision rules before version 4 need it.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        steps: Sequence[int],
        history: Sequence[PastTrial] = (),
        *,
        repeats: bool = False,
    ) -> None:
        self._seed = seed
        self._cube = UnitCube(space)
        self._random = RandomSampler(space, seed, history)
        self._curves = LevelScores(self._cube, steps, history)
        self._skips_tried = space.size() is not None and not repeats
        self._tried: dict[int, bytes] = {}  # the keys of these configurations, by trial number
        for number in self._curves.given:
            self._note_tried(number)
        self._gp: CurveGP | None = None
        self._fits: list[Data] = []
        self._fitted_at = 0
        self._model: _Model | None = None
        self._note_fit()

    def suggest(self, number: int, step_s: float = np.inf) -> Config | None:
        rng = number_rng(self._seed, number)
        at_random = rng.random() < RANDOM_SHARE
        config = None
        if self._knows_enough:
            from tuner.tuning.samplers.curve_gp import THREADS

            with THREADS.limit(limits=1):
                config = self._candidate(
                    number, np.random.default_rng(rng.randrange(2**63)), step_s, at_random
                )
        if config is None or not self._random.is_new(config):
            config = self._random.suggest(number)
        self.adopt(number, config)
        return config

    def adopt(self, number: int, config: Config | None) -> None:
        if config is not None:
            self._random.adopt(number, config)
            self._curves.add(number, config)
            self._note_tried(number)

    def _note_tried(self, number: int) -> None:
        if self._skips_tried:
            (self._tried[number],) = _keys(self._curves.features([number]))

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
        self._random.tell(number, step, score, trained_ns, at_rung=at_rung, violation=violation)
        if at_rung:
            self._curves.tell(number, step, score, trained_ns, violation)
            self._note_fit()

    def finish(self, number: int, *, failed: bool) -> None:
        if failed:
            self._curves.fail(number)
            self._note_fit()

    def forecast(self) -> Mapping[int, Forecast] | None:
        if not self._knows_enough:
            return None
        from tuner.tuning.samplers.curve_gp import THREADS

        with THREADS.limit(limits=1):
            return self._fresh().forecast

    @property
    def _knows_enough(self) -> bool:
        return self._curves.trials_seen >= FIRST_RANDOM

    def _note_fit(self) -> None:
        """Store the data for a new fit if a fit is due. The fit itself is made later, when a suggestion or a forecast needs it.

        A sampler that is rebuilt after a restart is asked for fewer suggestions, but must make the same fits. Therefore the data of a fit
        must not depend on the time at which the fit is made.
        """
        if self._knows_enough and self._curves.reports_seen >= REFIT_AT * self._fitted_at:
            self._fitted_at = self._curves.reports_seen
            self._fits.append(self._curves.known(FIT_POINTS))

    def _fresh(self) -> _Model:
        if self._model is not None and self._model.reports_seen == self._curves.reports_seen:
            return self._model
        if self._gp is None:
            from tuner.tuning.samplers.curve_gp import CurveGP

            self._gp = CurveGP(self._cube.dimensions)
        gp = self._gp
        for data in self._fits:
            gp.fit(data)
        self._fits.clear()
        gp.condition(self._curves.known(POINTS, EVERYWHERE))
        self._model = _Model(self._curves.reports_seen, gp, self._cost_weights())
        self._model.forecast = self._forecast(gp, self._curves.best_numbers(FORECASTS))
        known = {**self._forecast(gp, self._curves.given), **self._model.forecast}
        self._model.best = max((mean for mean, _ in known.values()), default=0.0)
        return self._model

    def _forecast(self, gp: "CurveGP", numbers: Sequence[int]) -> dict[int, Forecast]:
        """Return the mean and the standard deviation of each trial's predicted score at the last step, by trial number."""
        if not numbers:
            return {}
        features = self._curves.features(numbers)
        mean, deviation = gp.predict(features, self._curves.last_t, np.array(numbers, dtype=np.int64))
        pairs = zip(numbers, mean.tolist(), deviation.tolist(), strict=True)
        return {number: (m, s) for number, m, s in pairs}

    def _cost_weights(self) -> Floats:
        """Return the weights of a ridge regression of the logarithm of the step time on the configuration."""
        features, seconds = self._curves.step_seconds()
        if not len(seconds):
            return np.zeros(self._cube.dimensions + 1)
        design = np.hstack([np.ones((len(features), 1)), features])
        return np.asarray(
            np.linalg.solve(design.T @ design + 0.1 * np.eye(design.shape[1]), design.T @ np.log(seconds)),
            dtype=np.float64,
        )

    def _candidate(self, number: int, rng: np.random.Generator, step_s: float, at_random: bool) -> Config:
        """Return the candidate with the best expected improvement per cost, among those with a predicted step time up to `step_s` seconds.

        The cheapest candidates, a share of `CHEAPEST`, are always allowed, because `step_s` may be below the step time of all candidates.
        Candidates that were tried before are left out, unless no other is left. If `at_random` is set, return the first allowed candidate
        instead of the best.
        """
        from tuner.tuning.samplers.curve_gp import log_expected_improvement

        model = self._fresh()
        points = self._candidates(number, rng)
        features = self._cube.features(points)
        cost = model.cost_weights[0] + features @ model.cost_weights[1:]
        allowed = cost <= max(np.log(max(step_s, SHORTEST_S)), np.quantile(cost, CHEAPEST))
        if self._tried:
            tried = set(self._tried.values())
            untried = allowed & np.array([key not in tried for key in _keys(features)])
            allowed = untried if untried.any() else allowed
        points, features, cost = points[allowed], features[allowed], cost[allowed]
        if at_random:
            return self._cube.config(points[0])
        mean, deviation = model.gp.predict(features, self._curves.last_t, np.array([NOBODY]))
        worth = log_expected_improvement((mean - model.best) / deviation) + np.log(deviation)
        return self._cube.config(points[np.argmax(worth - cost)])

    def _candidates(self, number: int, rng: np.random.Generator) -> Floats:
        """Return the candidates: random points or draws from the priors, and the configurations of the best trials of earlier jobs."""
        priors = self._random.priors
        if priors is not None and priors.draws(number):
            draw = number_rng(self._seed, -2 - number)
            anywhere = np.array([self._cube.point(priors.sample(draw)) for _ in range(CANDIDATES)])
        else:
            anywhere = rng.random((CANDIDATES, self._cube.parameters))
        past = self._curves.best_past(PAST_CANDIDATES)
        return np.vstack([anywhere, self._curves.points(past)]) if past else anywhere


def _keys(features: Floats) -> list[bytes]:
    """Return a key for each row of features. Equal configurations of a finite space have equal keys, in spite of rounding."""
    return [row.tobytes() for row in np.round(features, KEY_DIGITS)]
