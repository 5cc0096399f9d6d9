"""Report the best result of a job by amount spent, and estimates of what other search strategies would have spent for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.domain.money import Money
from tuner.domain.objective import Objective
from tuner.planning.paths import End, Point, Seen
from tuner.planning.replay import Estimate as Estimate
from tuner.planning.replay import Evidence, estimates, rungs_of
from tuner.service.bootstrap import Service
from tuner.store import best, curves, jobs, ledger
from tuner.store.answers import Reached
from tuner.store.curves import Improvement as Improvement
from tuner.store.curves import Trained
from tuner.store.jobs import JobRow

# Samplers whose next proposal does not depend on results.
OBLIVIOUS = ("random", "grid", "qmc")


@dataclass(frozen=True)
class ReportView:
    """The report on a job."""

    job: JobRow
    spent: Money
    best: Reached | None
    curve: Sequence[Improvement]
    trials: int  #: Number of trials that reported the metric.
    estimates: Sequence[Estimate]

    @property
    def best_spent(self) -> Money | None:
        """Return the job's spend at the time when its best result was first reported."""
        return self.curve[-1].spent if self.curve else None

    def saved(self, estimate: Estimate) -> Money | None:
        """Return the saving compared with another search strategy's estimate, or None if either amount is not known.

        The saving is negative if the other strategy would have been cheaper.
        """
        if estimate.usd is None or self.best_spent is None:
            return None
        return estimate.usd - self.best_spent


def report(service: Service, job: str) -> ReportView:
    """Return the report on a job. Raise NotFound if there is no such job."""
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
        objective = row.spec.objective
        spent = ledger.account(db, job).posted.usd
        found = best.best(db, job)
        curve = curves.improvements(db, job, objective.mode)
    evidence = _evidence(service, row, curve[-1].value) if curve else None
    trials = len(evidence.trials) if evidence is not None else 0
    return ReportView(row, spent, found, curve, trials, estimates(evidence))


def _evidence(service: Service, row: JobRow, best: float) -> Evidence:
    spec = row.spec
    trained = curves.trained(service.database, row.id, spec.objective.mode, rungs_of(spec.fidelity))
    seen = [_seen(trial, spec.objective) for trial in trained]
    learned = spec.algorithm.sampler not in OBLIVIOUS
    return Evidence(seen, spec.objective.score(best), spec.fidelity, learned, spec.algorithm.seed)


def _seen(trial: Trained, objective: Objective) -> Seen:
    curve = tuple(Point(step, objective.score(value), usd) for step, value, usd in trial.curve)
    return Seen(curve, trial.setup, _end(trial))


def _end(trial: Trained) -> End:
    match trial.state:
        case "completed":
            return "completed"
        case "failed":
            return "failed"
        case _:
            return "cut"
