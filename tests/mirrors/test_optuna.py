"""An Optuna study equals the record of its job, no matter how often and where the follower restarts."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.study import StudyDirection
from optuna.trial import TrialState
from sqlalchemy import event
from starlette.testclient import TestClient

from tests import fakes
from tests.api.points import put_report
from tests.fakes import FakeService
from tests.mirrors.following import follower, mirror_all
from tuner.domain.events import ControlRequested
from tuner.domain.job import FINAL
from tuner.domain.money import Cost, Money
from tuner.domain.records import ReportRow
from tuner.mirrors import optuna as mirrored
from tuner.mirrors.optuna import OptunaMirror, open_storage
from tuner.service import mirroring
from tuner.simulator.world import Faults
from tuner.store.journal import SqlJournal

SPACE = {
    "lr": {"type": "float", "low": 0.0001, "high": 1.0, "log": True},
    "width": {"type": "int", "low": 8, "high": 64, "log": True},
    "optimizer": {"type": "categorical", "choices": ["sgd", "adamw", None, True, 3]},
    "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": ["sgd"]}},
}
STATES = {"completed": TrialState.COMPLETE, "stopped": TrialState.PRUNED, "failed": TrialState.FAIL}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("optuna") / "optuna.db"
    open_storage(f"sqlite:///{path}").engine.dispose()
    return path


@pytest.fixture(autouse=True)
def _storage(empty: Path, tmp_path: Path) -> None:
    shutil.copyfile(empty, tmp_path / "optuna.db")


def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/optuna.db"


def opened(tmp_path: Path) -> OptunaMirror:
    """A mirror that need not survive a power loss, which makes it faster."""
    mirror = OptunaMirror(url(tmp_path))
    event.listen(mirror._storage.engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = OFF"))
    mirror._storage.engine.dispose()
    return mirror


def study_of(tmp_path: Path, job: str) -> optuna.Study:
    storage = open_storage(url(tmp_path))
    return optuna.load_study(study_name=mirrored.study_name("digits", job), storage=storage)


def trials_of(client: TestClient, job: str) -> list[dict[str, Any]]:
    listed_trials: list[dict[str, Any]] = client.get(f"/v1/jobs/{job}/trials", params={"limit": 500}).json()[
        "items"
    ]
    return [client.get(f"/v1/jobs/{job}/trials/{trial['id']}").json() for trial in listed_trials]


def check_equal(client: TestClient, job: str, study: optuna.Study) -> None:
    shown = {str(trial.user_attrs["tuner:trial"]): trial for trial in study.trials}
    recorded = trials_of(client, job)
    ended = client.get(f"/v1/jobs/{job}").json()["state"] in FINAL
    assert len(study.trials) == len(recorded) > 3
    for trial in recorded:
        held = shown[trial["id"]]
        otherwise = TrialState.PRUNED if ended else TrialState.RUNNING
        assert held.state == STATES.get(trial["state"], otherwise), trial["state"]
        assert held.params == trial["config"]
        assert held.user_attrs["attempts"] == trial["attempts"]
        assert held.user_attrs["preemptions"] == trial["preemptions"]
        if held.state.is_finished():
            assert held.user_attrs["paid_usd"] == trial["paid_usd"]
            assert held.user_attrs.get("latest_metric") == trial["latest_metric"]
        reported = {point["step"]: point["metric"] for point in trial["curve"] if point["metric"] is not None}
        assert held.intermediate_values == reported
        if held.state in (TrialState.COMPLETE, TrialState.PRUNED):
            best = min if study.direction == StudyDirection.MINIMIZE else max
            assert held.value == trial["metric"] == best(reported.values(), default=None)


def test_study_equals_the_record(service: FakeService, client: TestClient, tmp_path: Path) -> None:
    job = fakes.submit(
        client, search_space=SPACE, tags={"owner": "alice"}, objective={"metric": "acc", "mode": "min"}
    )
    up_s = [*((10.5 * n, 10.5 * n + 9) for n in range(3)), (40, None)]
    fakes.simulate(service, job, faults=Faults(crash=0.2), seed=2, up_s=up_s)
    mirror_all(service, lambda: opened(tmp_path))
    study = study_of(tmp_path, job)
    check_equal(client, job, study)
    assert study.direction == optuna.study.StudyDirection.MINIMIZE
    assert study.metric_names == ["acc"]
    attributes = study.user_attrs
    assert (attributes["tuner:job"], attributes["owner"], attributes["budget_usd"]) == (job, "alice", 0.001)
    assert attributes["page"].endswith(f"/#/jobs/{job}")
    assert attributes["spent_usd"] == client.get(f"/v1/jobs/{job}").json()["spend"]["usd"]
    assert any(trial.user_attrs["preemptions"] for trial in study.trials)
    assert study.trials[0].distributions["lr"] == optuna.distributions.FloatDistribution(1e-4, 1, log=True)


def test_infeasible_trial_violates_a_constraint_of_the_study(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    job = fakes.submit(client, constraints=[{"metric": "latency_ms", "max": 20}])
    fakes.begin(service, job)
    journal, at = SqlJournal(service.database, job, service.project, 1, service.now()), service.now()
    with journal.transaction() as tx:
        for number, violation in enumerate((0.5, 0.0)):
            trial, metrics = f"trial_{number:05d}", {"acc": 0.9, "latency_ms": 20 * (1 + violation)}
            put_report(tx, ReportRow(trial, 1, 9, at, 0.9, metrics, Cost(Money(1)), 1, violation))
            tx.put_trial(trial, "completed", at=at, config={"lr": 0.1, "width": 8})
    mirror_all(service, lambda: opened(tmp_path))
    infeasible, feasible = study_of(tmp_path, job).trials
    assert (infeasible.state, infeasible.value) == (TrialState.COMPLETE, 0.9)
    assert (infeasible.constraints, feasible.constraints) == ({"violation": 0.5}, {})


def test_study_follows_a_running_job(service: FakeService, client: TestClient, tmp_path: Path) -> None:
    job = fakes.submit(client)
    run = fakes.simulate(service, job, messages=40)
    mirror_thread = follower(service, lambda: opened(tmp_path))
    mirror_thread.one_pass()
    check_equal(client, job, study_of(tmp_path, job))
    for _ in range(4):
        for _ in range(30):
            run.clock.run_next()
        mirror_thread.one_pass()
        check_equal(client, job, study_of(tmp_path, job))
    run.run(turns_max=100_000)
    mirror_thread.one_pass()
    assert not mirror_thread.is_failing
    check_equal(client, job, study_of(tmp_path, job))
    mirror_thread._release()


class FailsAt:
    """A storage that stops answering at its n-th change."""

    def __init__(self, storage: Any, left: int) -> None:
        self._storage, self._left = storage, left

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._storage, name)
        if not name.startswith(("set_", "create_", "delete_")):
            return attribute

        def changes(*args: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise OSError("it does not answer")
            return attribute(*args)

        return changes


def test_study_has_no_duplicates_or_gaps_after_failures_at_any_write(
    service: FakeService, client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirroring, "REPORTS_AT_ONCE", 7)
    job = fakes.submit(client)
    run = fakes.simulate(service, job, messages=10)

    def opens(left: int) -> Callable[[], OptunaMirror]:
        def made() -> OptunaMirror:
            mirror = opened(tmp_path)
            mirror._storage = FailsAt(mirror._storage, left)  # type: ignore[assignment]
            return mirror

        return made

    failed = 0
    for left in (0, 1, 2, 3, 5, 9, 14, 20, 27):
        for _ in range(12):
            run.clock.run_next()
        mirror_thread = follower(service, opens(left))
        mirror_thread.one_pass()
        failed += mirror_thread.is_failing
        mirror_thread._release()
    run.run(turns_max=100_000)
    assert failed > 4
    mirror_all(service, lambda: opened(tmp_path))
    check_equal(client, job, study_of(tmp_path, job))


def test_resumed_job_keeps_its_study(service: FakeService, client: TestClient, tmp_path: Path) -> None:
    job = fakes.submit(client, budget={"usd": 0.0005})
    fakes.simulate(service, job)
    mirror_thread = follower(service, lambda: opened(tmp_path))
    mirror_thread.one_pass()
    before = study_of(tmp_path, job)
    now = service.now()
    assert client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.001}}).is_success
    assert client.post(f"/v1/jobs/{job}/resume").status_code == 202
    with fakes.SimulatedSqlJournal(service.database, job, service.project, now).transaction() as tx:
        tx.append(ControlRequested(now, "resume"))
    mirror_thread.one_pass()
    assert not mirror_thread.is_failing
    mirror_thread._release()
    check_equal(client, job, study_of(tmp_path, job))
    assert len(study_of(tmp_path, job).trials) == len(before.trials)


def test_only_one_of_several_services_writes(
    service: FakeService, client: TestClient, tmp_path: Path
) -> None:
    job = fakes.submit(client)
    fakes.simulate(service, job)
    first, second = (follower(service, lambda: opened(tmp_path)) for _ in range(2))
    first.one_pass()
    written = len(study_of(tmp_path, job).trials)
    other = fakes.submit(client)
    fakes.simulate(service, other)
    second.one_pass()
    with pytest.raises(KeyError):
        study_of(tmp_path, other)
    service.now.pass_s(31)  # the first service's lease has run out
    second.one_pass()
    assert len(study_of(tmp_path, other).trials) > 3
    assert len(study_of(tmp_path, job).trials) == written
    first.one_pass()
    second._release()
    first.one_pass()
    assert not first.is_failing


def test_long_curves_are_thinned_but_keep_their_rungs() -> None:
    rungs = (1, 3, 9, 27, 81, 243, 729)
    steps = [step for step in range(1, 1001) if mirrored.is_written(step, 1000, rungs)]
    assert {*rungs, 1000} <= set(steps)
    assert 20 < len(steps) <= 30
    assert all(mirrored.is_written(step, 20, ()) for step in range(1, 21))
