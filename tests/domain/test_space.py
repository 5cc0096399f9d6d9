"""Test search spaces: drawn values lie inside, and errors are named."""

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import spaces, stepped
from tuner.domain import space as space_module
from tuner.domain.budget import Budget
from tuner.domain.errors import MAX_FAULTS, Fault
from tuner.domain.job import JobSpec, StartPoint, TrainableKind, config_values
from tuner.domain.money import Money
from tuner.domain.objective import Objective
from tuner.domain.space import Categorical, Float, Int, Parameter, Space, steps_of
from tuner.mirrors.optuna import distribution


@given(spaces(), st.integers())
def test_sample_lies_in_its_space(space: Space, seed: int) -> None:
    assert space.faults() == []
    assert space.contains(space.sample(Random(seed)))


@given(spaces())
def test_grid_points_lie_in_the_space_and_do_not_repeat(space: Space) -> None:
    points = []
    for _, point in zip(range(200), space.grid(3), strict=False):
        assert space.contains(point)
        assert point not in points or any(isinstance(v, bool) for v in point.values())
        points.append(point)


WRONG: list[tuple[dict[str, Parameter], str]] = [
    ({}, "/search_space"),
    ({"x": Float(1, 1)}, "/search_space/x/low"),
    ({"x": Float(2, 1)}, "/search_space/x/low"),
    ({"x": Float(0, 1, log=True)}, "/search_space/x/low"),
    ({"x": Float(-1, 1, log=True)}, "/search_space/x/low"),
    ({"x": Float(0, float("inf"))}, "/search_space/x"),
    ({"x": Float(float("nan"), 1)}, "/search_space/x"),
    ({"x": Int(5, 5)}, "/search_space/x/low"),
    ({"x": Int(0, 5, log=True)}, "/search_space/x/low"),
    ({"x": Float(0, 1, step=0.0)}, "/search_space/x/step"),
    ({"x": Float(0, 1, step=-0.1)}, "/search_space/x/step"),
    ({"x": Float(0, 1, step=float("nan"))}, "/search_space/x/step"),
    ({"x": Float(0, 1, step=1.5)}, "/search_space/x/step"),
    ({"x": Float(0, 1, step=1e-300)}, "/search_space/x/step"),
    ({"x": Float(1e16, 1e16 + 64, step=0.5)}, "/search_space/x/step"),
    ({"x": Float(0.1, 1, log=True, step=0.1)}, "/search_space/x/step"),
    ({"x": Int(0, 5, step=0)}, "/search_space/x/step"),
    ({"x": Int(0, 5, step=6)}, "/search_space/x/step"),
    ({"x": Int(1, 64, log=True, step=2)}, "/search_space/x/step"),
    ({"x": Categorical(())}, "/search_space/x/choices"),
    ({"x": Categorical(("a", "a"))}, "/search_space/x/choices"),
    ({"x": Float(0, 1, when={"y": ("a",)})}, "/search_space/x/when/y"),
    ({"x": Float(0, 1, when={"x": (0.5,)})}, "/search_space/x/when"),
    ({"a/b": Float(1, 0)}, "/search_space/a~1b/low"),
    ({"o": Categorical(("s", "t")), "x": Float(0, 1, when={"o": ("u",)})}, "/search_space/x/when/o"),
    ({"o": Categorical(("s", "t")), "x": Float(0, 1, when={"o": ()})}, "/search_space/x/when/o"),
]


@pytest.mark.parametrize(("parameters", "pointer"), WRONG)
def test_invalid_space_is_reported_with_its_field(parameters: dict[str, Parameter], pointer: str) -> None:
    assert pointer in [fault.pointer for fault in Space(parameters).faults()]


def test_condition_with_many_values_is_not_compared_with_every_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = tuple(range(300))
    conditional = Float(0, 1, when={"o": (*values, -1)})
    calls: list[object] = []

    def counting(a: object, b: object) -> bool:
        calls.append(a)
        return a == b

    monkeypatch.setattr(space_module, "same", counting)
    (fault,) = Space({"o": Categorical(values), "x": conditional}).faults()
    assert fault == Fault("/search_space/x/when/o", "the parameter 'o' cannot have the value -1")
    too_many = Categorical(tuple(range(1001)))
    (fault,) = Space({"o": too_many, "x": conditional}).faults()
    assert fault == Fault("/search_space/o/choices", "give at most 1000 choices")
    assert len(calls) < 1000


def test_choice_true_differs_from_choice_1() -> None:
    assert not Categorical((1, 0)).contains(True)
    assert Categorical((True, 1)).faults("/x") == []


def test_grid_as_large_as_the_integer_range_contains_every_integer() -> None:
    assert Int(8, 64, log=True).grid(57) == list(range(8, 65))


def test_values_with_a_step_are_clean_decimals() -> None:
    assert Float(0, 0.5, step=0.05).grid(99) == [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5]
    assert Float(0, 1, step=0.3).grid(99) == [0.0, 0.3, 0.6, 0.9]  # 1 is not reached, as in Optuna
    assert Float(1e-4, 5e-4, step=1e-4).grid(3) == [1e-4, 2e-4, 3e-4, 4e-4, 5e-4]
    assert Float(0, 10_000, step=0.5).grid(1001) == [10.0 * n for n in range(1001)]
    assert Int(16, 250, step=16).grid(99) == list(range(16, 250, 16))
    assert not Float(0, 1, step=0.05).contains(0.15000000000000002)


