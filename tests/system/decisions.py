"""The decisions of a job: its trials, how far each was trained, and what each step reported.

They depend neither on time nor on machines, so the simulator makes the same ones. A job that was killed, preempted or
topped up is compared with a simulated job to which nothing happened.
"""

from dataclasses import dataclass
from typing import Any

from tests.system.serving import job
from tuner.api.translate import spec_of
from tuner.client import Client
from tuner.domain.money import Price, Rate
from tuner.domain.space import Config
from tuner.driver.ports import LoopConfig
from tuner.schemas.job import JobRequest
from tuner.simulator.world import SimulatedRun


@dataclass(frozen=True)
class Decided:
    trials: dict[str, tuple[dict[str, Any], str]]  #: configuration and state, by trial
    reports: list[tuple[str, int, float | None]]  #: trial, step and metric, in the order of the reports


class Steady:
    """`train` of user_code/steady.py."""

    def step_ns(self, config: Config, step: int) -> int:
        return 50_000_000

    def value(self, config: Config, step: int) -> float:
        return float(str(config["x"])) * (1 - 0.9**step)


def decided(client: Client, job: str) -> Decided:
    """Return what a job decided. No report of it was lost or doubled."""
    trials = list(client.trials(job))
    points = []
    for trial in trials:
        curve = client.trial(job, trial.id).curve
        assert [point.step for point in curve] == list(range(1, trial.steps + 1))
        points += [(point.at, trial.id, point.step, point.metric) for point in curve]
    states = {trial.id: (trial.config, trial.state) for trial in trials}
    return Decided(states, [(trial, step, metric) for _, trial, step, metric in sorted(points)])


def undisturbed(**request: Any) -> Decided:
    """Return what the job of a request decides when it runs one trial of `Steady` at a time."""
    spec = spec_of(JobRequest.model_validate(job("steady:train", **request)))
    run = SimulatedRun(spec, LoopConfig("job_0", Rate(Price(50_000), 0), 1, 10 * 10**9), Steady())
    run.run()
    tables = run.journal.tables
    return Decided(
        {name: (dict(config), state) for name, (state, config, _) in tables.trials.items()},
        [(trial, step, row.value) for (trial, step), row in tables.reports.items()],
    )
