"""A job as it stands: what is recorded of it, read in one view of the database."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.domain.ledger import Account
from tuner.domain.trial import TrialState
from tuner.service.dashboards import optuna_link
from tuner.service.line import Wait, wait_of
from tuner.service.wiring import Service
from tuner.store import answers, best, jobs, launches, ledger
from tuner.store.answers import Reached
from tuner.store.codec import encode
from tuner.store.database import Connection
from tuner.store.jobs import JobRow
from tuner.store.launches import Launch as Launch
from tuner.tuning.rungs import ladder


@dataclass(frozen=True)
class JobView:
    row: JobRow
    account: Account
    states: Mapping[TrialState, int]
    steps: int
    best: Reached | None
    running_ns: int
    wait: Wait
    launch: Launch | None
    ray_dashboard: str | None
    optuna_dashboard: str | None

    @property
    def rungs(self) -> tuple[int, ...]:
        """The steps at which its scheduler compares trials."""
        return rungs_of(self.row)

    @property
    def budget_used(self) -> float:
        """The fraction of the limit that is nearest to its end."""
        budget, posted = self.row.budget, self.account.posted
        parts = [0.0]
        if budget.usd is not None:
            parts.append(posted.usd.micro_usd / budget.usd.micro_usd)
        if budget.gpu_ms is not None:
            parts.append(posted.gpu_ms / budget.gpu_ms)
        if budget.wall_clock_ns is not None:
            parts.append(self.running_ns / budget.wall_clock_ns)
        if budget.trials is not None:
            parts.append(
                sum(n for state, n in self.states.items() if state in ("completed", "stopped", "failed"))
                / budget.trials
            )
        return min(1.0, max(parts))


def rungs_of(row: JobRow) -> tuple[int, ...]:
    return () if row.spec.algorithm.scheduler == "none" else ladder(row.spec).rungs()


def revision_of(row: JobRow) -> str:
    """A digest of what a request can change: its budget, its tags, its priority."""
    changeable = json.dumps([encode(row.budget), dict(row.tags), row.priority], sort_keys=True)
    return hashlib.sha256(changeable.encode()).hexdigest()[:16]


def job_view(service: Service, job: str) -> JobView:
    """Raises NotFound."""
    with service.database.read() as db:
        return view_of(db, service, jobs.get(db, job, service.project))


def view_of(
    db: Connection, service: Service, row: JobRow, places: Mapping[str, int] | None = None
) -> JobView:
    """`places`: the positions of all jobs in line, where they are known already."""
    return JobView(
        row,
        ledger.account(db, row.id),
        answers.states(db, row.id),
        answers.steps_reported(db, row.id),
        best.best(db, row.id),
        jobs.running_ns(db, row.id, service.now()),
        wait_of(db, row, service.now(), places),
        launches.get(db, row.id),
        service.cluster.dashboard_url,
        optuna_link(service.settings, row.id),
    )