@given(stepped(), st.randoms(use_true_random=False))
def test_a_step_reaches_exactly_the_values_that_the_parameter_contains(
    parameter: Float | Int, rng: Random
) -> None:
    assert parameter.faults("/x") == []
    assert parameter.count is not None
    values = parameter.grid(parameter.count)
    assert len(set(values)) == parameter.count
    assert all(parameter.contains(value) for value in values)
    assert [parameter.index(float(str(value))) for value in values] == list(range(parameter.count))
    assert parameter.sample(rng) in values
    assert set(parameter.grid(5)) <= set(values)
    assert len(parameter.grid(5)) == min(1000, parameter.count)
    assert parameter.grid(5)[-1] == values[-1]
    step = Fraction(repr(parameter.step))
    assert [Fraction(repr(value)) for value in values] == [
        Fraction(repr(parameter.low)) + n * step for n in range(parameter.count)
    ]
    between = (float(str(values[0])) + float(str(values[1]))) / 2
    assert not parameter.contains(between)
    assert not parameter.contains(float(parameter.high) + float(parameter.step or 1))


@given(stepped(values=8))
def test_every_value_of_a_step_is_sampled(parameter: Float | Int) -> None:
    rng, values = Random(0), parameter.grid(99)
    assert {parameter.sample(rng) for _ in range(200)} == set(values)
    assert Space({"x": parameter}).size() == len(values)


@given(stepped())
def test_a_step_has_the_values_of_optuna(parameter: Float | Int) -> None:
    known = distribution(parameter)
    assert all(known._contains(float(str(value))) for value in parameter.grid(20)[:20])
    assert float(str(known.high)) == parameter.grid(2)[-1]  # type: ignore[attr-defined]


def test_nested_values_are_handed_over_as_dictionaries() -> None:
    config, constants = {"a.b": 1, "a.c.d": 2, "e": 3}, {"a.f": [4]}
    assert config_values(config, constants, None) == {"a.b": 1, "a.c.d": 2, "e": 3, "a.f": [4]}
    assert config_values(config, constants, "optuna") == config_values(config, constants, None)
    nested = {"a": {"b": 1, "c": {"d": 2}, "f": [4]}, "e": 3}
    assert config_values(config, constants, "ray_tune") == nested


@pytest.mark.parametrize("other", ["a", "a.b.c", "a..b", ".", "a."])
def test_names_that_cannot_be_nested_are_refused(other: str) -> None:
    def spec(kind: TrainableKind | None) -> JobSpec:
        space = Space({"a.b": Float(0, 1), other: Float(0, 1)})
        return JobSpec("j", "m:f", Objective("x"), space, Budget(usd=Money(9)), kind=kind)

    assert spec(None).faults() == []
    assert [fault.pointer for fault in spec("ray_tune").faults()] == ["/search_space"]
    of_a_constant = replace(
        spec("ray_tune"), space=Space({"a.b": Float(0, 1)}), constants={"a.b.c": 1, "d.": 2}
    )
    assert [fault.pointer for fault in of_a_constant.faults()] == ["/constants"]


def test_start_with_many_faults_is_not_checked_to_its_end() -> None:
    choices = Categorical(("a" * 10_000, "b"))
    space = Space({f"p{n}": choices for n in range(50)})

    def spec(start: tuple[StartPoint, ...]) -> JobSpec:
        return JobSpec("j", "m:f", Objective("x"), space, Budget(usd=Money(9)), start=start)

    few = spec((StartPoint({}),)).faults()
    assert [fault.pointer for fault in few] == [f"/start/0/p{n}" for n in range(50)]
    many = spec(tuple(StartPoint({"x": n}) for n in range(300))).faults()
    assert MAX_FAULTS < len(many) < MAX_FAULTS + 60
    assert sum(len(fault.detail) for fault in many) < 100_000
    one = spec((StartPoint({f"x{n}": n for n in range(5000)}),)).faults()
    assert len(one) == MAX_FAULTS + 1


def test_parameter_without_a_step_has_no_number_of_values() -> None:
    assert [steps_of(parameter) for parameter in (Float(0, 1), Int(1, 3))] == [None, None]
    assert [steps_of(parameter) for parameter in (Float(0, 1, step=0.25), Int(1, 6, step=2))] == [5, 3]


def test_configuration_of_a_user_is_checked_value_by_value() -> None:
    space = Space(
        {
            "lr": Float(1e-4, 1, log=True),
            "kind": Categorical(("sgd", "adam")),
            "momentum": Float(0, 0.9, when={"kind": ("sgd",)}),
        }
    )
    assert space.config_faults({"lr": 0.1, "kind": "adam"}, "/start/0") == []
    faults = space.config_faults({"lr": 3.0, "kind": "adam", "momentum": 0.5, "x": 1}, "/start/0")
    assert [(fault.pointer, fault.detail) for fault in faults] == [
        ("/start/0/lr", "must be a number from 0.0001 to 1, not 3.0"),
        (
            "/start/0/momentum",
            "the other values do not meet the condition (when) of this parameter; leave it out",
        ),
        ("/start/0/x", "is not a parameter of the search space, which has lr, kind, momentum"),
    ]
    (missing,) = space.config_faults({"lr": 0.1, "kind": "sgd"}, "/start/0")
    assert (missing.pointer, missing.detail) == (
        "/start/0/momentum",
        "is missing; give a number from 0 to 0.9",
    )
    typed = space.typed({"lr": 1, "kind": "adam"})
    assert isinstance(typed["lr"], float)
