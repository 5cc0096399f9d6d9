"""The conversion of Ray Tune's `param_space`, with its real objects."""

from typing import Any

import pytest
from ray import tune

from tuner.cli.ray_space import job_of_space
from tuner.domain.space import SpaceRefused


@pytest.mark.parametrize(
    ("space", "code", "text"),
    [
        ({"x": tune.sample_from(lambda spec: spec.config.y * 2)}, "sample_from", "'x'"),
        ({"a": {"x": tune.sample_from(lambda _: 1)}}, "sample_from", "'a.x'"),
        ({"x": tune.randn(0, 1)}, "normal", "tune.uniform"),
        ({"x": tune.qrandn(0, 1, 0.1)}, "normal", "'x'"),
        ({"x": tune.qloguniform(0.1, 1, 0.1)}, "log_step", "tune.loguniform"),
        ({"x": tune.qlograndint(2, 64, 2)}, "log_step", "tune.lograndint"),
        ({"x": tune.choice([(1, 2), (3,)])}, "choice", "(1, 2)"),
        ({"x": tune.choice([1, 1])}, "choice", "twice"),
        ({"x": tune.choice([])}, "choice", "0 choices"),
        ({"x": [tune.uniform(0, 1)]}, "list_of_parameters", "'x'"),
        ({"a.b": 1, "c": {"x": tune.uniform(0, 1)}}, "name", "'a.b'"),
        ({"c": {"a.b": 1, "x": tune.uniform(0, 1)}}, "name", "'c.a.b'"),
        ({1: tune.uniform(0, 1)}, "name", "1"),
        ({"x": tune.uniform(0, 1), "f": print}, "constant", "'f'"),
        ({"x": tune.uniform(0, 1), "f": {"g": [object()]}}, "constant", "'f.g'"),
        ({"x": 1}, "nothing_to_tune", "constant"),
        (["x"], "not_a_dictionary", "list"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(space: Any, code: str, text: str) -> None:
    with pytest.raises(SpaceRefused) as refused:
        job_of_space(space)
    assert refused.value.code == code
    assert text in refused.value.detail


@pytest.mark.parametrize(
    "domain",
    [tune.quniform(0.1, 0.9, 0.1), tune.qrandint(16, 64, 8), tune.randint(2, 5), tune.quniform(-1, 1, 0.5)],
)
def test_converted_parameter_has_the_values_that_ray_tune_draws(domain: Any) -> None:
    parameter = job_of_space({"x": domain})["search_space"]["x"]
    drawn = {round(float(domain.sample()), 9) for _ in range(500)}
    step, low, high = parameter.get("step", 1), parameter["low"], parameter["high"]
    assert drawn == {round(low + n * step, 9) for n in range(round((high - low) / step) + 1)}


def test_range_with_one_value_is_a_constant() -> None:
    found = job_of_space({"x": tune.randint(3, 4), "y": tune.uniform(0, 1)})
    assert (found["constants"], list(found["search_space"])) == ({"x": 3}, ["y"])
