"""Mirror of jobs as Optuna studies, for optuna-dashboard and other tools that read Optuna's storage.

How trials are shown:

- A trial that reached its last step is COMPLETE. A trial that its scheduler or the end of the job stopped is PRUNED, as
  with Optuna's own pruners. A trial that waits at a rung is RUNNING until the job ends.
- The value of a trial is its best at any step, as everywhere in this project. The attribute `latest_metric` is its newest
  value.
- Optuna considers only COMPLETE trials for the best of a study, so the attributes `best_trial` and `best_metric` give the
  best of the job.
- Optuna does not allow changes of a finished trial, so if such a trial resumes after a top-up, the study is created again.

`OptunaDashboard` serves optuna-dashboard under a path of the service. The dashboard supports only the root path, so the
path is inserted into its page and script when they are served.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

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

from tuner.domain.space import Categorical, Float, Int, Parameter
from tuner.domain.time import NS, Instant
from tuner.mirrors.record import Changes, Job, Position, Trial

if TYPE_CHECKING:
    pass


POINTS_MAX = 20  # most steps of a trial whose values are written
"""About how many metric values of a trial are written, in addition to those at rungs. Optuna takes 0.6 to 1 ms for each."""
# Attributes that the mirror needs to continue a study: the last event copied, and the job and trial it shows.
POSITION, JOB, TRIAL = "tuner:position", "tuner:job", "tuner:trial"


@dataclass
class _Known:
    """A trial as it is stored in the study."""

    id: int
    finished: bool
    steps: set[int]
    attrs: Mapping[str, Any]


@dataclass
class _Study:
    id: int
    trials: dict[str, _Known] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)


class OptunaMirror:
    """The Optuna mirror. It raises the exceptions of Optuna and its database."""

    def __init__(self, url: str) -> None:
        self._storage = open_storage(url)
        self._studies: dict[str, _Study] = {}

    def positions(self) -> dict[str, Position]:
        found = {}
        for study in self._storage.get_all_studies():
            position = Position.parse(study.user_attrs.get(POSITION))
            if JOB in study.user_attrs and position is not None:
                found[str(study.user_attrs[JOB])] = position
        return found

    def write(self, changes: Changes) -> bool:
        job = changes.job
        study = self._study(job)
        trials = [
            replace(trial, state="stopped") if changes.is_end and not trial.is_final else trial
            for trial in changes.trials
        ]
        if any(_goes_on(trial, study.trials.get(trial.id)) for trial in trials):
            self._storage.delete_study(study.id)
            del self._studies[job.id]
            return False
        for trial in trials:
            self._bring(study, job, trial)
        for name, value in {**_study_attrs(job), POSITION: str(changes.upto)}.items():
            if name not in study.attrs or study.attrs[name] != value:
                self._storage.set_study_user_attr(study.id, name, value)
                study.attrs[name] = value
        if changes.is_end:
            del self._studies[job.id]  # mirrored to its end; the study is read again if the job resumes
        return True

    def close(self) -> None:
        self._storage.remove_session()
        self._storage.engine.dispose()

    def _study(self, job: Job) -> _Study:
        if job.id not in self._studies:
            self._studies[job.id] = self._find(job)
        return self._studies[job.id]

    def _find(self, job: Job) -> _Study:
        direction = StudyDirection.MAXIMIZE if job.mode == "max" else StudyDirection.MINIMIZE
        try:
            found = _Study(self._storage.get_study_id_from_name(study_name(job.name, job.id)))
        except KeyError:
            found = _Study(self._storage.create_new_study([direction], study_name(job.name, job.id)))
            self._storage.set_study_system_attr(found.id, "study:metric_names", [job.metric])
            return found
        found.attrs = dict(self._storage.get_study_user_attrs(found.id))
        for held in self._storage.get_all_trials(found.id, deepcopy=False):
            known = _Known(
                held._trial_id, held.state.is_finished(), set(held.intermediate_values), held.user_attrs
            )
            found.trials[str(held.user_attrs.get(TRIAL))] = known
        return found

    def _bring(self, study: _Study, job: Job, trial: Trial) -> None:
        """Update a trial of the study to its current state."""
        values, attrs = _values(job, trial), _attrs(trial)
        known = study.trials.get(trial.id)
        if known is None:
            made = _frozen(job, trial, values, attrs)
            number = self._storage.create_new_trial(study.id, made)
            study.trials[trial.id] = _Known(number, trial.is_final, set(values), attrs)
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
            state, value = _outcome(trial)
            self._storage.set_trial_state_values(known.id, state, None if value is None else [value])
            known.finished = True


def _goes_on(trial: Trial, known: _Known | None) -> bool:
    return known is not None and known.finished and not trial.is_final


def open_storage(url: str) -> RDBStorage:
    """Open the storage and create it if necessary. It raises the exceptions of its database."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for short in ("postgresql://", "postgres://"):
        if url.startswith(short):
            url = f"postgresql+psycopg://{url.removeprefix(short)}"
    return RDBStorage(url)


