"""Test that a warm-started job reads the same history at every start, even if its source jobs report more later."""

import math
from dataclasses import replace

import pytest

from tests.store.builders import JOB, OFFER, PROJECT, budget, create, new_job, spec
from tuner.database.database import Database
from tuner.domain.events import Failed, Reported
from tuner.domain.job import JobSpec
from tuner.domain.money import FREE, ZERO
from tuner.domain.objective import Constraint, Fidelity, Objective
from tuner.domain.records import PastTrial, ReportRow
from tuner.domain.space import Float, Space
from tuner.domain.time import Instant
from tuner.store import jobs, warm_starts
from tuner.store.journal import SqlJournal

SECOND, NEW = "job_0000000000000002", "job_0000000000000003"


class Source:
    """A job that reports."""

    def __init__(self, database: Database, job: str = JOB) -> None:
        create(database, new_job(job))
        self._journal = SqlJournal(database, job, PROJECT, 1, Instant(0))

    def report(
        self, number: int, step: int, value: float | None, *, lr: float = 0.5, **metrics: float
    ) -> None:
        trial = f"trial_{number:05d}"
        with self._journal.transaction() as tx:
            tx.put_trial(trial, "running", at=Instant(0), config={"lr": lr})
            tx.put_report(ReportRow(trial, 1, step, Instant(0), value, metrics, FREE, step * 10))
            tx.append(Reported(Instant(0), trial, step, value, ZERO))

    def fail(self, number: int) -> None:
        with self._journal.transaction() as tx:
            tx.append(Failed(Instant(0), f"trial_{number:05d}", "nan"))
            tx.put_trial(f"trial_{number:05d}", "failed", at=Instant(0))


def warm(*sources: str, **changes: object) -> JobSpec:
    return replace(spec(budget()), warm_start_jobs=sources, **changes)  # type: ignore[arg-type]


def submit(database: Database, new: JobSpec) -> None:
    create(database, jobs.NewJob(NEW, PROJECT, new, OFFER, 1, Instant(9)))


def read(database: Database, new: JobSpec, **more: int) -> list[PastTrial]:
    return warm_starts.past_trials(database, NEW, new, **more)


def past(*curve: tuple[int, float, int], lr: float = 0.5) -> PastTrial:
    return PastTrial({"lr": lr}, curve)


def test_past_trials_are_ordered_by_source_job_and_trial_number(database: Database) -> None:
    first, second = Source(database), Source(database, SECOND)
    first.report(1, 1, 0.3)
    first.report(0, 1, 0.1, lr=0.25)
    first.report(0, 3, 0.2, lr=0.25)
    second.report(0, 2, 0.9)
    new = warm(SECOND, JOB)
    submit(database, new)
    expected = [past((2, 0.9, 20)), past((1, 0.1, 10), (3, 0.2, 30), lr=0.25), past((1, 0.3, 10))]
    assert read(database, new) == expected


def test_reports_after_the_submission_are_ignored(database: Database) -> None:
    source = Source(database)
    source.report(0, 1, 0.1)
    new = warm(JOB)
    submit(database, new)
    source.report(0, 2, 0.9)
    source.report(1, 1, 0.9)
    assert read(database, new) == [past((1, 0.1, 10))]


def test_reports_after_the_last_step_of_the_new_job_are_ignored(database: Database) -> None:
    """The best trials, too, are chosen by their scores up to this step."""
    source = Source(database)
    source.report(0, 2, 0.3)
    source.report(0, 4, 0.1)
    source.report(1, 2, 0.2)
    source.report(1, 4, 0.9)
    source.report(2, 4, 0.8)
    new = warm(JOB, fidelity=Fidelity(max=3))
    submit(database, new)
    assert read(database, new) == [past((2, 0.3, 20)), past((2, 0.2, 20))]
    assert read(database, new, limit=1) == [past((2, 0.3, 20))]
    steps = [[step for step, _, _ in trial.curve] for trial in read(database, new, rules=2)]
    assert steps == [[2, 4], [2, 4], [4]], "jobs of older rules learn the same as when they ran"


def test_failure_counts_only_if_it_precedes_the_submission(database: Database) -> None:
    source = Source(database)
    for number in (0, 1):
        source.report(number, 1, 0.1)
    source.fail(0)
    new = warm(JOB)
    submit(database, new)
    source.fail(1)
    assert [trial.failed for trial in read(database, new)] == [True, False]


def test_failure_after_the_last_step_of_the_new_job_does_not_count(database: Database) -> None:
    source = Source(database)
    for number, steps in enumerate([(2, 3, 4), (2, 4), (2,)]):
        for step in steps:
            source.report(number, step, 0.1)
        source.fail(number)
    new = warm(JOB, fidelity=Fidelity(max=3))
    submit(database, new)
    assert [trial.failed for trial in read(database, new)] == [False, False, True]
    assert [trial.failed for trial in read(database, new, rules=5)] == [True, True, True]


def test_source_job_without_reports_at_submission_stays_empty(database: Database) -> None:
    source, new = Source(database), warm(JOB)
    submit(database, new)
    source.report(0, 1, 0.9)
    assert read(database, new) == []


def test_past_trials_are_judged_by_the_constraints_of_the_new_job(database: Database) -> None:
    source = Source(database)
    source.report(0, 1, 0.1, latency_ms=30)
    source.report(1, 1, 0.2, latency_ms=20)
    source.report(2, 1, 0.3)
    new = warm(JOB, constraints=(Constraint("latency_ms", max=20),))
    submit(database, new)
    violations = [trial.violation for trial in read(database, new)]
    assert violations == [0.5, 0], "the third has not reported the metric"


def test_job_without_warm_start_reads_no_past_trials(database: Database) -> None:
    Source(database).report(0, 1, 0.9)
    submit(database, warm())
    assert read(database, warm()) == []


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_report_without_a_finite_metric_is_ignored(database: Database, value: float | None) -> None:
    source, new = Source(database), warm(JOB)
    source.report(0, 1, 0.1)
    source.report(0, 2, value)
    source.report(1, 1, value)
    submit(database, new)
    assert read(database, new) == [past((1, 0.1, 10))]


def test_minimised_metric_is_negated_in_the_score(database: Database) -> None:
    source, new = Source(database), warm(JOB, objective=Objective("acc", "min"))
    source.report(0, 1, 0.25)
    submit(database, new)
    assert read(database, new) == [past((1, -0.25, 10))]


def test_trial_outside_the_new_search_space_is_left_out(database: Database) -> None:
    source, new = Source(database), warm(JOB, space=Space({"lr": Float(0, 0.3)}))
    source.report(0, 1, 0.9, lr=0.5)
    source.report(1, 1, 0.1, lr=0.25)
    submit(database, new)
    assert read(database, new) == [past((1, 0.1, 10), lr=0.25)]


def test_limit_keeps_the_best_and_the_most_trained_trials(database: Database) -> None:
    source, new = Source(database), warm(JOB)
    for number in range(warm_starts.TRIALS_PAGE + 20):
        source.report(number, 1, number / 1000)
    source.report(7, 2, 0.0)
    submit(database, new)
    assert [len(trial.curve) for trial in read(database, new, limit=2)] == [2, 1]
    assert len(read(database, new)) == warm_starts.TRIALS_PAGE + 20
