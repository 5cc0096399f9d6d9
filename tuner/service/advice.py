"""Advise what would have made a job cheaper: collect the job's records and apply the rules of `tuner.planning.advice`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from tuner.database.database import Connection
from tuner.domain.checkpointing import InterruptionRisk
from tuner.domain.job import JobSpec
from tuner.domain.listing import MARKETS
from tuner.domain.money import Money
from tuner.domain.time import NS
from tuner.domain.trial import TrialState
from tuner.driver.placement import interruption_risk
from tuner.ledger import ledger
from tuner.planning.advice import findings
from tuner.planning.advice.early_stopping import LEAST_TRIALS, earlier_steps
from tuner.planning.advice.evidence import AdviceFinding as AdviceFinding
from tuner.planning.advice.evidence import (
    Curve,
    JobEvidence,
    JobRegions,
    MeasuredAttempt,
    ScoredStep,
    spent_on,
)
from tuner.planning.advice.missing import MissingMeasurement, not_measured
from tuner.service.bootstrap import Service
from tuner.service.catalogue import catalogue, data_transfer_price, rates_of_region
from tuner.service.node_prices import share_price
from tuner.service.plan_evidence import scaling_of
from tuner.store import attempt_rows, jobs, self_tests
from tuner.store import evidence as recorded
from tuner.store.evidence import losses
from tuner.store.jobs import JobRow
from tuner.tuning.rungs import rungs_of

TRIALS_PAGE = 200


@dataclass(frozen=True)
class AdviceView:
    """The advice on a job."""

    job: JobRow
    spent: Money
    measured: Money  #: The part of `spent` that went to attempts whose resource use was measured.
    findings: list[AdviceFinding]
    missing: list[MissingMeasurement]  #: Measurements that the job lacks and that some rules need.
    catalogue: str  #: Name of the price catalogue.
    catalogue_age: str  #: Age of the catalogue's prices, in words.


def advice(service: Service, job: str) -> AdviceView:
    """Return the advice on a job. Raise NotFound if the job does not exist."""
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
    evidence = evidence_of(service, row)
    today = datetime.fromtimestamp(service.now() // NS, UTC).date()
    measured = spent_on(piece for piece in evidence.attempts if piece.usage is not None)
    return AdviceView(
        row,
        evidence.spent,
        measured,
        findings(evidence),
        not_measured(evidence),
        evidence.catalogue.name,
        evidence.catalogue.age(today),
    )


def evidence_of(service: Service, row: JobRow) -> JobEvidence:
    """Return the records of a job that the advice rules use.

    With SQLite's rollback journal a read blocks every commit. The attempts and reports are therefore read in short
    transactions, one per page of trials. The spend of a running job grows between them. The spend is read last, so that it
    is never less than the sum of the attempts' bills.
    """
    now = service.now()
    with service.database.read() as db:
        trials = recorded.trials_of(db, row.id)
        exposures: dict[str, InterruptionRisk] = {
            market: interruption_risk(market, losses(db, row.id, market, now), row.spec.resources.nodes)
            for market in MARKETS
        }
        tested = self_tests.newest(db, row.project, row.spec.trainable)
    steps = _steps(row.spec, [last for _, last in trials.values() if last])
    names, pieces, curves = sorted(trials), list[MeasuredAttempt](), list[Curve]()
    for first in range(0, len(names), TRIALS_PAGE):
        page = names[first : first + TRIALS_PAGE]
        with service.database.read() as db:
            pieces += _pieces(db, row, page)
            curves += _curves(row, trials, recorded.values_at(db, row.id, page, steps))
    with service.database.read() as db:
        spent = ledger.account(db, row.id).posted.usd
    kind = _main_type(pieces)
    offer = next((offer for offer in row.offers if offer.instance_type == kind), row.offer)
    demand, spot = (share_price(service.settings, row, kind, market) for market in MARKETS)
    return JobEvidence(
        spec=row.spec,
        offer=offer,
        concurrency=row.concurrency,
        attempts=tuple(pieces),
        spent=spent,
        catalogue=catalogue(service.settings),
        risks=exposures,
        curves=tuple(curves),
        demand=demand.price,
        spot=spot.price,
        spot_source=spot.source,
        self_test=tested,
        places=_places(service, row),
        sizes=scaling_of(service, row.spec, offer.instance_type),
    )


def _pieces(db: Connection, row: JobRow, names: Sequence[str]) -> Iterator[MeasuredAttempt]:
    bills = recorded.bills(db, row.id, names)
    for attempt, usage in attempt_rows.of_trials(db, row.id, names):
        yield MeasuredAttempt(attempt, bills.get((attempt.trial, attempt.attempt), {}), usage)


def _curves(
    row: JobRow,
    trials: Mapping[str, tuple[TrialState, int]],
    values: Iterable[tuple[str, int, float | None, Money]],
) -> Iterator[Curve]:
    spec = row.spec
    final = ("stopped",) if row.state == "running" else ("stopped", "paused")
    for trial, trial_values in groupby(values, key=lambda value: value[0]):
        state, last = trials[trial]
        points = (
            ScoredStep(step, None if value is None else spec.objective.score(value), cost)
            for _, step, value, cost in trial_values
        )
        yield Curve(tuple(points), last, state in final)


def _steps(spec: JobSpec, lasts: Sequence[int]) -> set[int]:
    """Return the steps whose reports the advice rules use. Other reports are not read, because a job may have a million.

    Args:
        lasts: The last step of each trial that has reported.
    """
    reached, fidelity = sorted(lasts, reverse=True), spec.fidelity
    last = fidelity.max or (reached[LEAST_TRIALS - 1] if len(reached) >= LEAST_TRIALS else fidelity.min)
    return {fidelity.min, last, *rungs_of(spec), *earlier_steps(spec, last)}


def _main_type(attempts: Iterable[MeasuredAttempt]) -> str | None:
    """Return the instance type on which most of the money was spent. Return None if the machines were not checked."""
    spent = Counter[str | None]()
    for attempt in attempts:
        machine = attempt.row.machine
        spent[None if machine is None else machine.instance_type] += attempt.spent.micro_usd
    return max(spent, key=lambda kind: (spent[kind], kind or ""), default=None)


def _places(service: Service, row: JobRow) -> JobRegions:
    settings = service.settings
    region = row.spec.resources.region or row.offer.region
    rates = rates_of_region(settings, region)
    price = None if rates is None else rates.between_regions
    return JobRegions(
        region,
        settings.storage_region or None,
        price,
        rates.source if rates is not None else "",
        settings.data_region or None,
        data_transfer_price(settings),
    )
