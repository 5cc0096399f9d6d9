"""Audit the ledger in the background.

A round compares every job's account with the sums of its ledger entries and open holds, a limited number of accounts per
call. It also checks that no shared budget is exceeded.
"""

import logging

from tuner.ledger import ledger, shared_budgets
from tuner.service.bootstrap import Service
from tuner.service.shared_budgets import full_name

log = logging.getLogger("tuner.audit")

AT_ONCE, TOGETHER = 50, 10  # Maximum number of accounts per call of `Audit.some`, and per transaction.
ROUND_NS = 60 * 10**9
BUDGET = "budget "


class Audit:
    """Audit the accounts in rounds, a limited number of accounts at each call of `some`.

    Use it from one thread only. A fault stays in `health.violations` of the service until a later check of the account finds no fault.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._after = ""
        self._began_at = service.now()

    def some(self) -> None:
        """Check the next `AT_ONCE` accounts. Do nothing if the last round is complete and the next one is not due yet.

        Rounds begin at least `ROUND_NS` apart, unless the clock is set back. The accounts are read in many short transactions, because
        with SQLite the threads of a process read one at a time, and a long read would delay the answers to requests.
        """
        service, now = self._service, self._service.now()
        if not self._after:
            if service.health.checked_at is not None and 0 <= now - self._began_at < ROUND_NS:
                return
            self._began_at = now
            self._check_budgets()
        with service.database.read() as db:
            jobs = ledger.accounts_after(db, self._after, AT_ONCE)
        for first in range(0, len(jobs), TOGETHER):
            with service.database.read() as db:
                faults_by_job = ledger.faults_of(db, jobs[first : first + TOGETHER])
            for job, faults in faults_by_job.items():
                self._note(job, faults)
                service.health.count("ledger_checks")
        self._after = jobs[-1] if len(jobs) == AT_ONCE else ""
        if not self._after:
            service.health.checked_at = service.now()

    def _check_budgets(self) -> None:
        """Record a fault for each shared budget whose spend and holds exceed its limit."""
        service, names = self._service, set[str]()
        with service.database.read() as db:
            projects = shared_budgets.projects(db)
        for project in projects:
            with service.database.read() as db:
                for budget in [kept.budget for kept in shared_budgets.kept(db, project)]:
                    account = shared_budgets.period_at(db, project, budget, service.now()).account
                    fits = (account.posted + account.held).fits(account.limit)
                    name = f"{BUDGET}{full_name(project, budget.name)}"
                    names.add(name)
                    self._note(name, [] if fits else ["the posted and held amounts exceed its limit"])
        for gone in [name for name in service.health.violations if name.startswith(BUDGET)]:
            if gone not in names:
                self._note(gone, [])

    def _note(self, name: str, faults: list[str]) -> None:
        violations = self._service.health.violations
        if not faults:
            violations.pop(name, None)
            return
        text = "; ".join(faults)
        if violations.get(name) != text:
            log.error("the ledger is inconsistent: %s: %s", name, text)
        violations[name] = text
