"""MLflow's store has the recorded data, also after outages: one run per job with one child run per trial."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.test_exports import DONE, begin, run
from tests.driver.export_actors import FakeExportActors
from tests.fakes import FakeService
from tests.mirrors.following import follower, mirror_all
from tests.mirrors.test_follower import new_job
from tests.mirrors.test_optuna import trials_of
from tuner.checkpoints.checkpoints import CheckpointStore
from tuner.domain.money import FREE
from tuner.domain.time import Instant
from tuner.mirrors.record import MirroredChanges, MirroredModel, MirroredReport, MirroredTrial, Position
from tuner.service import mirroring
from tuner.service.checkpoints import choose
from tuner.store import jobs

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow uses deprecated features of SQLAlchemy


def mirror_to(uri: str, experiment: str, *more: Any) -> Any:
    """Open a mirror. MLflow is imported here, because that takes seconds."""
    from tuner.mirrors.mlflow import MlflowMirror

    return MlflowMirror(uri, experiment, *more)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a database of MLflow. With a database, MLflow stores files below the directory in which it was opened first."""
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield f"sqlite:///{folder}/mlflow.db"


def check_equal(client: TestClient, job: str, uri: str, experiment: str) -> None:
    from mlflow.tracking import MlflowClient

    held = MlflowClient(uri)
    (held_experiment,) = held.search_experiments(filter_string=f"name = '{experiment}'")
    runs = held.search_runs([held_experiment.experiment_id], f"tags.`tuner.job` = '{job}'", max_results=500)
    (parent,) = [run for run in runs if "tuner.trial" not in run.data.tags]
    shown = client.get(f"/v1/jobs/{job}").json()
    assert parent.info.status == ("FINISHED" if shown["state"] == "succeeded" else "RUNNING")
    assert parent.data.tags["tuner.owner"] == "alice"
    assert float(parent.data.tags["tuner.spent_usd"]) == shown["spend"]["usd"]
    recorded = trials_of(client, job)
    assert len(runs) == len(recorded) + 1 > 4
    by_trial = {run.data.tags.get("tuner.trial"): run for run in runs}
    for trial in recorded:
        run = by_trial[trial["id"]]
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.data.tags["tuner.state"] == trial["state"]
        assert run.data.params == {name: str(value) for name, value in trial["config"].items()}
        history = held.get_metric_history(run.info.run_id, "acc") if trial["curve"] else []
        reported = [(curve_point["step"], curve_point["metric"]) for curve_point in trial["curve"]]
        assert sorted((point.step, point.value) for point in history) == reported
        if shown["state"] == "succeeded":
            assert run.info.status == ("FAILED" if trial["state"] == "failed" else "FINISHED")
            assert float(run.data.tags["tuner.paid_usd"]) == trial["paid_usd"]
            best = held.get_metric_history(run.info.run_id, "best_acc") if trial["curve"] else []
            up_to = list(accumulate((value for _, value in reported), max))
            assert [point.value for point in sorted(best, key=lambda best_point: best_point.step)] == up_to


