"""A job as it stands: what is recorded of it, read in one view of the database."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.domain.ledger import Account
from tuner.domain.trial import TrialState
from tuner.service.dashboards import optuna_link
from tuner.service.line import Wait, waits_of
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


def view_of(db: Connection, service: Service, row: JobRow) -> JobView:
    (view,) = views_of(db, service, [row])
    return view


def views_of(db: Connection, service: Service, rows: Sequence[JobRow]) -> list[JobView]:
    """In as many questions to the database for many jobs as for one."""
    names, now = [row.id for row in rows], service.now()
    accounts = ledger.accounts_of(db, names)
    states, steps = answers.states_of(db, names), answers.steps_of(db, names)
    found, launched = best.best_of_each(db, names), launches.of_jobs(db, names)
    waits = waits_of(db, rows, launched, now)
    return [
        JobView(
            row,
            accounts[row.id],
            states[row.id],
            steps[row.id],
            found.get(row.id),
            row.running_ns(now),
            waits[row.id],
            launched.get(row.id),
            service.cluster.dashboard_url,
            optuna_link(service.settings, row.id),
        )
        for row in rows
    ]
