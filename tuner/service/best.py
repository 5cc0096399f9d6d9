"""Which configuration is best under a budget."""

from dataclasses import dataclass

from tuner.domain.errors import Invalid, NothingAffordable
from tuner.domain.time import NS
from tuner.service.wiring import Service
from tuner.store import best as points
from tuner.store import jobs
from tuner.store.answers import Reached as Reached
from tuner.store.best import Limits as Limits
from tuner.store.jobs import JobRow


@dataclass(frozen=True)
class BestView:
    best: Reached
    next_better: Reached | None


def best(
    service: Service, job: str, limits: Limits, *, market: str | None = None, instance_type: str | None = None
) -> BestView:
    """The best configuration whose training costs no more than this. Raises NothingAffordable, naming the cheapest."""
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
        _refuse_other_prices(row, market, instance_type)
        mode = row.spec.objective.mode
        found = points.best(db, job, limits)
        if found is None:
            raise NothingAffordable(_nothing(points.cheapest(db, job), row))
        assert found.value is not None
        return BestView(found, points.next_better(db, job, mode, found.value))


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
        found = [(row.id, points.best(db, row.id, limits)) for row in rows]
        reached = [(job, point) for job, point in found if point is not None and point.value is not None]
        if not reached:
            all_cheapest = ((points.cheapest(db, row.id), row) for row in rows)
            known = [(point, row) for point, row in all_cheapest if point is not None]
            cheapest = min(known, key=lambda pair: pair[0].cost.usd, default=(None, rows[0]))
            raise NothingAffordable(_nothing(*cheapest))
        return max(reached, key=lambda pair: objective.score(pair[1].value or 0.0))


def pareto(service: Service, job: str) -> list[Reached]:
    with service.database.read() as db:
        jobs.get(db, job, service.project)
        return points.pareto(db, job)


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
