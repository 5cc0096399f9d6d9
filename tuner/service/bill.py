"""Compute the bill of a job: the cost of each trial by cost kind, and what the job would have cost otherwise.

All amounts are sums over the job's ledger entries, except for the two estimates of what it would have cost without early stopping and on
on-demand machines.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.database.database import Connection
from tuner.domain.cost import CostKind, total
from tuner.domain.ids import EXPORT_ID, RESTORED
from tuner.domain.ledger import Account
from tuner.domain.money import FREE, ZERO, Cost, Money
from tuner.ledger import ledger
from tuner.service.bootstrap import Service
from tuner.service.node_prices import share_price
from tuner.store import answers, jobs
from tuner.store.answers import TrialRow
from tuner.store.jobs import JobRow


@dataclass(frozen=True)
class BillView:
    """The bill of a job, with what it would have cost without early stopping or without spot."""

    job: JobRow
    account: Account
    by_trial: Mapping[str, Mapping[CostKind, Cost]]  #: The cost of each trial and each export, by cost kind.
    trials: list[TrialRow]
    #: Estimated cost if every trial with a report had been trained to the job's last step, at the trial's own cost per step. A trial's setup
    #: counts once, and steps that earlier jobs paid for do not count.
    #: None if the job has no last step or no report.
    full_fidelity: Money | None
    #: Cost of the same machine time at on-demand prices. None if the on-demand price is not known.
    on_demand: Money | None

    @property
    def by_kind(self) -> dict[CostKind, Cost]:
        sums: dict[CostKind, Cost] = {}
        for kinds in self.by_trial.values():
            for kind, cost in kinds.items():
                sums[kind] = sums.get(kind, FREE) + cost
        return sums

    @property
    def exports(self) -> Money:
        """Return the cost of the exports of the job's models."""
        costs = (total(kinds).usd for trial, kinds in self.by_trial.items() if EXPORT_ID.fullmatch(trial))
        return sum(costs, start=ZERO)

    @property
    def search(self) -> Money:
        """Return the spend of the job without its exports.

        Compare this amount with `full_fidelity` and `on_demand`, which do not include exports either.
        """
        return self.account.posted.usd - self.exports

    @property
    def completed(self) -> int:
        return sum(1 for row in self.trials if row.state == "completed")

    @property
    def preemptions(self) -> int:
        return sum(row.preemptions for row in self.trials)


def bill(service: Service, job: str) -> BillView:
    """Return the bill of a job. Raise NotFound if the job does not exist."""
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
        by_trial = answers.bill_by_trial(db, job)
        return BillView(
            row,
            ledger.account(db, job),
            by_trial,
            answers.all_trials(db, job, row.spec.objective.mode),
            _full_fidelity(db, row),
            _on_demand(service, db, row, total(by_trial.get(RESTORED, {})).usd),
        )


def _full_fidelity(db: Connection, row: JobRow) -> Money | None:
    last = row.spec.fidelity.max
    reached = list(answers.last_reports(db, row.id))
    if last is None or not reached:
        return None
    setup, inherited = answers.setup_of_trials(db, row.id), answers.inherited_by_trials(db, row.id)
    full = 0
    for r in reached:
        steps_usd = r.usd - setup.get(r.trial, 0)
        full += r.usd - inherited.get(r.trial, 0) + round(steps_usd * (last - r.step) / r.step)
    return Money(full)


def _on_demand(service: Service, db: Connection, row: JobRow, restored: Money) -> Money | None:
    """Return the cost of the job's machine time at on-demand prices, or None if the on-demand price is not known.

    The spend of attempts on spot is multiplied by the ratio of the on-demand price to the paid price. The cost of the
    restore self-test is excluded, because only spot machines require this test. `restored` is what the job had spent after the backup from which
    the database was restored. Its machines are not known, so it counts as it was paid.
    """
    micro = 0
    for market, kind, paid, spent in answers.spent_by_machine(db, row.id):
        if market != "spot":
            micro += spent.micro_usd
            continue
        demand = share_price(service.settings, row, kind, "on_demand").price
        if demand is None:
            return None
        at = paid.micro_usd_per_hour
        micro += spent.micro_usd * demand.micro_usd_per_hour // at if at else spent.micro_usd
    return Money(micro) + restored
