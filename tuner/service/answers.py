"""Which configuration is best under a budget, and what everything cost."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tuner.domain.cost import CostKind
from tuner.domain.errors import Invalid, NotFound, NothingAffordable
from tuner.domain.ids import TRIAL_ID
from tuner.domain.job import FINAL, JobState
from tuner.domain.ledger import Account
from tuner.domain.money import FREE, Cost, Money, Price
from tuner.domain.records import AttemptRow
from tuner.domain.time import NS, Instant
from tuner.service.line import positions
from tuner.service.views import JobView, view_of
from tuner.service.wiring import Service
from tuner.store import answers, jobs, ledger
from tuner.store.answers import After as After
from tuner.store.answers import Limits as Limits
from tuner.store.answers import Reached as Reached
from tuner.store.answers import Sort as Sort
from tuner.store.answers import Told as Told
from tuner.store.answers import TrialRow as TrialRow
from tuner.store.database import Connection
from tuner.store.jobs import JobRow
from tuner.store.ledger import EntryRow as EntryRow


@dataclass(frozen=True)
class BestView:
    best: Reached
    next_better: Reached | None


@dataclass(frozen=True)
class CurveView:
    step: int
    value: float | None
    metrics: str
    cost: Cost
    duration_ns: int
    at: Instant


@dataclass(frozen=True)
class TrialView:
    row: TrialRow
    curve: list[CurveView]
    bill: Mapping[CostKind, Cost]
    attempts: list[AttemptRow]


@dataclass(frozen=True)
class BillView:
    """`full_fidelity` is what the same trials would have cost, each trained to the last step at its own pace; None where
    there is no last step, or no trial to go by."""

    job: JobRow
    account: Account
    by_trial: Mapping[str, Mapping[CostKind, Cost]]
    trials: list[TrialRow]
    full_fidelity: Money | None
    on_demand: Money

    @property
    def by_kind(self) -> dict[CostKind, Cost]:
        sums: dict[CostKind, Cost] = {}
        for kinds in self.by_trial.values():
            for kind, cost in kinds.items():
                sums[kind] = sums.get(kind, FREE) + cost
        return sums

    @property
    def completed(self) -> int:
        return sum(1 for row in self.trials if row.state == "completed")

    @property
    def preemptions(self) -> int:
        return sum(row.preemptions for row in self.trials)


@dataclass(frozen=True)
class Changes:
    """What a reader of a job's events has not seen yet, with the job as it is now."""

    told: Told
    view: JobView


def best(
    service: Service, job: str, limits: Limits, *, market: str | None = None, instance_type: str | None = None
) -> BestView:
    """The best configuration whose training costs no more than this. Raises NothingAffordable, naming the cheapest."""
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
        _refuse_other_prices(row, market, instance_type)
        mode = row.spec.objective.mode
        found = answers.best(db, job, mode, limits)
        if found is None:
            raise NothingAffordable(_nothing(answers.cheapest(db, job), row))
        assert found.value is not None
        return BestView(found, answers.next_better(db, job, mode, found.value))


def best_of_all(service: Service, trainable: str, metric: str, limits: Limits) -> tuple[str, Reached]:
    """The same question over all jobs that tuned this trainable for this metric, the newest deciding which way is better;
    answers the job too. Raises NothingAffordable."""
    with service.database.read() as db:
        rows = [
            row
            for row in jobs.of_trainable(db, service.project, trainable)
            if row.spec.objective.metric == metric
        ]
        if not rows:
            raise NothingAffordable(f"no job has tuned {trainable} for {metric!r}")
        objective = rows[0].spec.objective
        found = [(row.id, answers.best(db, row.id, objective.mode, limits)) for row in rows]
        reached = [(job, point) for job, point in found if point is not None and point.value is not None]
        if not reached:
            points = ((answers.cheapest(db, row.id), row) for row in rows)
            known = [(point, row) for point, row in points if point is not None]
            cheapest = min(known, key=lambda pair: pair[0].cost.usd, default=(None, rows[0]))
            raise NothingAffordable(_nothing(*cheapest))
        return max(reached, key=lambda pair: objective.score(pair[1].value or 0.0))


def pareto(service: Service, job: str) -> list[Reached]:
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
        return answers.pareto(db, job, row.spec.objective.mode)


def page_of_jobs(
    service: Service,
    *,
    state: JobState | None,
    tag: tuple[str, str] | None,
    before: tuple[int, str] | None,
    limit: int,
) -> list[JobView]:
    with service.database.read() as db:
        rows = jobs.page(db, service.project, state=state, tag=tag, before=before, limit=limit)
        waits = any(row.state not in FINAL and row.running_since is None for row in rows)
        places = positions(db, service.now()) if waits else {}
        return [view_of(db, service, row, places) for row in rows]


