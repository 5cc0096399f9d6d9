"""All learning curves of a job in one look, up to an event from which its stream goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.service.views import rungs_of
from tuner.service.wiring import Service
from tuner.store import answers, curves, jobs
from tuner.store.answers import TrialRow as TrialRow
from tuner.store.curves import Course as Course
from tuner.store.jobs import JobRow

EMPTY = Course([], [], [], [])


@dataclass(frozen=True, slots=True)
class CurvesView:
    """`losses`: the steps at which a trial's machine was taken away."""

    job: JobRow
    seq: int
    trials: Sequence[TrialRow]
    courses: Mapping[str, Course]
    losses: Mapping[str, list[int]]

    @property
    def points(self) -> int:
        return sum(len(course.steps) for course in self.courses.values())

    def promotions(self, trial: str) -> list[int]:
        """The rungs at which it was compared, and from which it went on."""
        course = self.courses.get(trial, EMPTY)
        if not course.steps:
            return []
        at = dict(zip(course.steps, course.values, strict=True))
        return [rung for rung in rungs_of(self.job) if rung < course.steps[-1] and at.get(rung) is not None]


def job_curves(service: Service, job: str) -> CurvesView:
    """Raises NotFound."""
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
        seq = curves.newest(db, job)  # first: what comes meanwhile is told by the stream
        return CurvesView(
            row, seq, answers.all_trials(db, job), curves.courses(db, job, seq), curves.losses(db, job)
        )
