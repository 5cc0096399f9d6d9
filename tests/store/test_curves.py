"""Test that estimates read only the reports of a job that they need."""

from dataclasses import replace
from random import Random

import pytest
from sqlalchemy import select

from tests.store.builders import JOB, PROJECT, budget, cost, create, hold, new_job
from tuner.database.database import Database
from tuner.database.tables import reports
from tuner.domain.events import Reported
from tuner.domain.objective import Fidelity, Objective
from tuner.domain.records import ReportRow
from tuner.domain.time import Instant
from tuner.planning.search_estimates import (
    End,
    ReplayEvidence,
    ReplayPoint,
    ReplayTrial,
    estimates,
    stopping_asha_rungs,
)
from tuner.store import curves
from tuner.store.curves import TrainedTrial
from tuner.store.journal import SqlJournal

AT = Instant(0)
FIDELITY = Fidelity(min=2, max=20)
RUNGS = stopping_asha_rungs(FIDELITY)
WITH_PROXIES = replace(FIDELITY, proxies={"resolution": (16, 24, 32)})


@pytest.fixture
def journal(database: Database) -> SqlJournal:
    create(database, new_job(limits=budget(10**9)))
    return SqlJournal(database, JOB, PROJECT, 1, AT)


def report(
    journal: SqlJournal, number: int, step: int, value: float | None, *, usd: int, attempt: int = 1
) -> None:
    trial = f"trial_{number:05d}"
    with journal.transaction() as tx:
        tx.put_trial(trial, "completed" if step == FIDELITY.max else "running", at=AT, config={"lr": 0.5})
        tx.put_report(ReportRow(trial, attempt, step, AT, value, {}, cost(usd), 0))
        tx.append(Reported(AT, trial, step, value, cost(usd).usd))


def read(database: Database, objective: Objective, fidelity: Fidelity = FIDELITY) -> list[TrainedTrial]:
    return list(curves.trained(database, JOB, objective.mode, RUNGS, fidelity.stage_ends))


def whole(database: Database) -> list[tuple[tuple[int, float, int], ...]]:
    """Return every curve with all of its reports."""
    r = reports.c
    curves_by_trial: dict[str, list[tuple[int, float, int]]] = {}
    with database.read() as db:
        for row in db.execute(select(reports).where(r.value.is_not(None)).order_by(r.trial, r.step)):
            curves_by_trial.setdefault(row.trial, []).append((row.step, row.value, row.usd))
    return [tuple(curve) for curve in curves_by_trial.values()]


def evidence(
    curves_of: list[tuple[tuple[int, float, int], ...]], objective: Objective, fidelity: Fidelity = FIDELITY
) -> ReplayEvidence:
    seen = []
    for curve in curves_of:
        points = tuple(ReplayPoint(step, objective.score(value), usd) for step, value, usd in curve)
        end: End = "completed" if points[-1].step == FIDELITY.max else "cut"
        seen.append(ReplayTrial(points, 0, end))
    stage = max(fidelity.stage(trial.last.step) for trial in seen)
    reached = [point for trial in seen for point in trial.curve if fidelity.stage(point.step) == stage]
    return ReplayEvidence(seen, max(point.score for point in reached), fidelity, False, stage=stage)


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fidelity", [FIDELITY, WITH_PROXIES], ids=["plain", "proxies"])
def test_omitted_reports_change_no_estimate(
    database: Database, journal: SqlJournal, mode: str, seed: int, fidelity: Fidelity
) -> None:
    rng, objective = Random(seed), Objective("acc", "max" if mode == "max" else "min")
    for number in range(12):
        for step in range(1, rng.choice([3, 7, 20, 20]) + 1):
            if rng.random() < 0.8 or step == FIDELITY.max:
                report(journal, number, step, round(rng.random(), 1), usd=step * 10)
    trained_trials = read(database, objective, fidelity)
    full = whole(database)
    assert sum(len(trial.curve) for trial in trained_trials) < sum(map(len, full))
    assert all(set(trial.curve) <= set(curve) for trial, curve in zip(trained_trials, full, strict=True))
    thin = evidence([trial.curve for trial in trained_trials], objective, fidelity)
    assert estimates(thin) == estimates(evidence(full, objective, fidelity))
    assert estimates(thin)[0].status == "estimated"


def test_trials_on_several_pages_are_each_read_once(database: Database, journal: SqlJournal) -> None:
    count = curves.TRIALS_PAGE + 3
    for number in range(count):
        report(journal, number, 1, 0.5, usd=number)
    assert [trial.curve for trial in read(database, Objective("acc"))] == [
        ((1, 0.5, number),) for number in range(count)
    ]


def test_setup_cost_comes_from_the_attempt_with_the_first_report(
    database: Database, journal: SqlJournal
) -> None:
    for attempt, usd in ((1, 7), (2, 5), (3, 3)):
        held = hold(1, cost(10), attempt=attempt)
        with journal.transaction() as tx:
            assert tx.hold(held)
            tx.settle(held.id, {"setup": cost(usd), "train": cost(1)}, at=AT)
    report(journal, 0, 1, 0.5, usd=9, attempt=2)
    report(journal, 0, 2, 0.6, usd=12, attempt=3)
    assert [trial.setup for trial in read(database, Objective("acc"))] == [5]


def test_trial_without_a_metric_is_left_out(database: Database, journal: SqlJournal) -> None:
    report(journal, 0, 1, None, usd=1)
    assert read(database, Objective("acc")) == []
    report(journal, 0, 2, 0.5, usd=2)
    assert [replace(trial, setup=0) for trial in read(database, Objective("acc"))] == [
        TrainedTrial("running", 0, ((2, 0.5, 2),))
    ]
