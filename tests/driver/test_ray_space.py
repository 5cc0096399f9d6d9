"""The conversion of Ray Tune's `param_space`, with its real objects."""

from enum import Enum, IntEnum
from typing import Any

import numpy as np
import pytest
from ray import tune

from tuner.cli.ray_space import job_of_space
from tuner.domain.space import SpaceRefused


class Size(IntEnum):
    SMALL = 1


class Name(str, Enum):  # noqa: UP042  as user code has it
    A = "a"


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
        ({Name.A: tune.uniform(0, 1)}, "name", "Name.A"),
        ({"x": tune.uniform(0, 1), "f": print}, "constant", "'f'"),
        ({"x": tune.uniform(0, 1), "f": {"g": [object()]}}, "constant", "'f.g'"),
        ({"x": tune.uniform(0, 1), "f": Size.SMALL}, "constant", "'f'"),
        ({"x": tune.uniform(0, 1), "f": np.zeros(2)}, "constant", "'f'"),
        ({"x": tune.choice([Name.A])}, "choice", "Name"),
        ({"x": {"grid_search": 3}}, "choice", "give a list"),
        ({"x": tune.uniform(2, 1)}, "bounds", "'x'"),
        ({"x": 1}, "nothing_to_tune", "constant"),
        (["x"], "not_a_dictionary", "list"),
    ],
)
def test_unconvertible_values_are_refused_by_name(space: Any, code: str, text: str) -> None:
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
    ranges = {"x": tune.randint(3, 4), "z": tune.uniform(1, 1), "q": tune.quniform(0.5, 0.5, 0.5)}
    job = job_of_space({**ranges, "y": tune.uniform(0, 1)})
    assert (job["constants"], list(job["search_space"])) == ({"x": 3, "z": 1.0, "q": 0.5}, ["y"])


def test_values_of_numpy_become_those_of_python() -> None:
    job = job_of_space(
        {
            "grid": {"grid_search": np.array([0.5, 1.0])},
            "choice": tune.choice([np.int64(1), np.str_("a"), np.bool_(True)]),
            "step": tune.qrandint(16, 64, np.int64(8)),
            "constant": np.float64(0.25),
            "inside": {"list": [np.int32(7), None]},
        }
    )
    assert repr(job["search_space"]["grid"]["choices"]) == "[0.5, 1.0]"
    assert repr(job["search_space"]["choice"]["choices"]) == "[1, 'a', True]"
    assert type(job["search_space"]["step"]["step"]) is int
    assert repr(job["constants"]) == "{'constant': 0.25, 'inside': {'list': [7, None]}}"