class Refusing:
    """A client whose server stops answering at its n-th change."""

    def __init__(self, client: Any, left: int) -> None:
        self._client, self._left = client, left

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        if not name.startswith(("create", "log", "set", "update")):
            return attribute

        def changes(*args: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise ConnectionError("connection refused")
            return attribute(*args, **named)

        return changes


def test_runs_equal_the_record_after_failures_at_any_write(
    service: FakeService, client: TestClient, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirroring, "REPORTS_AT_ONCE", 9)
    job = fakes.submit(client, tags={"owner": "alice"}, budget={"usd": 0.001})
    run = fakes.simulate(service, job, messages=20)

    def opens(left: int) -> Callable[[], Any]:
        def made() -> Any:
            mirror = mirror_to(uri, "some")
            mirror._client = Refusing(mirror._client, left)
            return mirror

        return made

    failed = 0
    for left in (0, 1, 2, 4, 7, 11, 16):
        for _ in range(6):
            run.clock.run_next()
        mirror_thread = follower(service, opens(left))
        mirror_thread.one_pass()
        failed += mirror_thread.is_failing
        mirror_thread._release()
    assert failed > 3
    mirror_all(service, lambda: mirror_to(uri, "some"))
    check_equal(client, job, uri, "some")
    run.run(turns_max=100_000)
    mirror_all(service, lambda: mirror_to(uri, "some"))
    check_equal(client, job, uri, "some")


def test_mirror_catches_up_after_the_server_was_down(
    service: FakeService, client: TestClient, uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = fakes.submit(client, tags={"owner": "alice"}, budget={"usd": 0.001})
    fakes.simulate(service, job)
    at = "http://127.0.0.1:9"  # no server listens there
    mirror_thread = follower(service, lambda: mirror_to(at, "other"), "mlflow")
    for _ in range(3):
        mirror_thread.one_pass()
        assert mirror_thread.is_failing
    warned = [record for record in caplog.records if record.levelname == "WARNING" and "tuner" in record.name]
    assert len(warned) == 1
    at = uri
    mirror_thread.one_pass()
    assert not mirror_thread.is_failing
    mirror_thread._release()
    check_equal(client, job, uri, "other")


def test_best_checkpoint_and_exported_files_of_a_job_are_registered_once(
    service: FakeService, client: TestClient, uri: str, tmp_path: Path
) -> None:
    from mlflow.tracking import MlflowClient

    job = fakes.submit(client, name="registered", budget={"usd": 0.0004})
    fakes.simulate(service, job)
    best = client.get(f"/v1/jobs/{job}/best").json()
    stored = client.get(f"/v1/jobs/{job}/trials/{best['trial']}").json()["checkpoints"]
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "state.pt").write_text("weights")
    opens = partial(mirror_to, uri, "models", partial(mirroring.models, service))
    (missing,) = mirroring.models(service, job)
    with missing.fetch() as files:
        assert files is None
    with service.database.read() as db:
        chosen = choose(db, jobs.get(db, job), best["trial"], None)
    assert chosen.step in [file["step"] for file in stored]
    store = CheckpointStore(service.settings.storage, "default", job)
    store.publish(best["trial"], chosen.attempt, chosen.step, tmp_path / "files")

    mirror_all(service, opens)
    held = MlflowClient(uri)
    (version,) = held.search_model_versions("name = 'registered'")
    assert version.tags == {"tuner.job": job, "tuner.trial": best["trial"], "tuner.step": str(chosen.step)}
    assert held.get_run(version.run_id).data.tags["tuner.trial"] == best["trial"]
    assert (Path(version.source.removeprefix("file://")) / "state.pt").read_text() == "weights"
    (parent,) = [
        run for run in opens()._runs(f"tags.`tuner.job` = '{job}'") if "tuner.trial" not in run.data.tags
    ]
    held.delete_tag(parent.info.run_id, "tuner.position")  # as after a crash before it was written
    mirror_all(service, opens)
    assert len(held.search_model_versions("name = 'registered'")) == 1

    held.set_model_version_tag("registered", "1", "stage", "prod")  # as users do
    assert client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.1}}).is_success
    export = begin(client, job)["id"]
    (tmp_path / "work/onnx").mkdir(parents=True)
    (tmp_path / "work/onnx/model.onnx").write_bytes(doubling())
    store.publish(export, 1, 1, tmp_path / "work")
    run(service, job, export, FakeExportActors(DONE))
    for _ in range(2):
        mirror_all(service, opens)
    older, newer = sorted(held.search_model_versions("name = 'registered'"), key=lambda v: int(v.version))
    assert older.tags == {**version.tags, "stage": "prod"}
    assert newer.tags == {**version.tags, "tuner.export": export, "tuner.format": "onnx"}

    import mlflow

    assert mlflow.onnx.load_model(newer.source).SerializeToString() == doubling()
    served = mlflow.pyfunc.load_model(newer.source)
    assert served.predict(np.ones((3, 1), "float32"))["y"].tolist() == [[2], [2], [2]]
    assert mlflow.pyfunc.get_model_dependencies(newer.source, "conda").endswith("conda.yaml")
    needed = Path(mlflow.pyfunc.get_model_dependencies(newer.source)).read_text()
    assert needed.split() == [f"mlflow=={mlflow.__version__}", "onnx", "onnxruntime"]


