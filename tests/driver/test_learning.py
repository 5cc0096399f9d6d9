"""Test which reports the sampler receives, and what it is asked to suggest for a free worker."""

import math
from collections.abc import Mapping
from dataclasses import replace

from tests.tuning.test_reserve import SHORT, Trial, state_of, without_last_step
from tests.tuning.test_schedulers import paused
from tuner.domain import commands as do
from tuner.domain import events as ev
from tuner.domain.budget import Budget
from tuner.domain.job import JobSpec
from tuner.domain.money import ZERO, Money, Price, Rate
from tuner.domain.objective import Fidelity, Objective
from tuner.domain.space import Config, Float, Space
from tuner.domain.time import NS, Instant
from tuner.driver.learning import Learner
from tuner.simulator.worker import SimulatedClock
from tuner.tuning.samplers.base import Forecast
from tuner.tuning.samplers.simple import RandomSampler
from tuner.tuning.state import State, TrialRecord

SPACE = Space({"x": Float(0, 1)})


class Listener(RandomSampler):
    def __init__(self, foretells: Mapping[int, Forecast] | None = None) -> None:
        super().__init__(SPACE, 0)
        self.results: list[tuple[int, int, float, int, bool]] = []
        self.foretells = foretells

    def forecast(self) -> Mapping[int, Forecast] | None:
        return self.foretells

    def adopt(self, number: int, config: Config | None) -> None:
        pass

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
        self.results.append((number, step, score, trained_ns, at_rung))


def test_configuration_that_is_enqueued_after_the_space_is_exhausted_is_adopted() -> None:
    adopted: list[tuple[int, Config | None]] = []

    class Exhausted(Listener):
        def suggest(self, number: int, step_s: float = math.inf) -> Config | None:
            return None

        def adopt(self, number: int, config: Config | None) -> None:
            adopted.append((number, config))

    spec = JobSpec("a", "m:f", Objective("acc"), SPACE, Budget(usd=Money(1)))
    state = State.fresh(spec, concurrency=1, rate=Rate(Price(1)))
    learner, at = Learner(spec, Exhausted()), Instant(0)
    nothing = learner.suggest(state, "trial_00000", at)
    for event in (nothing, ev.Suggested(at, "trial_00000", {"x": 0.5})):
        learner.learn(state, event)
    assert adopted == [(0, {"x": 0.5})]


def test_report_beyond_a_rung_credits_the_rung_with_proportional_time() -> None:
    spec = JobSpec(
        "a", "m:f", Objective("acc"), SPACE, Budget(usd=Money(1)), fidelity=Fidelity(min=4, max=40)
    )
    state = State.fresh(spec, concurrency=1, rate=Rate(Price(1)))
    rung = state.rungs[0].step
    record = TrialRecord(0, {"x": 0.5}, state.max_step)
    state.trials.append(record)
    listener = Listener()
    learner = Learner(spec, listener)
    for step, seconds in ((rung - 1, 30), (rung + 1, 60)):
        record.steps, record.value, record.trained_ns = step, 0.5, seconds * NS
        report = ev.Reported(Instant(0), record.id, step, 0.5, ZERO, True, 0)
        learner.learn(state, report)
    assert listener.results == [
        (0, rung - 1, 0.5, 30 * NS, False),
        (0, rung, 0.5, 60 * NS * rung // (rung + 1), True),
    ]


def answers(state: State, order: do.Suggest | do.Predict, foretells: Mapping[int, Forecast]) -> ev.Event:
    return Learner(state.spec, Listener(foretells)).answer(state, order, SimulatedClock())


def test_trial_that_earned_promotion_comes_before_a_new_one() -> None:
    state, order = paused(0.1, 0.4, 0.2, 0.3), do.Suggest("trial_00004")
    answer = answers(state, order, {2: (0.9, 0.0)})
    assert isinstance(answer, ev.Predicted)
    assert (answer.trial, answer.go) == ("trial_00002", True)
    nobody = answers(state, order, {})
    assert isinstance(nobody, ev.Suggested)
    state.queue.append({"x": 0.25})
    assert answers(state, order, {2: (0.9, 0.0)}) == replace(nobody, config={"x": 0.25})
    assert nobody.trial == "trial_00004"


def test_best_forecast_continues_at_rung_and_others_pause() -> None:
    state, foretells = paused(0.1, 0.4, 0.2, 0.3), {2: (0.9, 0.0), 3: (0.1, 0.0)}
    for number, goes in ((2, True), (3, False)):
        state.set(state.trials[number], "running")
        answer = answers(state, do.Predict(f"trial_0000{number}"), foretells)
        assert isinstance(answer, ev.Predicted)
        assert (answer.trial, answer.go) == (f"trial_0000{number}", goes)


def test_no_new_trial_is_suggested_from_the_leaders_reserve() -> None:
    answer = answers(state_of(25, Trial("running", 20, 40)), do.Suggest("trial_00001"), {})
    assert isinstance(answer, ev.Predicted)
    assert (answer.trial, answer.go) == (None, False)


def test_trial_that_failed_before_first_rung_is_reported_once() -> None:
    state = paused(0.1)
    record, listener = state.trials[0], Listener()
    learner, rung = Learner(state.spec, listener), state.rungs[0].step
    record.steps, record.trained_ns = rung - 1, 3 * NS
    state.set(record, "failed")
    for _ in range(2):
        learner.learn(state, ev.Failed(Instant(0), record.id, "out of memory"))
    assert listener.results == [(0, rung - 1, 0.1, 3 * NS, True)]


def test_no_trial_without_a_last_step_is_suggested_if_the_budget_ends_before_it() -> None:
    for left_s, kind in ((9, ev.Predicted), (10, ev.Suggested)):
        assert type(answers(without_last_step(left_s, SHORT), do.Suggest("trial_00001"), {})) is kind
    queued = without_last_step(9, SHORT)
    queued.queue.append({"x": 0.25})
    assert isinstance(answers(queued, do.Suggest("trial_00001"), {}), ev.Suggested)
