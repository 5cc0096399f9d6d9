"""Mirror of jobs as Optuna studies, for optuna-dashboard and other tools that read Optuna's storage.

How trials are shown:

- A trial that reached its last step is COMPLETE. A trial that its scheduler or the end of the job stopped is PRUNED, as
  with Optuna's own pruners. A trial that waits at a rung is RUNNING until the job ends.
- The value of a trial is its best metric value at any step, as everywhere in this project. The attribute `latest_metric` is
  the metric value at its newest step.
- Optuna considers only COMPLETE trials for the best of a study, so the attributes `best_trial` and `best_metric` give the
  best of the job.
- Optuna does not allow changes of a finished trial, so if such a trial resumes after a top-up, the study is created again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tuner.domain.space import Categorical, Float, Int, Parameter, steps_of
from tuner.domain.time import NS, Instant
from tuner.mirrors.record import MirroredChanges, MirroredJob, MirroredTrial, Position

# About how many metric values of a trial are written, in addition to those at rungs. Optuna takes 0.6 to 1 ms for each.
VALUES_MAX = 20
# Attributes that the mirror needs to continue a study: the position up to which the job was copied, the job, and the trial.
POSITION, JOB, TRIAL = "tuner:position", "tuner:job", "tuner:trial"


@dataclass
class _StoredTrial:
    """The state of a trial in the study, so that only differences are written."""

    id: int
    finished: bool
    steps: set[int]  # the steps whose values are written
    attrs: Mapping[str, Any]


@dataclass
class _Study:
    id: int
    trials: dict[str, _StoredTrial] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)


class OptunaMirror:
    """The Optuna mirror. It raises the exceptions of Optuna and its database."""

    def __init__(self, url: str) -> None:
        self._storage = open_storage(url)
        self._studies: dict[str, _Study] = {}

    def positions(self) -> dict[str, Position]:
        positions = {}
        for study in self._storage.get_all_studies():
            position = Position.parse(study.user_attrs.get(POSITION))
            if JOB in study.user_attrs and position is not None:
                positions[str(study.user_attrs[JOB])] = position
        return positions

    def write(self, changes: MirroredChanges) -> bool:
        job = changes.job
        study = self._studies.get(job.id) or self._find(job)
        self._studies[job.id] = study
        trials = [
            replace(trial, state="stopped") if changes.is_end and not trial.is_final else trial
            for trial in changes.trials
        ]
        finished = {name for name, stored in study.trials.items() if stored.finished}
        # Optuna cannot change a finished trial, so the study is created again if such a trial has resumed.
        if any(trial.id in finished and not trial.is_final for trial in trials):
            self._storage.delete_study(study.id)
            del self._studies[job.id]
            return False
        for trial in trials:
            self._update(study, job, trial)
        for name, value in {
            JOB: job.id,
            **job.attributes(),
            "page": job.page,
            POSITION: str(changes.upto),
        }.items():
            if name not in study.attrs or study.attrs[name] != value:
                self._storage.set_study_user_attr(study.id, name, value)
                study.attrs[name] = value
        if changes.is_end:
            del self._studies[job.id]  # mirrored to its end; the study is read again if the job resumes
        return True

    def close(self) -> None:
        self._storage.remove_session()
        self._storage.engine.dispose()

    def _find(self, job: MirroredJob) -> _Study:
        direction = StudyDirection.MAXIMIZE if job.mode == "max" else StudyDirection.MINIMIZE
        try:
            study = _Study(self._storage.get_study_id_from_name(study_name(job.name, job.id)))
        except KeyError:
            study = _Study(self._storage.create_new_study([direction], study_name(job.name, job.id)))
            self._storage.set_study_system_attr(study.id, "study:metric_names", [job.metric])
            return study
        study.attrs = dict(self._storage.get_study_user_attrs(study.id))
        for held in self._storage.get_all_trials(study.id, deepcopy=False):
            known = _StoredTrial(
                held._trial_id, held.state.is_finished(), set(held.intermediate_values), held.user_attrs
            )
            study.trials[str(held.user_attrs.get(TRIAL))] = known
        return study

    def _update(self, study: _Study, job: MirroredJob, trial: MirroredTrial) -> None:
        """Create or update a trial of the study, so that it shows the current state of `trial`."""
        values, attrs = _values(job, trial), {TRIAL: trial.id, **trial.attributes()}
        known = study.trials.get(trial.id)
        if known is None:
            made = _frozen(job, trial, values, attrs)
            number = self._storage.create_new_trial(study.id, made)
            study.trials[trial.id] = _StoredTrial(number, trial.is_final, set(values), attrs)
            return
        if known.finished:
            return
        for step in sorted(values.keys() - known.steps):
            self._storage.set_trial_intermediate_value(known.id, step, values[step])
            known.steps.add(step)
        for name, value in attrs.items():
            if known.attrs.get(name) != value:
                self._storage.set_trial_user_attr(known.id, name, value)
        known.attrs = attrs
        if trial.is_final:
            for name, violations in _violation(trial).items():
                self._storage.set_trial_system_attr(known.id, name, violations)
            state, value = _outcome(trial)
            self._storage.set_trial_state_values(known.id, state, None if value is None else [value])
            known.finished = True


def open_storage(url: str) -> RDBStorage:
    """Open Optuna's storage at a database URL, and create it if necessary. Exceptions of the database are passed on to the caller."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for short in ("postgresql://", "postgres://"):
        if url.startswith(short):
            url = f"postgresql+psycopg://{url.removeprefix(short)}"
    return RDBStorage(url)