def page_of_trials(
    service: Service, job: str, *, sort: Sort, descending: bool, after: After | None, limit: int
) -> list[TrialRow]:
    with service.database.read() as db:
        jobs.get(db, job, service.project)
        return answers.page_of_trials(db, job, sort=sort, descending=descending, after=after, limit=limit)


def trial(service: Service, job: str, name: str) -> TrialView:
    with service.database.read() as db:
        jobs.get(db, job, service.project)
        row = answers.trial(db, job, name) if TRIAL_ID.fullmatch(name) else None
        if row is None:
            raise NotFound(f"{job} has no trial {name!r}")
        curve = [
            CurveView(r.step, r.value, r.metrics, Cost(Money(r.usd), r.gpu_ms), r.duration_ns, Instant(r.at))
            for r in answers.curve(db, job, name)
        ]
        return TrialView(row, curve, ledger.posted_by_kind(db, job, name), answers.attempts_of(db, job, name))


def bill(service: Service, job: str) -> BillView:
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
        return BillView(
            row,
            ledger.account(db, job),
            answers.bill_by_trial(db, job),
            answers.all_trials(db, job),
            _full_fidelity(db, row),
            _on_demand(service, db, row),
        )


def check_exists(service: Service, job: str) -> None:
    """Raises NotFound."""
    with service.database.read() as db:
        jobs.get(db, job, service.project)


def sort_key_of(row: TrialRow, sort: Sort, *, descending: bool) -> float:
    """Where a row stands in a listing."""
    return answers.sort_key_of(row, sort, descending=descending)


def ledger_lines(
    service: Service, job: str, *, after: int = 0, limit: int | None = None
) -> Iterator[EntryRow]:
    """Entries oldest first; all of them where there is no limit, read a piece at a time. Raises NotFound when it begins."""
    check_exists(service, job)
    left = limit
    while left is None or left > 0:
        with service.database.read() as db:
            found = ledger.lines(db, job, after=after, limit=min(1000, left or 1000))
        yield from found
        if not found:
            return
        after = found[-1].seq
        left = None if left is None else left - len(found)


def changes(service: Service, job: str, after: int) -> Changes:
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
        return Changes(answers.told_after(db, job, after), view_of(db, service, row))


def _full_fidelity(db: Connection, row: JobRow) -> Money | None:
    last = row.spec.fidelity.max
    reached = list(answers.last_reports(db, row.id))
    if last is None or not reached:
        return None
    return Money(sum(round(r.usd * last / r.step) for r in reached))


def _on_demand(service: Service, db: Connection, row: JobRow) -> Money:
    """What the same machine time would have cost on demand: every attempt's cost at the ratio of the prices. A self-test is the
    price of spot, and would not have been."""
    demand = _price_on_demand(service, row).micro_usd_per_hour
    micro = 0
    for market, price, spent in answers.spent_by_market(db, row.id):
        at = price.micro_usd_per_hour
        micro += spent.micro_usd * demand // at if market == "spot" and at else spent.micro_usd
    return Money(micro)


def _price_on_demand(service: Service, row: JobRow) -> Price:
    """For one trial: the least that the job could have had a machine on demand for, or where there was none, the price of its kind."""
    size = row.spec.resources
    offered = [o.rate(cpus=size.cpus, gpus=size.gpus).price for o in row.offers if o.market == "on_demand"]
    if offered:
        return min(offered)
    o = row.offer
    usd, _ = service.settings.price_of(o.instance_type, cpus=o.cpus, gpus=o.gpus)
    listed = replace(o, price=Price.from_usd_per_hour(usd))
    return listed.rate(cpus=size.cpus, gpus=size.gpus).price


def _refuse_other_prices(row: JobRow, market: str | None, instance_type: str | None) -> None:
    if instance_type not in (None, row.offer.instance_type):
        detail = f"there are prices for {row.offer.instance_type} only, which this job ran on"
        raise Invalid.at("instance_type", detail)
    if market not in (None, row.offer.market):
        raise Invalid.at("market", f"there are prices for {row.offer.market} only, at which this job ran")


def _nothing(cheapest: Reached | None, row: JobRow) -> str:
    if cheapest is None:
        return f"no trial has reported {row.spec.objective.metric!r} yet"
    return (
        f"the cheapest is {cheapest.trial} at step {cheapest.step}, for {cheapest.cost.usd}, "
        f"{cheapest.cost.gpu_hours:.6f} GPU-hours and {cheapest.duration_ns / NS:.1f} s"
    )
