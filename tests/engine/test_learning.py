"""What a sampler is told of reports."""

from tuner.domain import events as ev
from tuner.domain.budget import Budget
from tuner.domain.fidelity import Fidelity
from tuner.domain.job import JobSpec
from tuner.domain.money import ZERO, Money, Price, Rate
from tuner.domain.objective import Objective
from tuner.domain.space import Config, Float, Space
from tuner.domain.time import NS, Instant
from tuner.engine.learning import Learner
from tuner.tuning.samplers.simple import RandomSampler
from tuner.tuning.state import State, TrialRecord

SPACE = Space({"x": Float(0, 1)})


class Listener(RandomSampler):
    def __init__(self) -> None:
        super().__init__(SPACE, 0)
        self.heard: list[tuple[int, int, float, int, bool]] = []

    def adopt(self, number: int, config: Config | None) -> None:
        pass

    def tell(self, number: int, step: int, score: float, trained_ns: int, *, at_rung: bool) -> None:
        self.heard.append((number, step, score, trained_ns, at_rung))


def test_a_report_beyond_its_rung_tells_the_rung_the_time_up_to_it() -> None:
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
        told = ev.Reported(Instant(0), record.id, step, 0.5, ZERO, True, 0)
        learner.learn(state, told)
    assert listener.heard == [
        (0, rung - 1, 0.5, 30 * NS, False),
        (0, rung, 0.5, 60 * NS * rung // (rung + 1), True),
    ]
