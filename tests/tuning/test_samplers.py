"""Test every sampler: suggestions lie inside the space, are repeatable, and are the same after a restart."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import examples, spaces
from tuner.domain.budget import Budget
from tuner.domain.events import RULES
from tuner.domain.job import Algorithm, JobSpec, SamplerName, StartPoint
from tuner.domain.money import Money
from tuner.domain.objective import Fidelity, Objective
from tuner.domain.records import PastTrial
from tuner.domain.space import Categorical, Config, Float, Int, Prior, Space
from tuner.tuning.samplers import Sampler, prior_faults, sampler_for
from tuner.tuning.samplers.priors import Priors
from tuner.tuning.samplers.simple import RandomSampler

NAMES: list[SamplerName] = ["auto", "tpe", "random", "gp", "cmaes", "qmc", "grid"]
SPACE = Space(
    {
        "lr": Float(1e-4, 1, log=True),
        "width": Int(8, 64, log=True),
        "optimizer": Categorical(("sgd", "adamw")),
        "momentum": Float(0, 0.99, when={"optimizer": ("sgd",)}),
        "dropout": Float(0, 0.5, step=0.05),
        "batch": Int(16, 250, step=16),
    }
)


def build(
    name: SamplerName, space: Space = SPACE, seed: int = 0, history: Sequence[PastTrial] = ()
) -> Sampler:
    spec = JobSpec(
        "a", "m:f", Objective("x"), space, Budget(usd=Money(1)), algorithm=Algorithm(sampler=name, seed=seed)
    )
    return sampler_for(spec, history)


def score(config: Config) -> float:
    return -abs(math.log10(float(str(config["lr"]))) + 2)


def hear_of(sampler: Sampler, number: int, config: Config) -> None:
    sampler.tell(number, 1, score(config), 0, at_rung=True)
    if number % 3 == 0:
        sampler.tell(number, 3, score(config), 0, at_rung=True)
    if number % 6 == 0:
        sampler.finish(number, failed=False)
    if number % 7 == 1:
        sampler.finish(number, failed=True)


@pytest.mark.parametrize("name", NAMES)
def test_rebuilt_sampler_repeats_the_same_suggestions(name: SamplerName) -> None:
    first, log = build(name), []
    for number in range(24):
        config = first.suggest(number)
        assert config is not None
        assert SPACE.contains(config)
        log.append(config)
        hear_of(first, number, config)
    again = build(name)
    for number in range(16):
        again.adopt(number, log[number])
        hear_of(again, number, log[number])
    for number in range(16, 24):
        assert again.suggest(number) == log[number]
        hear_of(again, number, log[number])


@pytest.mark.parametrize("name", [n for n in NAMES if n != "gp"])
@examples(15)
@given(space=spaces(), seed=st.integers(-(2**63), 2**63 - 1))
def test_suggestions_lie_inside_any_space(name: SamplerName, space: Space, seed: int) -> None:
    sampler = build(name, space, seed)
    for number in range(4):
        config = sampler.suggest(number)
        if config is None:
            break
        assert space.contains(config)
        sampler.tell(number, 1, float(number), 0, at_rung=True)


@pytest.mark.parametrize("name", NAMES)
def test_each_point_of_a_finite_space_is_suggested_once(name: SamplerName) -> None:
    space = Space({"a": Int(1, 3), "b": Categorical(("x", "y")), "c": Float(0, 0.5, step=0.2)})
    sampler = build(name, space)
    configs = list[Config]()
    for number in range(18):
        config = sampler.suggest(number)
        assert config is not None
        configs.append(config)
        sampler.tell(number, 1, -float(str(config["a"])), 0, at_rung=True)
        sampler.finish(number, failed=False)
    assert len({str(config) for config in configs}) == 18
    assert sampler.suggest(18) is None
    sampler.adopt(18, configs[0])  # a user enqueues it again
    sampler.finish(18, failed=True)
    assert sampler.suggest(19) is None


@pytest.mark.parametrize("name", NAMES)
def test_rebuilt_sampler_of_a_finite_space_repeats_the_same_suggestions(name: SamplerName) -> None:
    """Many proposals were suggested before, and are replaced."""
    space = Space({"a": Categorical(("x", "y")), "b": Int(1, 12, when={"a": ("x",)}), "c": Int(1, 2)})

    def learn(sampler: Sampler, number: int, config: Config) -> None:
        sampler.tell(number, 1, -abs(int(str(config.get("b", 9))) - 3), 0, at_rung=True)
        if number % 2:
            sampler.finish(number, failed=number % 3 == 0)

    first, log = build(name, space), list[Config]()
    while len(log) < 30 and (config := first.suggest(len(log))) is not None:
        learn(first, len(log), config)
        log.append(config)
    assert len(log) == (26 if name != "grid" else 12)  # the grid has five of the values of b
    for begun in (5, len(log) - 4):
        again = build(name, space)
        for number in range(begun):
            again.adopt(number, log[number])
            learn(again, number, log[number])
        for number in range(begun, len(log)):
            assert again.suggest(number) == log[number]
            learn(again, number, log[number])
        assert again.suggest(len(log)) is None


@pytest.mark.parametrize("rules", [3, RULES])
def test_auto_suggests_no_configuration_of_a_large_finite_space_again(rules: int) -> None:
    space, configs = Space({f"p{number}": Int(0, 3) for number in range(7)}), list[Config]()
    spec = JobSpec(
        "a", "m:f", Objective("x"), space, Budget(usd=Money(1)), algorithm=Algorithm(sampler="auto", seed=1)
    )
    sampler = sampler_for(spec, (), rules)
    for number in range(60):
        config = sampler.suggest(number)
        assert config is not None
        configs.append(config)
        distance = sum((int(str(value)) - 2) ** 2 for value in config.values())
        sampler.tell(number, 1, -float(distance), 10**9, at_rung=True)
    repeats = len(configs) - len({str(config) for config in configs})
    assert (repeats > 0) is (rules == 3), "jobs of older rules replay the repeats"


def test_auto_leaves_tried_configurations_of_a_small_space_out_of_its_candidates() -> None:
    """Before, a random configuration took the place of the best candidate if this one was tried already, which was nearly always so."""
    space = Space({"a": Int(1, 20), "b": Int(1, 20)})
    sampler, near = build("auto", space), 0
    for number in range(52):
        config = sampler.suggest(number)
        assert config is not None
        near += max(abs(int(str(value)) - 13) for value in config.values()) <= 3
        distance = sum((int(str(value)) - 13) ** 2 for value in config.values())
        sampler.tell(number, 1, -float(distance), 10**9, at_rung=True)
    assert near > 15, "there are 49 such configurations"


@pytest.mark.parametrize("name", NAMES)
def test_every_value_of_a_step_is_suggested(name: SamplerName) -> None:
    space = Space({"a": Float(0, 1, step=0.25), "b": Int(10, 99, step=30), "c": Float(0, 1)})
    sampler, seen = build(name, space), set()
    for number in range(100):
        config = sampler.suggest(number)
        if config is None:
            break
        seen |= {(parameter, config[parameter]) for parameter in ("a", "b")}
        if name != "gp":  # which would fit its model a hundred times
            sampler.tell(number, 1, -abs(float(str(config["c"])) - 0.5), 0, at_rung=True)
    assert seen == {("a", n / 4) for n in range(5)} | {("b", b) for b in (10, 40, 70)}


def test_huge_finite_space_is_not_enumerated() -> None:
    assert build("random", Space({"seed": Int(0, 2**52), "other": Int(1, 9)})).suggest(0) is not None


@pytest.mark.parametrize("has_history", [False, True], ids=["without history", "with history"])
def test_tpe_suggests_the_same_for_a_whole_space_as_for_groups_of_parameters(has_history: bool) -> None:
    """Without conditions, all parameters are one group, which TPE need not look for."""
    space = Space(
        {name: parameter for name, parameter in SPACE.parameters.items() if name != "momentum"}
        | {"fixed": Int(3, 3)}
    )
    history = [PastTrial(space.sample(Random(seed)), ((1, seed / 20, 0),)) for seed in range(12)]
    whole, grouped = (build("tpe", space, history=history if has_history else ()) for _ in range(2))
    grouped._has_conditions = True  # type: ignore[attr-defined]
    for number in range(40):
        config = whole.suggest(number)
        assert grouped.suggest(number) == config
        for sampler in (whole, grouped):
            hear_of(sampler, number, config)


def test_tpe_learns_from_paused_trials() -> None:
    """With values of the first rung only, it suggests configurations nearer to the best. A uniform suggestion
    is 1.0 away on average.
    """
    tpe, distance = build("tpe"), []
    for number in range(80):
        config = tpe.suggest(number)
        assert config is not None
        tpe.tell(number, 1, score(config), 0, at_rung=True)
        distance.append(-score(config))
    assert sum(distance[50:]) / 30 < 0.6


def test_tpe_remembers_the_best_of_many_trials() -> None:
    """The best 30 trials are followed by more than TPE learns from. Its suggestions are near the best ones, and the same after a
    restart.
    """
    random, restarted, tpe = Random(0), build("tpe"), build("tpe")
    for number in range(1_500):
        low, high = (-2.1, -1.9) if number < 30 else (-1.0, 0.0)
        config: Config = {"lr": 10 ** random.uniform(low, high), "width": 8, "optimizer": "adamw"}
        for sampler in (tpe, restarted):
            sampler.adopt(number, {**config, "dropout": 0.0, "batch": 16})
            sampler.tell(number, 1, score(config), 0, at_rung=True)
            if number < 40:
                sampler.finish(number, failed=number >= 30)
    suggested = [tpe.suggest(number) for number in range(1_500, 1_510)]
    assert [restarted.suggest(number) for number in range(1_500, 1_510)] == suggested
    assert statistics.median(-score(config) for config in suggested if config is not None) < 0.2


@pytest.mark.parametrize("name", ["auto", "tpe", "gp"])
def test_sampler_learns_from_earlier_jobs(name: SamplerName) -> None:
    """The sampler uses them from the first suggestion on, and suggests the same after a restart."""
    drawn = build("random", seed=5)
    configs = [config for number in range(40) if (config := drawn.suggest(number)) is not None]
    history = [PastTrial(config, ((1, score(config), 10**9),)) for config in configs]
    warm, again, first = build(name, history=history), build(name, history=history), []
    for number in range(10):
        config = warm.suggest(number)
        assert config is not None
        assert SPACE.contains(config)
        warm.tell(number, 1, score(config), 10**9, at_rung=True)
        again.adopt(number, config)
        again.tell(number, 1, score(config), 10**9, at_rung=True)
        first.append(-score(config))
    assert sum(first) / len(first) < 0.6
    assert again.suggest(10) == warm.suggest(10)


@pytest.mark.parametrize("name", NAMES)
def test_replaced_suggestion_is_learned_instead_of_the_original(name: SamplerName) -> None:
    """In the simulator, the nearest row of the table replaces a suggestion. A rebuilt sampler must agree with
    the live one.
    """
    plane = Space({"a": Int(1, 6), "b": Int(1, 6)})
    made: list[Config] = [{"a": number % 6 + 1, "b": number // 6 + 1} for number in range(20)]
    lived, rebuilt = build(name, plane), build(name, plane)
    for number, config in enumerate(made):
        lived.suggest(number)
        for sampler in (lived, rebuilt):
            sampler.adopt(number, config)
    assert [lived.suggest(20)] == [rebuilt.suggest(20)]


def test_grid_point_that_a_given_configuration_replaces_comes_at_the_end() -> None:
    space = Space({"a": Int(1, 3), "b": Float(0, 1, step=0.5)})
    plain = build("grid", space)
    points = [plain.suggest(number) for number in range(9)]
    shifted = build("grid", space)
    shifted.adopt(0, points[4])
    shifted.adopt(1, {"a": 2, "b": 0.25})
    rest = [shifted.suggest(number) for number in range(2, 10)]
    assert sorted(map(str, [points[4], *rest])) == sorted(map(str, points))
    assert shifted.suggest(10) is None


@pytest.mark.parametrize("name", ["auto", "tpe"])
def test_known_result_is_learned_and_not_proposed_again(name: SamplerName) -> None:
    """With eight known results, the model proposes from the first trial on, near to the best of them."""
    known = tuple(
        StartPoint({"lr": 10.0**exponent}, score({"lr": 10.0**exponent}))
        for exponent in (-4, -3.5, -3, -2.2, -1.5, -1, -0.5, -0.1)
    )
    space = Space({"lr": SPACE.parameters["lr"]})
    spec = JobSpec(
        "a",
        "m:f",
        Objective("acc"),
        space,
        Budget(usd=Money(1)),
        start=known,
        algorithm=Algorithm(sampler=name),
        fidelity=Fidelity(max=9),
    )
    sampler, losses = sampler_for(spec), []
    for number in range(8):
        config = sampler.suggest(number)
        assert config is not None
        assert config not in [point.config for point in known]
        sampler.tell(number, 9, score(config), 10**9, at_rung=True)
        losses.append(-score(config))
    assert sorted(losses)[4] < 1


PRIOR_SPACE = Space(
    {
        "lr": Float(1e-4, 1, log=True, prior=Prior(0.01, "high")),
        "kind": Categorical(("a", "b", "c"), prior=Prior("b", "medium")),
        "other": Float(0, 1),
    }
)


def priors() -> Priors:
    return Priors(PRIOR_SPACE, 0)


def test_first_draw_from_the_priors_is_their_center_and_later_ones_are_around_it() -> None:
    sampler, rng = priors(), Random(0)
    first = sampler.sample(rng)
    assert (first["lr"], first["kind"]) == (0.01, "b")
    sampler.adopt(0, first)
    drawn = [sampler.sample(rng) for _ in range(400)]
    assert all(PRIOR_SPACE.contains(config) for config in drawn)
    places = [math.log10(float(str(config["lr"]))) for config in drawn]
    assert abs(statistics.fmean(places) + 2) < 0.1
    assert abs(statistics.stdev(places) - 4 * 0.125) < 0.1
    assert abs(sum(config["kind"] == "b" for config in drawn) / 400 - 4 / 6) < 0.1
    assert sampler.likelihood({"lr": 0.01, "kind": "b", "other": 0.1}) > 1
    assert sampler.likelihood({"lr": 0.9, "kind": "b", "other": 0.1}) < 1


def test_center_is_recognized_although_a_model_has_rounded_it() -> None:
    sampler, rng = priors(), Random(0)
    sampler.adopt(0, {**sampler.sample(rng), "lr": 0.010000000000000004})
    assert sampler._has_center


def test_configuration_without_any_parameter_that_has_a_prior_is_not_the_center() -> None:
    space = Space(
        {
            "kind": Categorical(("a", "b")),
            "rate": Float(0, 1, when={"kind": ("b",)}, prior=Prior(0.5, "high")),
        }
    )
    sampler = Priors(space, 0)
    sampler.adopt(0, {"kind": "a"})
    assert not sampler._has_center


@pytest.mark.parametrize("name", NAMES)
def test_configuration_whose_result_is_given_is_not_suggested_again(name: SamplerName) -> None:
    space = Space({"kind": Categorical(("a", "b")), "size": Categorical((1, 2))})
    given = [PastTrial({"kind": "a", "size": 1}, ((4, 0.5, 0),), is_given=True)]
    sampler = build(name, space, history=given)
    seen = [sampler.suggest(number) for number in range(4)]
    assert seen[3] is None
    assert {"kind": "a", "size": 1} not in seen


def test_priors_are_used_while_the_best_trial_is_likely_by_them_and_rarely_once_it_is_not() -> None:
    sampler = priors()
    assert sampler.share == 0.5
    sampler.adopt(0, {"lr": 0.01, "kind": "b", "other": 0.5})
    sampler.adopt(1, {"lr": 0.9, "kind": "a", "other": 0.5})
    sampler.tell(0, 1, 0.6)
    sampler.tell(1, 1, 0.5)
    assert sampler.share == 0.5
    sampler.tell(1, 3, 0.5)
    assert sampler.share == 0.5 / 4


@pytest.mark.parametrize("name", ["random", "auto"])
def test_rebuilt_sampler_with_priors_repeats_the_same_suggestions(name: SamplerName) -> None:
    first, log = build(name, PRIOR_SPACE), list[Config]()
    for number in range(24):
        config = first.suggest(number)
        assert config is not None
        log.append(config)
        hear_of(first, number, config)
    again = build(name, PRIOR_SPACE)
    for number in range(16):
        again.adopt(number, log[number])
        hear_of(again, number, log[number])
    assert [again.suggest(16)] == [log[16]]
    assert sum(config["lr"] == 0.01 for config in log) >= 1


@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes", "qmc", "grid"])
def test_prior_that_the_sampler_would_ignore_is_refused(name: SamplerName) -> None:
    spec = JobSpec(
        "a", "m:f", Objective("x"), PRIOR_SPACE, Budget(usd=Money(1)), algorithm=Algorithm(sampler=name)
    )
    assert [fault.pointer for fault in prior_faults(spec)] == [
        "/search_space/lr/prior",
        "/search_space/kind/prior",
    ]
    assert prior_faults(replace(spec, algorithm=Algorithm())) == []


@pytest.mark.parametrize("center", [0.0001, 1.0])
def test_wrong_prior_costs_random_search_few_draws(center: float) -> None:
    """The best learning rate is 0.01. Of 100 trials, at most 8 are drawn from a prior at the wrong end."""
    space = Space({"lr": Float(1e-4, 1, log=True, prior=Prior(center, "high"))})
    sampler = build("random", space)
    assert isinstance(sampler, RandomSampler)
    assert sampler.priors is not None
    drawn = 0
    for number in range(100):
        drawn += sampler.priors.draws(number)
        config = sampler.suggest(number)
        assert config is not None
        sampler.tell(number, 1, score(config), 0, at_rung=True)
    assert drawn <= 8