def new_trial() -> MirroredTrial:
    return MirroredTrial(
        "trial_00000", 0, {}, "running", "", 0.5, 0.5, 0.0, FREE, 1, 0, Instant(0), Instant(0)
    )


def test_names_and_numbers_that_mlflow_refuses_do_not_stop_the_mirror(uri: str) -> None:
    from mlflow.tracking import MlflowClient

    metrics = {
        "val/": 1.0,
        "a//b": 2.0,
        "": 3.0,
        "/../up": 4.0,
        "huge": 10**400,
        "infinite": math.inf,
        "acc": 5,
    }
    report = MirroredReport(1, Instant(0), 0.5, metrics, FREE)
    config = {"lr/": 0.1, "lr": 0.2}
    trial = replace(new_trial(), config=config, reports=[report])
    job = replace(new_job("job_names"), tags={"team/": "vision"})
    assert mirror_to(uri, "names").write(MirroredChanges(job, [trial], Position(1, "running")))
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("names")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], "tags.`tuner.trial` = 'trial_00000'")
    assert run.data.metrics == {
        **{"val": 1.0, "a/b": 2.0, "_": 3.0, "up": 4.0, "acc": 5.0},
        **{"loss": 0.5, "gpu_hours": 0.0, "cost_usd": 0.0},
    }
    assert run.data.params == {"lr": "0.2"}


def test_tags_of_a_job_cannot_make_its_run_that_of_another_job(uri: str) -> None:
    opens = partial(mirror_to, uri, "owned")
    positions = {"job_a": Position(3, "running"), "job_b": Position(900, "running")}
    ids = {"tuner.job/": "job_a", "./tuner.job": "job_a", "tuner.trial": "trial_00000"}
    taken = {**ids, "Tuner.Position": "1 failed 0", "mlflow.runName": "job_a", "team": "vision"}
    mirror = opens()
    for _ in range(2):
        for job, tags in (("job_a", {}), ("job_b", taken)):
            mirror.write(MirroredChanges(replace(new_job(job), tags=tags), [], positions[job]))
    mirror = opens()
    assert mirror.positions() == positions
    (run,) = mirror._runs("tags.`tuner.job` = 'job_b'")
    assert run.info.run_name == "job_b"
    assert run.data.tags["team"] == "vision"
    assert not {"tuner.trial", "Tuner.Position"} & run.data.tags.keys()


def test_jobs_of_several_projects_do_not_share_a_registered_model(uri: str, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    model = MirroredModel("trial_00000", "step_1", {"step": "1"}, lambda: nullcontext(tmp_path))
    mirror = mirror_to(uri, "projects", lambda _: [model])
    for project in ("default", "vision"):
        job = replace(new_job(f"job_of_{project}"), name="shared", project=project)
        changes = MirroredChanges(job, [new_trial()], Position(1, "running", 1), has_new_exports=True)
        assert mirror.write(changes)
    for name, job_id in (("shared", "job_of_default"), ("vision~shared", "job_of_vision")):
        (version,) = MlflowClient(uri).search_model_versions(f"name = '{name}'")
        assert version.tags["tuner.job"] == job_id
    (run,) = mirror._runs("tags.`tuner.project` = 'vision'")
    assert run.data.tags["tuner.job"] == "job_of_vision"


def doubling() -> bytes:
    """Return an ONNX file whose output is twice its input."""
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "doubling", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return made.SerializeToString()
