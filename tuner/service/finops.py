"""Make the monthly report for the lead of a team: the spend of a project, its efficiency, and possible savings.

Amounts spent are sums over the ledger entries of the month. Savings and advice cover the whole life of the jobs that ended
in the month, because what a job would have cost otherwise is known only for the whole job.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from tuner.domain import calendar
from tuner.domain.cost import CostKind
from tuner.domain.errors import Fault, Invalid
from tuner.domain.job import FINAL
from tuner.domain.money import FREE, ZERO, Cost, Money
from tuner.domain.time import NS, Instant
from tuner.ledger import ledger
from tuner.planning.advice.evidence import total
from tuner.service.advice import AdviceFinding, advice
from tuner.service.bill import bill
from tuner.service.bootstrap import Service
from tuner.service.cluster_meter import ClusterCost
from tuner.service.spend import RequestedPeriod, spend_in
from tuner.service.storage_lifecycle import storage
from tuner.store import jobs, spend
from tuner.store.spend import Span, SpendRow

# Savings and advice are computed for this many of the jobs that ended in the month, the most expensive first. A limit is
# needed because the advice reads all records of a job.
EXAMINED = 50
Level = Literal["crawl", "walk", "run"]
FOUNDATION = "sample goals of the FinOps Foundation"
OWN = "chosen by this project"


@dataclass(frozen=True, slots=True)
class Saving:
    """What the examined jobs cost, compared with what they would have cost without a feature such as spot."""

    name: str
    counterfactual: str  #: What the cost is compared with, as a text for users.
    jobs: int  #: Number of jobs for which the other cost is known.
    usd: Money  #: What these jobs cost.
    counterfactual_usd: Money  #: What they would have cost otherwise.

    @property
    def saved_usd(self) -> Money:
        return self.counterfactual_usd - self.usd


@dataclass(frozen=True, slots=True)
class RightSizing:
    """The findings of one advice rule, summed over the examined jobs."""

    kind: str  #: Name of the rule.
    title: str  #: Title of the finding that would have saved most.
    jobs: int  #: Number of findings.
    saves_usd: Money | None  #: Sum of the savings that are known; None if none is known.


@dataclass(frozen=True, slots=True)
class Maturity:
    """One capability, measured against the levels of the FinOps maturity model."""

    capability: str
    measure: str  #: What is measured, as a text for users.
    value: float | None  #: None if it cannot be measured.
    walk: float  #: The value from which the level is `walk`.
    run: float  #: The value from which the level is `run`.
    thresholds: str  #: Where the thresholds come from.

    @property
    def level(self) -> Level | None:
        if self.value is None:
            return None
        # If smaller values are better, as for idle time, `run` is below `walk`.
        sign = 1 if self.run > self.walk else -1
        reached = [
            name
            for name, least in (("walk", self.walk), ("run", self.run))
            if sign * (self.value - least) >= 0
        ]
        return "run" if "run" in reached else "walk" if reached else "crawl"


@dataclass(frozen=True, slots=True)
class MonthlyReport:
    project: str
    month: str
    timezone: str
    since: Instant
    until: Instant
    is_complete: bool  #: Whether the month is over.
    total: SpendRow
    by_kind: Mapping[CostKind, Cost]
    #: Share of the spend on known markets that went to spot. None without such spend.
    spot_share: float | None
    ended: Mapping[str, int]  #: Jobs that ended in the month, by state.
    cluster: ClusterCost | None
    examined_jobs: int
    savings: list[Saving]
    right_sizing: list[RightSizing]
    maturity: list[Maturity]

    @property
    def goodput(self) -> float | None:
        """Return the share of the spend that paid for training whose work was not lost, or None if nothing was spent."""
        return _share(self.by_kind.get("train", FREE).usd, total(cost.usd for cost in self.by_kind.values()))

    @property
    def idle_usd(self) -> Money | None:
        return None if self.cluster is None else self.cluster.idle

    @property
    def cluster_usd(self) -> Money | None:
        return None if self.cluster is None else self.cluster.cost


def monthly_report(service: Service, month: str | None = None, timezone: str = "UTC") -> MonthlyReport:
    """Return the report of the project for a calendar month of a time zone.

    Args:
        month: The month, such as `2026-11`. None means the current one.
        timezone: The name of the time zone, such as Europe/Berlin.

    Raises:
        Invalid: The month or the time zone is wrong.
    """
    first, last, named = _month(service, month, timezone)
    view = spend_in(service, ("tag:project", "owner"), RequestedPeriod(first, last, timezone))
    with service.database.read() as db:
        span = Span(first, last, timezone)
        by_market = spend.rows(db, service.project, ("market",), span)
        by_kind = spend.by_kind(db, service.project, span)
        ended = jobs.ended_between(db, service.project, first, last)
        costs = {row.id: ledger.account(db, row.id).posted.usd for row in ended}
    examined = sorted(ended, key=lambda row: (-costs[row.id].micro_usd, row.id))[:EXAMINED]
    states: dict[str, int] = {state: sum(1 for row in ended if row.state == state) for state in sorted(FINAL)}
    report = MonthlyReport(
        project=service.project,
        month=named,
        timezone=timezone,
        since=first,
        until=last,
        is_complete=service.now() >= last,
        total=view.total,
        by_kind=by_kind,
        spot_share=_spot_share(by_market),
        ended=states,
        cluster=view.cluster,
        examined_jobs=len(examined),
        savings=_savings(service, [row.id for row in examined]),
        right_sizing=_right_sizing(service, [row.id for row in examined]),
        maturity=[],
    )
    return replace(report, maturity=_maturity(service, report, view.rows))


def _month(service: Service, month: str | None, timezone: str) -> tuple[Instant, Instant, str]:
    try:
        where = calendar.zone(timezone)
    except ValueError as error:
        raise Invalid.at("timezone", str(error)) from error
    at = service.now()
    if month is not None:
        match = re.fullmatch(r"(\d{4})-(0[1-9]|1[0-2])", month, re.ASCII)
        if match is None or not 1971 <= int(match[1]) <= 2200:
            raise Invalid(Fault("month", "must be a month from 1971-01 to 2200-12, such as 2026-11"))
        at = calendar.moment_of(f"{month}-15", where)
    first, last = calendar.period_of(at, "month", where)
    assert last is not None
    # The name is taken from an instant in the middle of the month. No change of the time zone's offset moves that instant into
    # another month.
    return first, last, f"{datetime.fromtimestamp((first + last) // 2 // NS, where):%Y-%m}"


def _share(part: Money, whole: Money) -> float | None:
    return round(part.micro_usd / whole.micro_usd, 6) if whole.micro_usd else None


def _spot_share(rows: Sequence[SpendRow]) -> float | None:
    by_market = {row.keys[0]: row.cost.usd for row in rows if row.keys[0] is not None}
    return _share(by_market.get("spot", ZERO), total(by_market.values()))


def _savings(service: Service, ids: Sequence[str]) -> list[Saving]:
    bills = [bill(service, job) for job in ids]
    kinds = (
        (
            "spot",
            "the same machine time at the on-demand price when the job was admitted",
            [bill.on_demand for bill in bills],
        ),
        (
            "early stopping",
            "every trial trained to the last step at its own pace",
            [bill.full_fidelity for bill in bills],
        ),
    )
    savings = []
    for name, counterfactual, others in kinds:
        known = [(bill.search, other) for bill, other in zip(bills, others, strict=True) if other is not None]
        usd, instead = total(usd for usd, _ in known), total(other for _, other in known)
        savings.append(Saving(name, counterfactual, len(known), usd, instead))
    return savings


def _right_sizing(service: Service, ids: Sequence[str]) -> list[RightSizing]:
    """Return the findings on these jobs, summed by rule. The rule that would have saved most comes first."""
    by_kind: dict[str, list[AdviceFinding]] = {}
    for job in ids:
        for finding in advice(service, job).findings:
            by_kind.setdefault(finding.kind, []).append(finding)
    sizings = []
    for kind, findings in by_kind.items():
        known = [finding.saves for finding in findings if finding.saves is not None]
        largest = max(findings, key=lambda finding: -1 if finding.saves is None else finding.saves.micro_usd)
        sizings.append(RightSizing(kind, largest.title, len(findings), total(known) if known else None))
    return sorted(sizings, key=lambda sizing: (-(sizing.saves_usd or ZERO).micro_usd, sizing.kind))


def _maturity(service: Service, report: MonthlyReport, by_tags: Sequence[SpendRow]) -> list[Maturity]:
    allocated = total(row.cost.usd for row in by_tags if any(row.keys))
    stored = storage(service)
    limited = sum(
        job.size_bytes for job in stored.items if job.policy.retain != "all" or job.policy.for_ns is not None
    )
    idle = None
    if report.idle_usd is not None and report.cluster_usd is not None:
        idle = _share(report.idle_usd, report.cluster_usd)
    return [
        Maturity(
            "Allocation",
            "share of the spend whose job has a tag project or owner",
            _share(allocated, report.total.cost.usd),
            0.8,
            0.9,
            FOUNDATION,
        ),
        Maturity(
            "Rate optimization",
            "share of the spend on spot machines; the goals are those of the FinOps Foundation for commitments",
            report.spot_share,
            0.7,
            0.8,
            FOUNDATION,
        ),
        Maturity(
            "Workload optimization", "goodput: share of the spend that trained", report.goodput, 0.8, 0.9, OWN
        ),
        Maturity(
            "Idle machines", "share of the machines' cost while no trial ran on them", idle, 0.3, 0.1, OWN
        ),
        Maturity(
            "Storage lifecycle",
            "share of the stored bytes that a retention policy limits",
            round(limited / stored.size_bytes, 6) if stored.size_bytes else None,
            0.5,
            0.9,
            OWN,
        ),
    ]
