"""Test the model behind `auto`: its encoding, its Gaussian process, its forecasts of curves, and its
suggestions.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import examples, spaces
from tuner.domain.records import PastTrial
from tuner.domain.space import Categorical, Config, Float, Int, Space
from tuner.tuning.samplers.curve_gp import CurveGP, log_expected_improvement
from tuner.tuning.samplers.curves import FLOOR, Data, LevelScores
from tuner.tuning.samplers.encoding import UnitCube
from tuner.tuning.samplers.model import FIRST_RANDOM, ModelSampler
from tuner.tuning.samplers.simple import RandomSampler

PLANE = Space({"lr": Float(1e-4, 1, log=True), "width": Int(8, 64, log=True)})
STEPS = (4, 8, 16)


def height(config: Config, step: int) -> float:
    """Return a score that is best at lr = 0.01 and width = 32, and rises with the steps."""
    lr, width = float(str(config["lr"])), float(str(config["width"]))
    return 1 - abs(math.log10(lr) + 2) / 4 - abs(math.log2(width / 32)) / 8 - 1 / step


def taught(sampler: ModelSampler, trials: int) -> list[Config]:
    """Let every trial reach the first rung and every third trial the last rung. Return the configurations."""
    configs = []
    for number in range(trials):
        config = sampler.suggest(number)
        assert config is not None
        configs.append(config)
        for step in STEPS if number % 3 == 0 else STEPS[:1]:
            sampler.tell(number, step, height(config, step), step * 10**9, at_rung=True)
    return configs


@examples(60)
@given(space=spaces(), seed=st.integers(0, 2**32))
def test_configuration_round_trips_and_features_lie_in_unit_cube(space: Space, seed: int) -> None:
    cube = UnitCube(space)
    rng = np.random.default_rng(seed)
    for point in rng.random((3, cube.parameters)):
        config = cube.config(point)
        assert space.contains(config)
        again = cube.config(cube.point(config))
        assert set(again) == set(config)
        for name, value in config.items():
            numeric = isinstance(space.parameters[name], Float)
            assert again[name] == (pytest.approx(value, rel=1e-6, abs=1e-6) if numeric else value)
        features = cube.features(point[None])
        assert features.shape == (1, cube.dimensions)
        assert np.all((features >= -1e-9) & (features <= 1 + 1e-9))


def test_inactive_parameter_does_not_change_features() -> None:
    cube = UnitCube(Space({"o": Categorical(("sgd", "adamw")), "m": Float(0, 1, when={"o": ("sgd",)})}))
    inactive, active = np.array([[0.9, 0.1], [0.9, 0.7]]), np.array([[0.1, 0.1], [0.1, 0.7]])
    assert np.array_equal(*cube.features(inactive))
    assert not np.array_equal(*cube.features(active))


@examples(20)
@given(seed=st.integers(0, 2**32))
def test_likelihood_gradient_matches_finite_differences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, t = rng.random((30, 3)), np.log(rng.integers(1, 50, 30))
    data = Data(x, t, rng.normal(size=30), rng.integers(0, 10, 30))
    gp = CurveGP(3)
    theta = gp._prior + 0.3 * rng.normal(size=8)
    _, gradient = gp._objective(theta, data)
    for i in range(8):
        off = np.eye(8)[i] * 1e-5
        slope = (gp._objective(theta + off, data)[0] - gp._objective(theta - off, data)[0]) / 2e-5
        assert gradient[i] == pytest.approx(slope, rel=1e-3, abs=1e-3)


def test_gaussian_process_fits_data_and_is_uncertain_far_from_it() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((40, 2)) * 0.5
    trials = np.arange(40)
    data = Data(x, np.full(40, 1.0), np.sin(6 * x[:, 0]), trials)
    gp = CurveGP(2)
    gp.fit(data)
    gp.condition(data)
    mean, deviation = gp.predict(x, 1.0, trials)
    assert np.abs(mean - data.y).max() < 0.05
    _, far = gp.predict(np.array([[1.0, 1.0]]), 1.0, np.array([40]))
    assert far[0] > 3 * deviation.max()


def test_forecast_keeps_a_trials_own_deviation() -> None:
    """The part of a curve that the configuration does not explain belongs to the trial and persists."""
    rng = np.random.default_rng(0)
    x, own = rng.random((60, 2)), rng.normal(0, 0.5, 60)
    steps, trials = np.repeat(np.log([4.0, 16.0]), 60), np.tile(np.arange(60), 2)
    smooth = np.sin(3 * x[:, 0])
    data = Data(np.vstack([x, x]), steps, np.tile(smooth + own, 2) + rng.normal(0, 0.02, 120), trials)
    gp = CurveGP(2)
    gp.fit(data)
    gp.condition(data)
    mean, _ = gp.predict(x, np.log(51.0), np.arange(60))
    stranger, _ = gp.predict(x, np.log(51.0), np.full(60, 99))
    assert np.corrcoef(mean - stranger, own)[0, 1] > 0.9


@given(st.floats(-30, 10))
def test_log_expected_improvement_matches_scipy(u: float) -> None:
    from scipy.stats import norm  # takes half a second

    improvement = float(log_expected_improvement(np.array([u]))[0])
    if u > -5:
        assert improvement == pytest.approx(math.log(u * norm.cdf(u) + norm.pdf(u)), rel=1e-6, abs=1e-6)
    else:
        assert improvement == pytest.approx(norm.logpdf(u) - 2 * math.log(-u), rel=0.02)


def test_early_trial_is_ranked_with_the_gains_of_other_trials() -> None:
    curves = LevelScores(UnitCube(PLANE), STEPS)
    for number in range(4):
        curves.add(number, {"lr": 0.01, "width": 8 + number})
        for step, score in zip(STEPS, (0.2, 0.5, 0.6), strict=True):
            curves.tell(number, step, score + number / 100, 10**9)
    curves.add(4, {"lr": 0.1, "width": 20})
    curves.tell(4, 4, 0.25, 10**9)
    assert curves.best_numbers(5)[0] == 4


def test_failed_trial_gets_the_floor_score_and_is_not_among_the_best() -> None:
    curves = LevelScores(UnitCube(PLANE), STEPS)
    for number in range(3):
        curves.add(number, {"lr": 0.01, "width": 8 + number})
        curves.tell(number, 4, number / 10, 10**9)
    curves.fail(2)
    known = curves.known(10)
    assert FLOOR in known.y.tolist()
    assert curves.best_numbers(5) == [1, 0]


def test_known_scores_are_bounded_and_keep_the_best() -> None:
    curves = LevelScores(UnitCube(PLANE), STEPS)
    for number in range(50):
        curves.add(number, {"lr": 0.01, "width": 8 + number})
        curves.tell(number, 4, float(number), 10**9)
    known = curves.known(20)
    assert len(known.y) == 20
    assert known.y.max() == pytest.approx(1.0)
    mixed = sorted(curves.known(20, everywhere=10).trial)
    assert mixed[10:] == list(range(40, 50))
    in_each_ten = [sum(number // 10 == tens for number in mixed) for tens in range(4)]
    assert set(in_each_ten) <= {2, 3}, "evenly from all others"


def test_model_sampler_beats_random_search() -> None:
    """Compare the best of 30 suggestions over several seeds."""
    learned, drawn = [], []
    for seed in range(6):
        learned.append(max(height(c, 16) for c in taught(ModelSampler(PLANE, seed, STEPS), 30)))
        random = RandomSampler(PLANE, seed)
        drawn.append(max(height(c, 16) for n in range(30) if (c := random.suggest(n)) is not None))
    best = height({"lr": 0.01, "width": 32}, 16)
    assert best - np.mean(learned) < 0.5 * (best - np.mean(drawn))


def test_suggestions_do_not_depend_on_the_unit_of_the_metric() -> None:
    """A power of two, about 1e-12, so that all arithmetic is exact."""
    suggested = []
    for unit in (1.0, 2.0**-40):
        sampler, configs = ModelSampler(PLANE, 1, STEPS), []
        for number in range(25):
            config = sampler.suggest(number)
            assert config is not None
            configs.append(config)
            sampler.tell(number, STEPS[-1], unit * height(config, STEPS[-1]), 10**9, at_rung=True)
        suggested.append(configs)
    assert suggested[0] == suggested[1]


def test_forecasts_start_after_first_results_and_rank_trials_correctly() -> None:
    sampler = ModelSampler(PLANE, 0, STEPS)
    taught(sampler, FIRST_RANDOM - 1)
    assert sampler.forecast() is None
    sampler = ModelSampler(PLANE, 0, STEPS)
    configs = taught(sampler, 40)
    forecast = sampler.forecast()
    assert forecast is not None
    assert set(forecast) == set(range(40))
    ends = [height(config, 16) for config in configs]
    best, worst = int(np.argmax(ends)), int(np.argmin(ends))
    assert forecast[best][0] > forecast[worst][0]


def test_warm_start_improves_the_first_suggestions() -> None:
    old = ModelSampler(PLANE, 1, STEPS)
    history = [
        PastTrial(config, tuple((step, height(config, step), step * 10**9) for step in STEPS))
        for config in taught(old, 40)
    ]
    warm, cold = ModelSampler(PLANE, 2, STEPS, history), RandomSampler(PLANE, 2)
    first = [[height(c, 16) for n in range(8) if (c := s.suggest(n)) is not None] for s in (warm, cold)]
    assert np.mean(first[0]) > np.mean(first[1]) + 0.1
    assert all(number >= 0 for number in warm.forecast() or {})


def test_reports_between_rungs_do_not_change_the_forecast() -> None:
    """A report between rungs is not taken for a rung's score, and does not prevent that score from being
    learned.
    """
    informed, quiet = (ModelSampler(PLANE, 0, STEPS) for _ in range(2))
    for number in range(12):
        for sampler in (informed, quiet):
            config = sampler.suggest(number)
            assert config is not None
            for step in range(1, 5):
                if sampler is informed or step == 4:
                    sampler.tell(number, step, height(config, step), step * 10**9, at_rung=step == 4)
    assert informed.forecast() == quiet.forecast() != {}


def cost_factor(config: Config) -> float:
    """Return the duration of a step in seconds, which grows with the width."""
    return float(str(config["width"])) / 8


@pytest.mark.parametrize("step_s", [2.5, 1e-3, 0.0])
def test_suggestions_respect_the_affordable_step_time(step_s: float) -> None:
    """The best configuration is four times as wide as the narrowest. Random suggestions are bounded as well."""
    sampler = ModelSampler(PLANE, 1, STEPS)
    for number in range(16):
        config = sampler.suggest(number)
        assert config is not None
        sampler.tell(number, 4, height(config, 4), round(4 * cost_factor(config) * 10**9), at_rung=True)
    free = [c for n in range(16, 56) if (c := sampler.suggest(n))]
    bound = [c for n in range(56, 96) if (c := sampler.suggest(n, step_s))]
    assert len(free) == len(bound) == 40
    assert max(map(cost_factor, free)) > 3
    assert max(map(cost_factor, bound)) <= max(1.2 * step_s, 1.2)


def test_sampler_still_suggests_after_all_trials_failed() -> None:
    sampler = ModelSampler(PLANE, 0, STEPS)
    for number in range(2 * FIRST_RANDOM):
        assert sampler.suggest(number) is not None
        sampler.finish(number, failed=True)
    assert sampler.forecast() == {}
    assert sampler.suggest(2 * FIRST_RANDOM) is not None


def test_past_configuration_is_not_copied_twice() -> None:
    config: Config = {"lr": 0.01, "width": 32}
    curve = tuple((step, height(config, step), step * 10**9) for step in STEPS)
    curves = LevelScores(UnitCube(PLANE), STEPS, [PastTrial(config, curve)])
    assert curves.best_past(10) == [-1]
    curves.add(0, config)
    assert curves.best_past(10) == []


def test_past_failed_configuration_is_not_copied() -> None:
    config: Config = {"lr": 0.01, "width": 32}
    curves = LevelScores(UnitCube(PLANE), STEPS, [PastTrial(config, ((4, 100.0, 10**9),), failed=True)])
    assert curves.best_past(10) == []
    assert curves.known(9).y.tolist() == [FLOOR]


@examples(25)
@given(data=st.data())
def test_rebuilt_sampler_gives_the_same_answers_as_the_live_sampler(data: st.DataObject) -> None:
    """Compare both samplers after a random sequence of suggestions, reports and forecasts."""
    lived, calls = ModelSampler(PLANE, 3, STEPS), []
    configs: list[Config] = []
    steps: list[int] = []
    for _ in range(data.draw(st.integers(20, 60))):
        what = data.draw(st.sampled_from(["suggest", "report", "report", "forecast"]))
        if what == "suggest" or not configs:
            config = lived.suggest(len(configs))
            assert config is not None
            calls.append(("adopt", (len(configs), config)))
            configs.append(config)
            steps.append(0)
        elif what == "forecast":
            lived.forecast()
        else:
            number = data.draw(st.integers(0, len(configs) - 1))
            steps[number] += 1
            args = (number, steps[number], height(configs[number], steps[number]), steps[number] * 10**9)
            lived.tell(*args, at_rung=steps[number] in STEPS)
            calls.append(("tell", args))
    rebuilt = ModelSampler(PLANE, 3, STEPS)
    for kind, args in calls:
        if kind == "adopt":
            rebuilt.adopt(*args)
        else:
            rebuilt.tell(*args, at_rung=args[1] in STEPS)
    assert rebuilt.forecast() == lived.forecast()
    assert rebuilt.suggest(len(configs)) == lived.suggest(len(configs))
