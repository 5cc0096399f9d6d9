"""What a plan infers from a few trials, and from step times that depend on parameters."""

import math
from random import Random
from statistics import pstdev

import pytest

from tuner.domain.job import Resources
from tuner.domain.space import Categorical, Config, Float, Int, Space
from tuner.planning.measured_scaling import SizedTrials, efficiency_at, measured_sizes
from tuner.planning.pace_evidence import Delays, PaceEvidence, SeenTrial, fitted, of_trials
from tuner.planning.paces import DrawnTraining, Paces

SPACE = Space(
    {
        "batch": Int(16, 256, log=True),
        "depth": Int(1, 3),
        "rate": Float(1e-4, 1.0, log=True),
        "how": Categorical(("a", "b")),
    }
)


def pace_ns(config: Config) -> int:
    """Return a product of parameters, because real step times have this form."""
    return round(2e10 * float(str(config["depth"])) / float(str(config["batch"])))


def configs(count: int, seed: int = 0) -> list[Config]:
    rng = Random(seed)
    return [SPACE.sample(rng) for _ in range(count)]


def test_paces_that_depend_on_parameters_are_predicted() -> None:
    known = [SeenTrial(config, pace_ns(config)) for config in configs(12)]
    fit = fitted(known, SPACE)
    assert fit is not None
    error, _ = fit
    assert error < pstdev(math.log(trial.step_ns) for trial in known) / 2


@pytest.mark.parametrize("seed", range(5))
def test_random_paces_give_no_model(seed: int) -> None:
    rng = Random(seed)
    known = [SeenTrial(config, round(1e9 * math.exp(rng.gauss(0, 0.7)))) for config in configs(12, seed)]
    assert fitted(known, SPACE) is None


def seen(configs: list[Config], *, later: float = 1.0, further: int = 3) -> PaceEvidence:
    trials = []
    for number, config in enumerate(configs):
        early = pace_ns(config)
        later_ns = round(early * later) if number < further else None
        curve = ((1, 0.1 + number / 100), (2, 0.2 + number / 100))
        trials.append(SeenTrial(config, early, curve, 2, early_ns=early, later_ns=later_ns))
    return of_trials(trials, source="pilot", delays=Delays(), space=SPACE)


def test_pace_model_reduces_doubt() -> None:
    modelled = seen(configs(12))
    plain = of_trials(modelled.trials, source="pilot", delays=Delays())
    assert modelled.doubt < plain.doubt


def test_later_steps_use_the_observed_later_pace() -> None:
    """The first steps, which compile and read data, take twice as long. One continued trial shows this for all."""
    evidence = seen(configs(12), later=0.5)
    assert evidence.later == pytest.approx(0.5)
    paces = Paces(evidence, 27)
    for trial in evidence.trials:
        early = trial.early_ns or 0
        assert paces.training_ns(trial, 2) == 2 * early
        assert paces.training_ns(trial, 27) == pytest.approx(2 * early + 25 * early / 2, rel=1e-6)


def test_doubt_is_larger_if_no_trial_continued() -> None:
    assert seen(configs(12), further=0).doubt > seen(configs(12)).doubt
    assert seen(configs(12), further=0).later == 1


def test_coarse_steps_take_as_long_as_the_steps_they_represent() -> None:
    evidence = seen(configs(12), later=0.5)
    config = configs(1, seed=7)[0]
    paces = Paces(evidence, 40)
    fine = DrawnTraining(paces, seed=3, factor=1.0, coarse=1)
    coarse = DrawnTraining(paces, seed=3, factor=1.0, coarse=4)
    whole = sum(fine.step_ns(config, step) for step in range(1, 41))
    assert sum(coarse.step_ns(config, step) for step in range(1, 11)) == pytest.approx(whole, rel=1e-6)


def sized(gpus: int, speedup: float, tried: list[Config], **sizes: int) -> SizedTrials:
    trials = tuple(SeenTrial(config, round(pace_ns(config) / speedup)) for config in tried)
    return SizedTrials(Resources(gpus=gpus, **sizes), trials, (f"job_{gpus}",))


@pytest.mark.parametrize("seed", [0, 1], ids=["same configurations", "other configurations"])
def test_scaling_efficiency_does_not_depend_on_the_configurations(seed: int) -> None:
    known, others = configs(30), configs(30, seed=seed)
    one, two, four = measured_sizes(
        [sized(4, 4 * 0.61, others), sized(1, 1, known), sized(2, 2 * 0.8, others)], SPACE
    )
    assert (one.devices, one.efficiency, one.jobs) == (1, 1, ("job_1",))
    near = 1e-5 if seed == 0 else 0.05
    assert float(two.efficiency) == pytest.approx(0.8, rel=near)
    assert float(four.efficiency) == pytest.approx(0.61, rel=near)
    assert float(four.step_ratio) == pytest.approx(1 / (4 * 0.61), rel=near)
    assert four.error < 0.1


def test_efficiency_that_is_not_known_well_is_left_out() -> None:
    assert measured_sizes([], SPACE) == ()
    assert measured_sizes([sized(1, 1, configs(5)), sized(4, 2, configs(2))], SPACE) == (), "too few trials"
    erratic = [SeenTrial(config, 4**number) for number, config in enumerate(configs(4, seed=1))]
    groups = [sized(1, 1, configs(5)), SizedTrials(Resources(gpus=4), tuple(erratic), ("job_4",))]
    assert measured_sizes(groups, SPACE) == (), "too different"


def test_efficiency_between_and_beyond_measured_numbers() -> None:
    known = configs(5)
    sizes = measured_sizes([sized(1, 1, known), sized(4, 4 * 0.61, known)], SPACE)
    assert efficiency_at((), 4) is None
    assert efficiency_at(sizes, 1) == 1
    for count in (2, 4, 8):  # a fixed part of each step is not divided
        share = (1 / 0.61 - 1) / 3
        assert float(efficiency_at(sizes, count) or 0) == pytest.approx(
            1 / (1 + share * (count - 1)), rel=1e-4
        )


def test_efficiency_on_one_node_is_not_that_of_several() -> None:
    known = configs(5)
    sizes = measured_sizes(
        [sized(2, 1, known), sized(1, 0.5, known, nodes=2), sized(4, 2, known), sized(4, 2, known, nodes=2)],
        SPACE,
    )
    assert [float(efficiency_at(sizes, count) or 0) for count in (2, 4, 8)] == pytest.approx(
        [1, 1, 1], rel=1e-4
    )
    assert float(efficiency_at(sizes, 2, nodes=2) or 0) == pytest.approx(0.5, rel=1e-4)
