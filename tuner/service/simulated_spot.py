"""Show how spot machines affected a simulated job: its figures, and the same job simulated under other conditions."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from tuner.domain.cost import CostKind
from tuner.domain.money import NS_PER_HOUR, Money, Price
from tuner.domain.records import AttemptRow
from tuner.domain.time import NS
from tuner.driver.placement import PATIENCE_NS
from tuner.service.simulation_request import MARKETS, Request
from tuner.simulator import traces
from tuner.simulator.recorded import RecordedTable
from tuner.simulator.table_run import SAVE_NS, SPOT_SAVES, Spot, price_of
from tuner.simulator.world import SimulatedRun

MINUTE_NS = 60 * NS
T = TypeVar("T")
Name = Literal["this_job", "uninterrupted", "on_demand", "every_15m", "every_30m", "from_zero"]


@dataclass(frozen=True, slots=True)
class Use:
    """Paid machine time on one market."""

    hours: float
    usd: float


@dataclass(frozen=True, slots=True)
class SpotFigures:
    """MetricsSnapshot of a simulated job on spot machines."""

    trace: str
    start_s: float
    notice_s: float  #: Time from the preemption notice to the preemption; 0 if there is no notice.
    market: str
    markets: dict[str, Use]  #: Machine time used on each market.
    kept_trainings: float  #: Training that was not lost, in mean trainings.
    #: Cost of the kept training and one start of each trial on spot without interruptions.
    uninterrupted_usd: float
    on_demand_usd: float  #: The same cost on demand.
    times_uninterrupted: float | None  #: Spend relative to `uninterrupted_usd`; None if nothing was kept.


@dataclass(frozen=True, slots=True)
class Beside:
    """MetricsSnapshot of the same job simulated under one set of conditions."""

    name: Name
    spent_usd: float
    kept_trainings: float
    usd_per_training: float | None  #: Spend per mean training that was kept; None if none was.
    times_uninterrupted: float | None  #: `usd_per_training` relative to that of the uninterrupted run.
    lost_usd: float
    preemptions: int
    simulated_seconds: float
    stop_reason: str | None


def spot_of(request: Request) -> Spot | None:
    """Return the spot conditions of the request, with defaults for what it leaves out, or None if it has no spot machines.

    Raises:
        TraceError: The trace cannot be used.
    """
    if request.preemptions is None:
        return None
    notice_ns = 0 if request.noticeless else request.notice_ns
    trace, start_ns = traces.drawn(
        request.preemptions, seed=request.seed, notice_ns=notice_ns, trace_id=request.trace_id
    )
    given_ns = trace.notice_ns if notice_ns is None else notice_ns
    return Spot(
        trace=trace,
        start_ns=start_ns,
        notice_ns=given_ns or None,
        market=next((market for market in MARKETS if market == request.market), "spot"),
        saving=_or(request.spot_saving, SPOT_SAVES),
        patience_ns=_or(request.spot_wait_ns, PATIENCE_NS),
        save_ns=_or(request.save_ns, SAVE_NS),
        every_ns=request.every_ns or "auto",
    )


def _or(given: T | None, usual: T) -> T:
    return usual if given is None else given


def conditions(spot: Spot) -> dict[Name, Spot]:
    """Return the conditions under which a job is simulated for comparison.

    The last three imitate programs that ignore preemption notices and save only at intervals, or never. They lose the
    training since the last checkpoint.
    """
    deaf = replace(spot, notice_ns=None)
    return {
        "uninterrupted": replace(spot, trace=None, market="spot"),
        "on_demand": replace(spot, market="on_demand"),
        "every_15m": replace(deaf, every_ns=15 * MINUTE_NS),
        "every_30m": replace(deaf, every_ns=30 * MINUTE_NS),
        "from_zero": replace(deaf, every_ns=None),
    }


def beside(
    run: SimulatedRun, spot: Spot, table: RecordedTable, simulated: Callable[[Spot], SimulatedRun]
) -> list[Beside]:
    """Return the figures of `run`, and those of the same job simulated under other conditions."""
    others = {name: simulated(other) for name, other in conditions(spot).items()}
    ideal = _price(others["uninterrupted"], table)
    runs: dict[Name, SimulatedRun] = {"this_job": run, **others}
    return [_row(name, one, table, ideal) for name, one in runs.items()]


def _row(name: Name, run: SimulatedRun, table: RecordedTable, ideal: float | None) -> Beside:
    price = _price(run, table)
    return Beside(
        name,
        run.journal.tables.account.posted.usd.usd,
        kept_trainings(run, table),
        price,
        price / ideal if price and ideal else None,
        _usd(_paid(run, "lost")),
        run.preemptions,
        run.clock.elapsed_ns() / NS,
        run.loop.end.reason if run.loop.end else None,
    )


def _price(run: SimulatedRun, table: RecordedTable) -> float | None:
    kept = kept_trainings(run, table)
    return run.journal.tables.account.posted.usd.usd / kept if kept else None


def figures_of(run: SimulatedRun, table: RecordedTable, spot: Spot) -> SpotFigures:
    markets = spot.markets(price_of(table))
    once_ns = kept_ns(run) + sum(_ns(row, "setup") for row in _rows(run) if row.attempt == 1)
    demand = replace(spot, market="on_demand").markets(price_of(table)).rate.price
    ideal, spent = price_of(table).of(once_ns), run.journal.tables.account.posted.usd
    assert spot.trace is not None
    return SpotFigures(
        trace=spot.trace.name,
        start_s=spot.start_ns / NS,
        notice_s=(spot.notice_ns or 0) / NS,
        market=spot.market,
        markets={offer.market: _use(run, offer.market) for offer in markets.offers},
        kept_trainings=kept_trainings(run, table),
        uninterrupted_usd=ideal.usd,
        on_demand_usd=demand.of(once_ns).usd,
        times_uninterrupted=spent.micro_usd / ideal.micro_usd if ideal.micro_usd else None,
    )


def kept_trainings(run: SimulatedRun, table: RecordedTable) -> float:
    return round(kept_ns(run) / NS / table.full_s, 5)


def kept_ns(run: SimulatedRun) -> int:
    """Return the training time that was not lost.

    It is derived from the bill. Training that had to be repeated is billed as lost, not as training.
    """
    return sum(_ns(row, "train") for row in _rows(run))


def _rows(run: SimulatedRun) -> Iterable[AttemptRow]:
    return run.journal.tables.attempts.values()


def _ns(row: AttemptRow, *kinds: CostKind) -> int:
    micro = sum(cost.usd.micro_usd for kind, cost in row.costs.items() if kind in kinds)
    return micro * NS_PER_HOUR // row.price.micro_usd_per_hour if row.price != Price(0) else 0


def _use(run: SimulatedRun, market: str) -> Use:
    rows = [row for row in _rows(run) if row.market == market]
    ns = sum(_ns(row, *row.costs) for row in rows)
    micro = sum(cost.usd.micro_usd for row in rows for cost in row.costs.values())
    return Use(ns / NS_PER_HOUR, _usd(micro))


def _paid(run: SimulatedRun, kind: CostKind) -> int:
    return sum(
        entry.cost.usd.micro_usd for entry in run.journal.tables.entries.values() if entry.kind == kind
    )


def _usd(micro: int) -> float:
    return Money(micro).usd
