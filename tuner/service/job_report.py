"""The report of a job: its spend until its best result, compared with what other search strategies would have cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.database.database import Connection
from tuner.domain.money import Cost, Money
from tuner.ledger import ledger
from tuner.planning.search_estimates import (
    End,
    ReplayEvidence,
    ReplayPoint,
    ReplayTrial,
    SearchEstimate,
    estimates,
    stopping_asha_rungs,
)
from tuner.service.bootstrap import Service
from tuner.service.confirmation import confirmation_of
from tuner.store import best, curves, jobs, warm_starts
from tuner.store.answers import CostedReport
from tuner.store.curves import Improvement
from tuner.store.jobs import JobRow

# Samplers whose next proposal does not depend on results.
OBLIVIOUS = ("random", "grid", "qmc")
ENDS: Mapping[str, End] = {"completed": "completed", "failed": "failed"}


@dataclass(frozen=True, slots=True)
class InheritedSteps:
    """The steps of the best trial that an earlier job trained and paid for."""

    job: str
    trial: str
    step: int  #: The last of these steps.
    cost: Cost


@dataclass(frozen=True)
class ReportView:
    """The report on a job."""

    job: JobRow
    spent: Money
    best: CostedReport | None
    confirmed_trial: str | None  #: Trial that the job confirmed with several seeds.
    curve: Sequence[Improvement]
    trials: int  #: Number of trials that reported the metric.
    estimates: Sequence[SearchEstimate]
    inherited: InheritedSteps | None  #: None if the best trial did not continue a trial of an earlier job.

    @property
    def best_spent(self) -> Money | None:
        """Return the job's spend at the time when its best result was first reported."""
        return self.curve[-1].spent if self.curve else None

    def saved(self, estimate: SearchEstimate) -> Money | None:
        """Return the saving compared with another search strategy's estimate, or None if either amount is not known.

        The saving is negative if the other strategy would have been cheaper. It is not known if an earlier job paid for steps of the best
        trial, because the spend of this job does not include them.
        """
        if estimate.usd is None or self.best_spent is None or self.inherited is not None:
            return None
        return estimate.usd - self.best_spent


def report(service: Service, job: str) -> ReportView:
    """Return the report on a job. Raise NotFound if the job does not exist."""
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
        spent = ledger.account(db, job).posted.usd
        best_report = best.best(db, job)
        confirmation = confirmation_of(db, row)
        curve = curves.improvements(db, job, row.spec)
        inherited = None if best_report is None else _inherited(db, job, best_report.trial)
    evidence = _evidence(service, row, curve[-1]) if curve else None
    trials = len(evidence.trials) if evidence is not None else 0
    confirmed = None if confirmation is None else confirmation.trial
    return ReportView(row, spent, best_report, confirmed, curve, trials, estimates(evidence), inherited)


def _inherited(db: Connection, job: str, trial: str) -> InheritedSteps | None:
    earlier = warm_starts.inherited(db, job, trial)
    if earlier is None:
        return None
    cost = best.report_at(db, job, trial, earlier.step).cost
    return InheritedSteps(earlier.job, earlier.trial, earlier.step, cost)


def _evidence(service: Service, row: JobRow, best: Improvement) -> ReplayEvidence:
    spec, fidelity = row.spec, row.spec.fidelity
    seen = []
    for trial in curves.trained(
        service.database, row.id, spec.objective.mode, stopping_asha_rungs(fidelity), fidelity.stage_ends
    ):
        curve = tuple(ReplayPoint(step, spec.objective.score(value), usd) for step, value, usd in trial.curve)
        seen.append(ReplayTrial(curve, trial.setup, ENDS.get(trial.state, "cut")))
    learned = spec.algorithm.sampler not in OBLIVIOUS
    goal, stage = spec.objective.score(best.value), fidelity.stage(best.step)
    return ReplayEvidence(seen, goal, fidelity, learned, spec.algorithm.seed, stage)
