"""Find the best configuration of a job within limits of cost and time.

Cost and time are those recorded on the job's own machine, or those computed for another machine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.database.database import Connection
from tuner.domain.errors import Invalid, NothingAffordable
from tuner.domain.money import Cost
from tuner.domain.objective import Objective
from tuner.domain.text import nearest, suggested
from tuner.domain.time import NS, duration_text
from tuner.planning.repricing import Repriced
from tuner.service.bootstrap import Service
from tuner.service.confirmation import Confirmation, confirmation_of
from tuner.service.machines import MachineEvidence, pricing
from tuner.service.machines import MachinePricing as MachinePricing
from tuner.service.machines import MachineQuery as MachineQuery
from tuner.service.next_dollar import NextDollarForecast, forecast
from tuner.store import best as fronts
from tuner.store import jobs
from tuner.store.answers import CostedReport as CostedReport
from tuner.store.best import CostLimits as CostLimits
from tuner.store.best import JobExtremes
from tuner.store.jobs import JobRow
from tuner.store.pareto_front import loss_of, skyline

HERE = MachineQuery()


@dataclass(frozen=True, slots=True)
class PricedPoint:
    """A configuration at a step (a point), with the cost and time to train it on the requested machine."""

    point: CostedReport
    #: Cost and time on another machine. None if the recorded cost and time apply.
    elsewhere: Repriced | None = None

    @property
    def cost(self) -> Cost:
        return self.point.cost if self.elsewhere is None else self.elsewhere.cost

    @property
    def duration_ns(self) -> int:
        return self.point.duration_ns if self.elsewhere is None else self.elsewhere.duration_ns


@dataclass(frozen=True)
class BestView:
    """The best configuration within the limits."""

    job: JobRow
    best: PricedPoint
    #: The cheapest point that is better than `best`. It is outside the limits. None if there is none.
    next_better: PricedPoint | None
    #: How points were priced on another machine; None if the recorded costs apply.
    pricing: MachinePricing | None
    #: Forecast of what more money would buy; None if not requested.
    forecast: NextDollarForecast | None = None

    #: None if the job did not repeat its best configurations with several seeds, or if limits or another machine were given.
    confirmation: Confirmation | None = None

    @property
    def value(self) -> float:
        assert self.best.point.value is not None
        return self.best.point.value

    def gain(self, point: CostedReport) -> float:
        """Return how much better the metric of a point is than that of `best`.

        The result is positive if the point is better, even if the metric is minimized.
        """
        score = self.job.spec.objective.score
        assert point.value is not None
        return score(point.value) - score(self.value)


def best(
    service: Service, job: str, limits: CostLimits, query: MachineQuery = HERE, *, with_forecast: bool = False
) -> BestView:
    """Return the best configuration whose training stays within these limits of cost, GPU-hours and time.

    Args:
        query: The machine for which cost and time are computed. By default, the recorded cost and time apply.
        with_forecast: Whether to add a forecast of what more money would buy.

    Raises:
        NotFound: The project has no such job.
        NothingAffordable: No point is within the limits; the error names the cheapest one.
        Invalid: The requested machine or market is not known.
    """
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
        there = pricing(db, service, row, query)
        view = _best(db, row, limits, there)
        if view is None:
            raise NothingAffordable(_nothing(db, _cheapest(db, row, there), row))
        if limits == fronts.ANY and query == HERE:
            view = _confirmed(db, view)
    return replace(view, forecast=forecast(service.database, row)) if with_forecast else view


def best_trial(db: Connection, row: JobRow) -> str | None:
    """Return the best trial of a job, or None if no trial has a feasible report.

    If the job repeated its best configurations with several seeds, the result is the trial that was confirmed.
    """
    view = _best(db, row, fronts.ANY, None)
    return None if view is None else _confirmed(db, view).best.point.trial


def _confirmed(db: Connection, view: BestView) -> BestView:
    """Replace the best configuration with the confirmed one, if the job repeated configurations with several seeds."""
    confirmation = confirmation_of(db, view.job)
    if confirmation is None:
        return view
    point = fronts.report_at(db, view.job.id, confirmation.trial, confirmation.step)
    return replace(view, best=PricedPoint(point), confirmation=confirmation)


def best_of_all(
    service: Service, trainable: str, metric: str, limits: CostLimits, query: MachineQuery = HERE
) -> BestView:
    """Return the best configuration over all jobs that tuned this trainable for this metric.

    The objective of the newest job decides whether larger or smaller values are better. Jobs whose trials do not fit on the requested
    machine are left out.

    Raises:
        NothingAffordable: No job tuned the trainable for the metric, or no point is within the limits.
        Invalid: The requested machine or market is not known, or no trial of these jobs fits on it.
    """
    with service.database.read() as db:
        tuned = jobs.of_trainable(db, service.project, trainable)
        rows = [row for row in tuned if row.spec.objective.metric == metric]
        if not rows:
            others = sorted({row.spec.objective.metric for row in tuned})
            near = (
                _nearest(metric, others)
                if tuned
                else _nearest(trainable, jobs.trainables(db, service.project))
            )
            raise NothingAffordable(f"no job has tuned {trainable} for {metric!r}{near}")
        priced = _priced(db, service, rows, query, MachineEvidence(db, service.project, rows, tuned))
        extremes = _extremes(db, service.project, trainable, priced, limits)
        score = rows[0].spec.objective.score
        scores = {
            row.id: score(loss_of(row.spec.objective.mode, loss))
            for row, _ in priced
            if row.id in extremes and (loss := extremes[row.id].loss) is not None
        }
        if scores:
            row, there = max(
                (pair for pair in priced if pair[0].id in scores), key=lambda pair: scores[pair[0].id]
            )
            view = _best(db, row, limits, there)
            assert view is not None
            return view
        cheapest = min(
            (pair for pair in priced if pair[0].id in extremes),
            key=lambda pair: extremes[pair[0].id].usd,
            default=None,
        )
        raise NothingAffordable(
            _nothing(db, None, rows[0])
            if cheapest is None
            else _nothing(db, _cheapest(db, *cheapest), cheapest[0])
        )


def _extremes(
    db: Connection,
    project: str,
    trainable: str,
    priced: Sequence[tuple[JobRow, MachinePricing | None]],
    limits: CostLimits,
) -> dict[str, JobExtremes]:
    """Return the best metric within the limits and the lowest cost of each job. A job whose Pareto front is empty is left out.

    The number of queries does not depend on the number of jobs.

    Args:
        priced: Jobs of the project that tune the trainable. Other jobs of the trainable may be in the result, too.
    """
    elsewhere = {row.id: (row, there) for row, there in priced if there is not None}
    extremes = fronts.extremes_of_each(db, project, trainable, limits) if len(elsewhere) < len(priced) else {}
    if elsewhere:
        for job, points in fronts.points_of_each(db, project, trainable):
            if job in elsewhere:
                extremes[job] = _PointsOnOtherMachine(db, *elsewhere[job], points).extremes(limits)
    return extremes


def _priced(
    db: Connection, service: Service, rows: Sequence[JobRow], query: MachineQuery, known: MachineEvidence
) -> list[tuple[JobRow, MachinePricing | None]]:
    """Return the jobs with how each is priced on the requested machine, without those whose trials do not fit on it.

    Raise Invalid, about the newest job, if the machine suits none of them.
    """
    priced, refused = [], list[Invalid]()
    for row in rows:
        try:
            priced.append((row, pricing(db, service, row, query, known)))
        except Invalid as error:
            refused.append(error)
    if not priced:
        raise refused[0]
    return priced


def _nearest(word: str, known: Sequence[str]) -> str:
    return f"; {suggested(nearest(word, known), known[:3])}" if known else ""


def pareto(
    service: Service, job: str, query: MachineQuery = HERE
) -> tuple[Objective | None, list[PricedPoint], MachinePricing | None]:
    """Return the job's Pareto front, cheapest first.

    Returns:
        The job's second objective or None, the points of the front, and how they were priced on another machine. The last
        is None if the recorded costs apply.

    Raises:
        NotFound: The project has no such job.
        Invalid: The requested machine or market is not known.
    """
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
        there = pricing(db, service, row, query)
        if there is None:
            return row.spec.second, [PricedPoint(point) for point in fronts.pareto(db, job)], None
        return row.spec.second, _PointsOnOtherMachine(db, row, there).front(), there


class _PointsOnOtherMachine:
    """The points of a job, each with its cost on another machine.

    Args:
        points: The points of the job's Pareto front. None if the caller has not read them.
    """

    def __init__(
        self, db: Connection, row: JobRow, there: MachinePricing, points: Sequence[Any] | None = None
    ) -> None:
        self._db, self._row = db, row
        if points is None:
            points = fronts.points(db, row.id)
        self._points = sorted(
            ((there.repricing.of(point.duration_ns), point) for point in points),
            key=lambda pair: (
                pair[0].cost.usd,
                pair[1].loss,
                pair[1].second_loss,
                pair[0].duration_ns,
                pair[1].seq,
            ),
        )

    def best(self, limits: CostLimits) -> tuple[PricedPoint, float] | None:
        """Return the best point within the limits and its loss, or None if no point is within them.

        The loss is the metric, negated if larger is better.
        """
        within = self._within(limits)
        if not within:
            return None
        cost, point = min(within, key=lambda pair: (pair[1].loss, pair[0].cost.usd, pair[1].seq))
        return self._priced([(cost, point)])[0], point.loss

    def extremes(self, limits: CostLimits) -> JobExtremes:
        """Return the best metric within the limits and the lowest cost. The job must have points."""
        loss = min((point.loss for _, point in self._within(limits)), default=None)
        return JobExtremes(loss, self._points[0][0].cost.usd)

    def _within(self, limits: CostLimits) -> list[tuple[Repriced, Any]]:
        return [
            (cost, point)
            for cost, point in self._points
            if limits.allow(cost.cost.usd, cost.cost.gpu_ms, cost.duration_ns)
        ]

    def cheapest(self, *, better_than: float = math.inf) -> PricedPoint | None:
        """Return the cheapest point whose loss, as defined in `best`, is less than `better_than`."""
        cheapest_pair = next((pair for pair in self._points if pair[1].loss < better_than), None)
        return None if cheapest_pair is None else self._priced([cheapest_pair])[0]

    def front(self) -> list[PricedPoint]:
        costs = {point.seq: cost for cost, point in self._points}
        points = skyline(point for _, point in self._points)
        return self._priced([(costs[point.seq], point) for point in points])

    def _priced(self, repriced: Sequence[tuple[Repriced, Any]]) -> list[PricedPoint]:
        """Read the complete reports of these points, and return each with its cost on the other machine."""
        whole = fronts.whole(self._db, self._row.id, [(point.trial, point.step) for _, point in repriced])
        return [PricedPoint(point, cost) for point, (cost, _) in zip(whole, repriced, strict=True)]


def _best(db: Connection, row: JobRow, limits: CostLimits, there: MachinePricing | None) -> BestView | None:
    if there is not None:
        points = _PointsOnOtherMachine(db, row, there)
        point_and_loss = points.best(limits)
        return (
            None
            if point_and_loss is None
            else BestView(row, point_and_loss[0], points.cheapest(better_than=point_and_loss[1]), there)
        )
    point = fronts.best(db, row.id, limits)
    if point is None:
        return None
    assert point.value is not None
    better = fronts.next_better(db, row.id, row.spec.objective.mode, point.value)
    return BestView(row, PricedPoint(point), None if better is None else PricedPoint(better), None)


def _cheapest(db: Connection, row: JobRow, there: MachinePricing | None) -> PricedPoint | None:
    if there is not None:
        return _PointsOnOtherMachine(db, row, there).cheapest()
    point = fronts.cheapest(db, row.id)
    return None if point is None else PricedPoint(point)


def without_best(db: Connection, row: JobRow) -> str:
    """Return why a job has no best trial, as a text for users. The Pareto front of the job must be empty."""
    near, limits = fronts.nearest(db, row.id), row.spec.constraints
    if near is None or not limits:
        return f"no trial has reported {row.spec.objective.metric!r} yet"
    values = ", ".join(f"{limit.metric} {near.metrics[limit.metric]:g}" for limit in limits)
    return (
        f"no trial has met the constraints ({', '.join(map(str, limits))}) yet; "
        f"the trial that comes nearest is {near.trial} at step {near.step}, with {values}"
    )


def _nothing(db: Connection, cheapest: PricedPoint | None, row: JobRow) -> str:
    if cheapest is None:
        return without_best(db, row)
    point, cost = cheapest.point, cheapest.cost
    gpus = f", {cost.gpu_hours:.6f} GPU-hours" if cost.gpu_ms else ""
    return (
        f"raise the limits: the cheapest configuration is {point.trial} at step {point.step}, "
        f"for {cost.usd}{gpus} and {duration_text(cheapest.duration_ns / NS)}"
    )
