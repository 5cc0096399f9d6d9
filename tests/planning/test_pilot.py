"""The pilot: a small job that runs before a job."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import examples
from tuner.domain.budget import Budget
from tuner.domain.job import JobSpec, Resources
from tuner.domain.money import Money, Price, Rate
from tuner.domain.objective import Fidelity, Objective
from tuner.domain.space import Config, Float, Int, Space
from tuner.domain.time import NS
from tuner.driver.ports import LoopConfig
from tuner.planning.pilot import PilotLimits, pilot_key, pilot_of
from tuner.simulator.world import SimulatedRun

LIMITS = PilotLimits(usd=Money(50_000))


def job(**changes: object) -> JobSpec:
    right = JobSpec(
        "digits",
        "trainables.digits_mlp:train",
        Objective("acc", "max", 0.9),
        Space({"lr": Float(0.001, 1.0, log=True), "width": Int(8, 64)}),
        Budget(usd=Money(1_000_000), trials=500),
        fidelity=Fidelity("epoch", 3, 27),
        tags={"owner": "alice"},
    )
    return replace(right, **changes)  # type: ignore[arg-type]


@examples(50)
@given(
    most=st.none() | st.integers(1, 100),
    steps=st.integers(1, 20),
    trials=st.integers(1, 100),
    name=st.text("abc", min_size=1, max_size=100),
)
def test_pilot_is_a_valid_job_no_longer_than_the_original(
    most: int | None, steps: int, trials: int, name: str
) -> None:
    asked = job(name=name, fidelity=Fidelity("epoch", 1, most))
    limits = PilotLimits(usd=Money(50_000), trials=trials, steps=steps)
    pilot = pilot_of(asked, limits, "key")
    assert pilot.faults() == []
    assert pilot.budget == Budget(usd=Money(50_000), trials=trials)
    longest = pilot.fidelity.max
    assert longest is not None
    assert longest <= (most or longest)
    assert pilot.fidelity.min <= steps
    assert pilot.objective.target is None
    assert pilot.tags == {"owner": "alice", "pilot": "key"}
    assert (pilot.space, pilot.constants, pilot.resources) == (asked.space, asked.constants, asked.resources)


class Flat:
    """Training whose steps all take a second, with the same metric for all configurations, so that the oldest trials are promoted."""

    def step_ns(self, config: Config, step: int) -> int:
        return NS

    def value(self, config: Config, step: int) -> float:
        return 0.5


def test_best_of_every_four_configurations_is_trained_to_the_last_step() -> None:
    pilot = pilot_of(job(), PilotLimits(usd=Money(500_000)), "key")
    assert pilot.fidelity.rungs() == (2,)
    run = SimulatedRun(pilot, LoopConfig("job_0", Rate(Price(50_000), 0), 2, 10 * NS), Flat())
    run.run(turns_max=100_000)
    assert sorted(trial.steps for trial in run.loop.state.trials) == [2] * 9 + [8] * 3


def test_pilot_does_not_continue_trials_of_earlier_jobs() -> None:
    """A job that continues checkpoints without naming a job is refused."""
    asked = job(warm_start_jobs=("job_1",), warm_start_checkpoints=True)
    pilot = pilot_of(asked, LIMITS, "key")
    assert (pilot.warm_start_jobs, pilot.warm_start_checkpoints) == ((), False)


@pytest.mark.parametrize(
    ("limits", "pointer"),
    [
        (PilotLimits(), ""),
        (PilotLimits(gpu_ms=1000), "/usd"),
        (PilotLimits(usd=Money(0)), "/usd"),
        (PilotLimits(usd=Money(1_000_000)), "/usd"),
        (PilotLimits(usd=Money(1), gpu_ms=0), "/gpu_hours"),
        (PilotLimits(usd=Money(1), trials=0), "/trials"),
        (PilotLimits(usd=Money(1), steps=0), "/steps"),
    ],
)
def test_invalid_pilot_limits_are_reported_with_their_field(limits: PilotLimits, pointer: str) -> None:
    assert LIMITS.faults(job()) == []
    assert pointer in [fault.pointer for fault in limits.faults(job())]


def test_pilot_key_depends_on_code_space_and_resources_but_not_budget_or_market() -> None:
    key = pilot_key(job(), "code")
    for same in (
        job(budget=Budget(usd=Money(7))),
        job(name="other"),
        job(resources=Resources(market="spot")),
        job(fidelity=Fidelity("epoch", 1, 9)),
        job(tags={}),
    ):
        assert pilot_key(same, "code") == key
    others = [
        pilot_key(job(), "changed"),
        pilot_key(job(trainable="trainables.digits_cnn:train"), "code"),
        pilot_key(job(space=Space({"lr": Float(0.001, 1.0, log=True)})), "code"),
        pilot_key(job(space=Space({"lr": Float(0.001, 1.0), "width": Int(8, 64)})), "code"),
        pilot_key(job(resources=Resources(cpus=2)), "code"),
        pilot_key(job(constants={"data_dir": "/data"}), "code"),
    ]
    assert len({key, *others}) == 7
