"""Mirror of jobs and trials as MLflow runs.

Each job is a run. Each trial is a child run with its parameters, its metrics and cost by step, its tags and its outcome.
"""

import contextlib
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

# MLflow's client reads these variables when it is imported.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # otherwise MLflow reports its use to its makers
# Otherwise the client repeats a failed request for minutes. That is not needed, because the follower retries a failed mirror.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.version import VERSION

from tuner.domain.access import DEFAULT_PROJECT
from tuner.domain.time import MS_NS, Instant
from tuner.mirrors.record import (
    ListModels,
    MirroredChanges,
    MirroredJob,
    MirroredModel,
    MirroredTrial,
    Position,
)

T = TypeVar("T")
# Limits of MLflow's API for one request, and for the length of a value.
METRICS_AT_ONCE, PARAMS_AT_ONCE, PAGE, VALUE_MAX = 1000, 100, 1000, 5000
# Tags that the mirror needs to continue a run: the position up to which the job was copied, the job, and the trial.
POSITION, JOB, TRIAL = "tuner.position", "tuner.job", "tuner.trial"
# Tags that identify a registered version. Users may add others.
IDENTITY = (JOB, TRIAL, "tuner.step", "tuner.export", "tuner.format")
MODEL = "model"  # the directory of registered files among the artifacts of a run
ONNX_FILE = "model.onnx"  # the name that exports give to ONNX files
_JOB_STATUS = {"succeeded": "FINISHED", "cancelled": "KILLED", "failed": "FAILED"}


@dataclass
class _TrialRun:
    """The MLflow run of a trial. `last_step` is the newest step in the run, or None until it is looked up in MLflow."""

    run: str
    status: str
    last_step: int | None


@dataclass
class _JobRun:
    run: str
    status: str
    trials: dict[str, _TrialRun] = field(default_factory=dict)