def study_name(name: str, job: str) -> str:
    return f"{name} {job}"


def _study_attrs(job: Job) -> dict[str, Any]:
    return {
        JOB: job.id,
        "owner": job.owner,
        "trainable": job.trainable,
        "budget_usd": job.budget_usd,
        "budget_gpu_hours": job.budget_gpu_hours,
        "spent_usd": job.spent.usd.usd,
        "spent_gpu_hours": round(job.spent.gpu_hours, 9),
        "best_trial": None if job.best is None else job.best[0],
        "best_metric": None if job.best is None else job.best[1],
        "state": job.state,
        "stop_reason": job.stop_reason,
        "page": job.page,
    }


def _attrs(trial: Trial) -> dict[str, Any]:
    found = {
        TRIAL: trial.id,
        "paid_usd": trial.cost.usd.usd,
        "gpu_hours": round(trial.cost.gpu_hours, 9),
        "attempts": trial.attempts,
        "preemptions": trial.preemptions,
    }
    if trial.value is not None:
        found["latest_metric"] = trial.value
    return {**found, "reason": trial.reason} if trial.reason else found


def _values(job: Job, trial: Trial) -> dict[int, float]:
    """Return the new metric values to write by step, including the last of a finished trial."""
    found = {point.step: point.value for point in trial.points if point.value is not None}
    kept = _kept(job.max_step, job.rungs)
    last = max(found, default=None) if trial.is_final else None
    return {step: value for step, value in found.items() if kept(step) or step == last}


def _kept(max_step: int | None, rungs: Sequence[int]) -> Callable[[int], bool]:
    """Return a function that tells whether a step's value is written.

    All steps of a short curve are written. Of a longer one, the rungs, every nth step, and the first and last step are.
    """
    every = max(1, -(-(max_step or 0) // POINTS_MAX))
    always = {1, max_step, *rungs}
    return lambda step: step % every == 0 or step in always


def _outcome(trial: Trial) -> tuple[TrialState, float | None]:
    match trial.state:
        case "completed" if trial.best is not None:
            return TrialState.COMPLETE, trial.best
        case "completed" | "failed":  # Optuna has no completed trials without a value
            return TrialState.FAIL, None
        case "stopped":
            return TrialState.PRUNED, trial.best
        case _:
            return TrialState.RUNNING, None


def _frozen(job: Job, trial: Trial, values: Mapping[int, float], attrs: Mapping[str, Any]) -> FrozenTrial:
    state, value = _outcome(trial)
    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=state,
        value=value,
        datetime_start=_time(trial.created_at),
        datetime_complete=_time(trial.updated_at) if state.is_finished() else None,
        params=dict(trial.config),
        distributions={name: distribution(job.parameters[name]) for name in trial.config},
        user_attrs=dict(attrs),
        system_attrs={},
        intermediate_values=dict(values),
    )


def distribution(parameter: Parameter) -> BaseDistribution:
    match parameter:
        case Float(low, high, log):
            return FloatDistribution(low, high, log=log)
        case Int(low, high, log):
            return IntDistribution(low, high, log=log)
        case Categorical(choices):
            return CategoricalDistribution(choices)


def _time(at: Instant) -> datetime:
    """Return a naive local time, as Optuna uses it."""
    return datetime.fromtimestamp(at / NS)
