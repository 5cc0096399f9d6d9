"""Read all learning curves of a job up to an event. A reader can continue with the job's event stream after that event."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.domain.errors import Invalid
from tuner.service.bootstrap import Service
from tuner.service.views import rungs_of
from tuner.store import answers, curves, jobs
from tuner.store.answers import TrialRow as TrialRow
from tuner.store.curves import Course as Course
from tuner.store.jobs import JobRow

EMPTY = Course([], [], [], [])


@dataclass(frozen=True, slots=True)
class CurvesView:
    """The reports of all trials up to an event, with one metric for a chart."""

    job: JobRow
    seq: int  #: Number of the newest event that is included.
    trials: Sequence[TrialRow]
    courses: Mapping[str, Course]  #: By trial, with the values of the objective.
    losses: Mapping[str, list[int]]  #: By trial, the steps at which it was preempted.
    metric: str  #: The charted metric: the objective's, or the requested one.
    metrics: Sequence[str]  #: The metrics that can be requested.
    values: Mapping[str, Sequence[float | None]]  #: By trial, the charted metric at each step.

    @property
    def points(self) -> int:
        return sum(len(course.steps) for course in self.courses.values())

    def promotions(self, trial: str) -> list[int]:
        """Return the rungs at which the trial was compared and after which it continued."""
        course = self.courses.get(trial, EMPTY)
        if not course.steps:
            return []
        at = dict(zip(course.steps, course.values, strict=True))
        return [rung for rung in rungs_of(self.job) if rung < course.steps[-1] and at.get(rung) is not None]


def job_curves(service: Service, job: str, metric: str | None = None) -> CurvesView:
    """Return the curves of all trials.

    Args:
        metric: Any metric that the job reports. None means the objective's metric.

    Raises:
        NotFound: The job does not exist.
        Invalid: The job has reports, and none of them has this metric as a number.
    """
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
        objective = row.spec.objective.metric
        # read first, so that no event is missed: later events come from the stream
        seq = curves.newest(db, job)
        names = sorted({objective, *curves.metric_names(db, job)})
        trials, courses, losses = (
            answers.all_trials(db, job, row.spec.objective.mode),
            curves.courses(db, job, seq),
            curves.losses(db, job),
        )
        values: Mapping[str, Sequence[float | None]] = {name: one.values for name, one in courses.items()}
        if metric is not None and metric != objective:
            values = curves.metric_values(db, job, seq, metric)
            if courses and not any(one is not None for found in values.values() for one in found):
                detail = f"no trial has reported {metric!r}; choose one of {', '.join(names)}"
                raise Invalid.at("metric", detail)
        return CurvesView(row, seq, trials, courses, losses, metric or objective, names, values)
