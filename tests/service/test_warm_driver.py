"""Test how a driver rebuilds its job: it shows progress meanwhile, and its sampler gets the history that earlier drivers gave theirs,
even if the source jobs have changed.
"""

from collections.abc import Sequence
from types import ModuleType

import pytest

from tests import fakes
from tests.fakes import FakeService
from tuner.domain.job import JobSpec
from tuner.domain.records import PastTrial
from tuner.store import jobs, launches
from tuner.tuning.samplers import Sampler, sampler_for


class RecordedHistories(list[Sequence[PastTrial]]):
    """A sampler factory that records the history of each call."""

    def __call__(self, spec: JobSpec, history: Sequence[PastTrial] = ()) -> Sampler:
        self.append(history)
        return sampler_for(spec, history)


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the driver's program, on a cluster without nodes."""
    from tuner.driver import main  # imports Ray

    monkeypatch.setattr(main.ray, "nodes", list)
    return main


def start_driver(main: ModuleType, service: FakeService, job: str) -> None:
    """Run the startup of `main`, up to the first commands for Ray."""
    with service.database.write() as db:
        launch = launches.get(db, job)
        assert launch is not None
        launches.record_heartbeat(db, job, launch.epoch, service.now())
        jobs.begin_running(db, job, at=service.now())
        row = jobs.get(db, job)
    post = main.LaunchContext(service.database, job, launch.epoch)
    main.rebuild(post, service.settings, row, main.Heartbeat(post), died_at=None)


def test_every_driver_of_a_job_passes_the_same_history_to_the_sampler(
    service: FakeService, main: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    histories = RecordedHistories()
    monkeypatch.setattr(main, "sampler_for", histories)
    client = fakes.client_of(service)
    source = fakes.submit(client, budget={"usd": 0.0005})
    run = fakes.simulate(service, source, messages=20)
    job = fakes.submit(client, warm_start={"jobs": [source]})
    start_driver(main, service, job)
    run.run()
    start_driver(main, service, job)
    assert len(histories) == 2
    assert histories[0] == histories[1] != []


def test_job_without_warm_start_passes_an_empty_history(
    service: FakeService, main: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    histories = RecordedHistories()
    monkeypatch.setattr(main, "sampler_for", histories)
    start_driver(main, service, fakes.submit(fakes.client_of(service)))
    assert histories == [[]]


def test_driver_shows_progress_with_each_event_that_it_replays(
    service: FakeService, main: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, turns = fakes.submit(fakes.client_of(service)), list[object]()
    fakes.simulate(service, job, messages=20)
    with service.database.read() as db:
        recorded = jobs.newest_event(db, job)
    monkeypatch.setattr(main.Heartbeat, "turns", lambda heartbeat: turns.append(heartbeat))
    start_driver(main, service, job)
    assert len(turns) == recorded >= 10