def study_name(name: str, job: str) -> str:
    return f"{name} {job}"


def _values(job: MirroredJob, trial: MirroredTrial) -> dict[int, float]:
    """Return the metric values of the trial's new reports that are to be written, by step.

    The last value of a finished trial is always included.
    """
    values = {report.step: report.value for report in trial.reports if report.value is not None}
    last = max(values, default=None) if trial.is_final else None
    return {
        step: value
        for step, value in values.items()
        if is_written(step, job.max_step, job.rungs) or step == last
    }


def is_written(step: int, max_step: int | None, rungs: Sequence[int]) -> bool:
    """Return whether the metric value of a step is written to Optuna.

    If a trial has at most VALUES_MAX steps, all values are written. If it has more, only the values of the first step, the last step, the
    rungs and about VALUES_MAX steps at equal intervals are written.
    """
    every = max(1, -(-(max_step or 0) // VALUES_MAX))
    return step % every == 0 or step in (1, max_step, *rungs)


def _outcome(trial: MirroredTrial) -> tuple[TrialState, float | None]:
    match trial.state:
        case "completed" if trial.value is not None:
            return TrialState.COMPLETE, trial.value if trial.best is None else trial.best
        case "completed" | "failed":  # Optuna has no completed trials without a value
            return TrialState.FAIL, None
        case "stopped":
            return TrialState.PRUNED, trial.value if trial.best is None else trial.best
        case _:
            return TrialState.RUNNING, None


def _violation(trial: MirroredTrial) -> dict[str, Any]:
    """Return the system attribute by which Optuna recognizes that a trial violates a constraint.

    Return an empty dictionary if at least one report of the trial satisfied all constraints, or if no violation is known.
    """
    return {"constraints:violation": trial.violation} if trial.best is None and trial.violation else {}


def _frozen(
    job: MirroredJob, trial: MirroredTrial, values: Mapping[int, float], attrs: Mapping[str, Any]
) -> FrozenTrial:
    state, value = _outcome(trial)
    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=state,
        value=value,
        datetime_start=_local_time(trial.created_at),
        datetime_complete=_local_time(trial.updated_at) if state.is_finished() else None,
        params=dict(trial.config),
        distributions={name: distribution(job.parameters[name]) for name in trial.config},
        user_attrs=dict(attrs),
        system_attrs=_violation(trial),
        intermediate_values=dict(values),
    )


def distribution(parameter: Parameter) -> BaseDistribution:
    match parameter:
        case Float(low) if (count := steps_of(parameter)) is not None:
            return FloatDistribution(low, parameter.nth(count - 1), step=parameter.step)
        case Int(low) if parameter.step is not None:
            return IntDistribution(low, parameter.nth(parameter.count - 1), step=parameter.step)
        case Float(low, high, log):
            return FloatDistribution(low, high, log=log)
        case Int(low, high, log):
            return IntDistribution(low, high, log=log)
        case Categorical(choices):
            return CategoricalDistribution(choices)


def _local_time(at: Instant) -> datetime:
    """Return a local time without a time zone, because Optuna uses such times."""
    return datetime.fromtimestamp(at / NS)
