"""The reconciler: a background loop for shared budgets, webhooks, the audit and idle machines.

It resumes jobs that waited for a budget, records alerts and sends their webhooks, audits the ledger, and meters idle
machines. The leader does all of this; other services only audit the ledger.

The loop derives its work from the database, so the process may be killed at any moment. The next leader repeats nothing, except that a
webhook may be sent twice. Both requests have the same delivery id, so the receiver can ignore the second one.
"""

import hashlib
import json
import logging

from tuner.database.database import Connection
from tuner.domain.shared_budget import PPM, Alert
from tuner.domain.time import rfc3339
from tuner.ledger import budget_waits, shared_budgets
from tuner.ledger.shared_budgets import BudgetPeriod, Kept
from tuner.service.bootstrap import Service
from tuner.service.cluster_meter import ClusterMeter
from tuner.service.control import continue_job, end_waiting_export
from tuner.service.leading import Term
from tuner.service.ledger_audit import Audit
from tuner.service.periodic import PeriodicService
from tuner.service.shared_budgets import without_room
from tuner.service.webhooks import WebhookSender
from tuner.store import deliveries, jobs, launches
from tuner.store.deliveries import Delivery

log = logging.getLogger("tuner.reconciler")

PASS_S = 1.0
SENDS_S = 10.0  # how long `stop()` waits for webhooks that are being sent


class Reconciler(PeriodicService):
    """Run the passes of the reconciler in a thread. A stopped reconciler cannot be started again."""

    def __init__(self, service: Service) -> None:
        super().__init__(
            "reconciler",
            every_s=PASS_S,
            first_s=PASS_S,
            health=service.health,
            failures="reconciler_failures",
        )
        self._service = service
        self._audit = Audit(service)
        self._meter = ClusterMeter(service)
        self.webhooks = WebhookSender(service)

    def stop(self, timeout_s: float = 15.0) -> None:
        super().stop(timeout_s)
        self.webhooks.settle(SENDS_S)

    def one_pass(self) -> None:
        """Do the work of the leader if this service leads, and then continue the audit of the ledger.

        Raises:
            Unavailable: The database does not answer.
            Fenced: Another service became the leader during the pass.
        """
        try:
            if (term := self._service.leading.term()) is not None:
                self._work_of_the_leader(term)
        finally:
            # An error of another step must not prevent the audit.
            self._audit.some()

    def _work_of_the_leader(self, term: Term) -> None:
        with self._service.database.read() as db:
            waiting, alerting = budget_waits.projects(db), shared_budgets.projects_with_alerts(db)
        for project in waiting:
            self._resume_waiting(self._service.of(project), term)
        for project in alerting:
            self._record_alerts(self._service.of(project), term)
        self.webhooks.send_due(term)
        self._meter.measure()
        self._service.health.reconciler_at = self._service.now()

    def _resume_waiting(self, service: Service, term: Term) -> None:
        """Resume the project's jobs that are paused because a shared budget was used up, if their shared budgets have room now.

        Every condition is checked again in the transaction that resumes the job, because it may have changed since it was read.
        """
        now = service.now()
        with service.database.read() as db:
            over = [wait for wait in budget_waits.over(db, service.project, now) if _rests(db, wait.job)]
        for wait in over:
            with service.leading.write(term, "reconciler.continue_job") as db:
                jobs.change_alone(db, wait.job)
                row = jobs.get(db, wait.job)
                if row.state != "paused" or not _rests(db, wait.job):
                    continue
                if not budget_waits.claim(db, wait):
                    continue
                size = row.spec.resources
                rate = row.offer.rate(size)
                if (still := without_room(db, service, row.tags, rate)) is not None:
                    budget_waits.note(db, service.project, wait.job, still[0].name, now)
                    continue
                if end_waiting_export(db, wait.job, now) is not None:
                    continue
                continue_job(db, row, now)
                log.info("%s is being resumed: the shared budget %r has room again", wait.job, wait.name)

    def _record_alerts(self, service: Service, term: Term) -> None:
        """Record a webhook delivery for each reached alert of the project's shared budgets.

        An alert is reached when its share of the budget's limit is spent. Alerts of periods that ended while no service ran
        are included. Deliveries that are already recorded are left out.
        """
        with service.database.read() as db:
            has_fresh = any(not deliveries.exists(db, each.id) for each in _passed(db, service))
        if has_fresh:
            with service.leading.write(term, "reconciler.alerts") as db:
                # A budget may have been removed, or replaced by another one, since it was read.
                shared_budgets.lock_budgets(db, service.project)
                for delivery in _passed(db, service):
                    deliveries.add(db, delivery)


def _rests(db: Connection, job: str) -> bool:
    """Return whether the job has no launch that is ordered or running.

    A paused job may have a launch that is ordered for the next opening of its window.
    """
    launch = launches.get(db, job)
    return launch is None or launch.state == "ended"


def _passed(db: Connection, service: Service) -> list[Delivery]:
    """Return a webhook delivery for each reached alert of the project's shared budgets.

    An alert is reached when its share of the budget's limit is spent. All alerts are reached when the budget is
    used up, because the rest pays for too little work to be spent. Periods that ended before the last change of
    the budget are left out, because the changed limit and alerts did not apply to them.
    """
    passed, used_up = [], budget_waits.used_up(db, service.project)
    for kept in shared_budgets.kept(db, service.project):
        budget = kept.budget
        if not budget.alerts:
            continue
        for period in shared_budgets.periods(db, service.project, budget.name, since=kept.updated_at):
            share = budget.share_ppm(period.account.posted)
            reached_ppm = PPM if (budget.name, period.began_at) in used_up else share
            reached = [alert for alert in budget.alerts if alert.at_ppm <= reached_ppm]
            passed += [_delivery(service, kept, period, alert, share) for alert in reached]
    return passed


def _delivery(service: Service, kept: Kept, period: BudgetPeriod, alert: Alert, share: int) -> Delivery:
    """Return the webhook delivery of an alert. `share` is the spent share of the limit, in parts per million.

    The delivery's id is derived from the alert, budget, limit and period, so that recording it again creates no second
    delivery.
    """
    budget, posted, now = kept.budget, period.account.posted, service.now()
    words = (
        service.project,
        budget.name,
        kept.created_at,
        period.began_at,
        budget.limit,
        alert.at_ppm,
        alert.url,
    )
    digest = hashlib.sha256("\n".join(map(str, words)).encode()).hexdigest()
    name = f"dlv_{digest[:32]}"
    body = {
        "id": name,
        "type": "budget.share_passed",
        "at": rfc3339(now),
        "budget": budget.name,
        "share": alert.at_ppm / PPM,
        "spent_share": share / PPM,
        "spent_usd": posted.usd.usd,
        "limit_usd": None if budget.usd is None else budget.usd.usd,
        "spent_gpu_hours": round(posted.gpu_hours, 9),
        "limit_gpu_hours": None if budget.gpu_ms is None else round(budget.limit.gpu_hours, 9),
        "period_start": None if budget.period is None else rfc3339(period.began_at),
        "period_end": None if period.ends_at is None else rfc3339(period.ends_at),
    }
    return Delivery(name, service.project, budget.name, alert.url, json.dumps(body), "pending", now, now)