class MlflowMirror:
    """The MLflow mirror. It raises the exceptions of MLflow's client.

    `models`, if given, is a function that returns the models of a job. They are registered as versions of an MLflow model when the job
    has ended, and when an export has succeeded.
    """

    def __init__(self, uri: str, experiment: str, models: ListModels | None = None) -> None:
        self._models = models
        self._client = MlflowClient(tracking_uri=uri)
        self._experiment = self._experiment_of(experiment)
        self._parents: dict[str, _JobRun] = {}

    def positions(self) -> dict[str, Position]:
        positions = {}
        for run in self._runs(f"tags.`{POSITION}` LIKE '%'"):
            position = Position.parse(run.data.tags[POSITION])
            if position is not None and JOB in run.data.tags:
                positions[run.data.tags[JOB]] = position
        return positions

    def write(self, changes: MirroredChanges) -> bool:
        job = changes.job
        parent = self._parents.get(job.id) or self._find(job)
        self._parents[job.id] = parent
        for trial in changes.trials:
            self._update(parent, job, trial, is_last=changes.is_end or trial.is_final)
        if self._models is not None and (changes.is_end or changes.has_new_exports):
            self._register(parent, job, self._models(job.id))
        tags = {**_own(job.tags), **_prefixed(job.attributes()), JOB: job.id, POSITION: str(changes.upto)}
        self._client.log_batch(parent.run, tags=_tags(tags), metrics=[])
        self._end(parent, _JOB_STATUS.get(job.state, "RUNNING"), job.ended_at)
        if changes.is_end:
            del self._parents[job.id]
        return True

    def close(self) -> None:
        pass

    def _experiment_of(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:  # if it exists now, another client created it in the meantime
                    raise
        return str(experiment.experiment_id)

    def _runs(self, condition: str) -> Iterator[Any]:
        token = None
        while True:
            page = self._client.search_runs([self._experiment], condition, max_results=PAGE, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def _find(self, job: MirroredJob) -> _JobRun:
        parent, trials = None, dict[str, _TrialRun]()
        for run in self._runs(f"tags.`{JOB}` = '{job.id}'"):
            if TRIAL in run.data.tags:
                trials[run.data.tags[TRIAL]] = _TrialRun(run.info.run_id, run.info.status, None)
            else:
                parent = _JobRun(run.info.run_id, run.info.status)
        if parent is None:
            tags = {JOB: job.id, "mlflow.note.content": f"[{job.name}]({job.page})"}
            made = self._client.create_run(self._experiment, job.created_at // MS_NS, tags, job.name)
            parent = _JobRun(made.info.run_id, made.info.status)
        parent.trials = trials
        return parent

    def _update(self, parent: _JobRun, job: MirroredJob, trial: MirroredTrial, *, is_last: bool) -> None:
        known = parent.trials.get(trial.id)
        if known is None:
            ids = {JOB: job.id, TRIAL: trial.id, "mlflow.parentRunId": parent.run}
            made = self._client.create_run(self._experiment, trial.created_at // MS_NS, ids, trial.id)
            known = parent.trials[trial.id] = _TrialRun(made.info.run_id, made.info.status, 0)
        if known.last_step is None:
            held = self._client.get_metric_history(known.run, "cost_usd")
            known.last_step = max((point.step for point in held), default=0)
        # The parameters are logged even if the run exists, because a crash may have left a run without them. Logging the same values again
        # changes nothing.
        values = {_name(name): str(value)[:VALUE_MAX] for name, value in trial.config.items()}
        params = [Param(name, value) for name, value in values.items()]
        for some in _portions(params, PARAMS_AT_ONCE):
            self._client.log_batch(known.run, params=some)
        new = [report for report in trial.reports if report.step > known.last_step]
        metrics = [
            Metric(_name(name), value, report.at // MS_NS, report.step)
            for report in new
            for name, value in {
                _name(name): value for name, value in report.numbers(job.metric).items()
            }.items()
        ]
        for portion in _portions(metrics, METRICS_AT_ONCE):
            self._client.log_batch(known.run, metrics=portion)
        known.last_step = max((report.step for report in new), default=known.last_step)
        tags = {**trial.attributes(), "state": trial.state, "best_metric": trial.best}
        self._client.log_batch(known.run, tags=_tags(_prefixed(tags)))
        status = "FAILED" if trial.state == "failed" else "FINISHED" if is_last else "RUNNING"
        self._end(known, status, trial.updated_at)

    def _register(self, parent: _JobRun, job: MirroredJob, models: Sequence[MirroredModel]) -> None:
        """Upload the files of each model, and register them as a version of the job's MLflow model.

        Models that are already registered, and models whose files are missing, are skipped.
        """
        name = _model_name(job)
        held = [
            {key: version.tags[key] for key in IDENTITY if key in version.tags}
            for version in self._client.search_model_versions(f"name = '{name}'")
        ]
        for model in models:
            tags = {
                JOB: job.id,
                TRIAL: model.trial,
                **{f"tuner.{key}": value for key, value in model.tags.items()},
            }
            if tags in held:
                continue
            with model.fetch() as files:
                if files is None:
                    continue
                with contextlib.suppress(MlflowException):  # the registered model exists already
                    self._client.create_registered_model(name)
                run, directory = parent.trials[model.trial].run, f"{MODEL}/{model.directory}"
                if "format" in model.tags and (files / ONNX_FILE).exists():
                    _describe_onnx(files, run)
                self._client.log_artifacts(run, str(files), directory)
                source = f"{self._client.get_run(run).info.artifact_uri}/{directory}"
                self._client.create_model_version(name, source, run, tags, await_creation_for=0)

    def _end(self, known: _TrialRun | _JobRun, status: str, at: Instant | None) -> None:
        if status == known.status:
            return
        if status == "RUNNING":
            self._client.update_run(known.run, status=status)
        else:
            self._client.set_terminated(known.run, status, None if at is None else at // MS_NS)
        known.status = status


def _model_name(job: MirroredJob) -> str:
    """Return the name of the MLflow model of the job: the job's name, after the project's unless that is the default project.

    Job names and project names do not contain `~`, so no job of one project can add a version to a model of another.
    """
    return _name(job.name) if job.project == DEFAULT_PROJECT else f"{job.project}~{_name(job.name)}"


def _prefixed(attributes: Mapping[str, object]) -> dict[str, object]:
    return {f"tuner.{name}": value for name, value in attributes.items() if value is not None}


def _own(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that a job's owner may set in MLflow.

    Tags that begin with `tuner.` or `mlflow.` are left out. Otherwise a tag such as `tuner.job` could make the mirror take this run for that
    of another job. The case is ignored, because some databases of MLflow ignore it.
    """
    return {
        name: value
        for name, value in tags.items()
        if not _name(name).lower().startswith(("tuner.", "mlflow."))
    }


def _tags(tags: Mapping[str, object]) -> list[Any]:
    return [RunTag(_name(name), str(value)[:VALUE_MAX]) for name, value in tags.items()][:PARAMS_AT_ONCE]


def _name(name: str) -> str:
    """Return the name under which MLflow accepts a metric, parameter or tag.

    Each character that MLflow refuses becomes an underscore, and the name is cut to 250 characters. MLflow also treats names as paths, and
    refuses those with an empty part, `.` or `..`. Such parts are left out: `val/` becomes `val`.
    """
    parts = re.sub(r"[^\w.\-/ :]", "_", name)[:250].split("/")
    return "/".join(part for part in parts if part not in ("", ".", "..")) or "_"


def _describe_onnx(folder: Path, run: str) -> None:
    """Write the files that MLflow needs to load and serve an ONNX file: `MLmodel`, and the files that describe its Python environment.

    The files have the keys that `mlflow.onnx.save_model` writes. That function cannot be used here, because it needs ONNX, which only the
    workers have. For the same reason the versions of ONNX and ONNX Runtime are not known, and the requirements do not pin them. Newer
    versions read the files of older ones.

    Args:
        folder: The directory that contains the ONNX file.
        run: The id of the MLflow run to which the files are uploaded.
    """
    python, needs = platform.python_version(), [f"mlflow=={VERSION}", "onnx", "onnxruntime"]
    environment = {"conda": "conda.yaml", "virtualenv": "python_env.yaml"}
    loaded_by = {"loader_module": "mlflow.onnx", "python_version": python, "env": environment}
    described = {
        "MLmodel": {
            "run_id": run,
            "mlflow_version": VERSION,
            "flavors": {
                "onnx": {"data": ONNX_FILE, "providers": ["CUDAExecutionProvider", "CPUExecutionProvider"]},
                "python_function": {"data": ONNX_FILE, **loaded_by},
            },
        },
        "python_env.yaml": {"python": python, "dependencies": ["-r requirements.txt"]},
        "conda.yaml": {
            "name": "mlflow-env",
            "channels": ["conda-forge"],
            "dependencies": [f"python={python}", "pip", {"pip": needs}],
        },
    }
    for name, content in described.items():
        (folder / name).write_text(yaml.safe_dump(content, sort_keys=False))
    (folder / "requirements.txt").write_text("\n".join(needs))


def _portions(items: Sequence[T], size: int) -> Iterator[list[T]]:
    for first in range(0, len(items), size):
        yield list(items[first : first + size])
