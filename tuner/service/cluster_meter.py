"""Measure how long the cluster's machines run and what they cost, in total and while no trial runs on them.

The leader measures every few seconds. The cost of idle machines is not part of any job's bill. If no service measured
during a period, the cost of the period is not estimated. Only the length of the period is reported.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tuner.cluster.dashboard import RayUnavailable
from tuner.cluster.nodes import Node
from tuner.database.database import Connection
from tuner.domain.errors import BadFile
from tuner.domain.money import ZERO, Money, Price
from tuner.domain.time import HOUR_NS, NS, Instant
from tuner.service.bootstrap import Service
from tuner.service.node_prices import priced
from tuner.store import cluster_hours
from tuner.store.cluster_hours import Busy, Kind, MachineTime, ObservedTime

LOOK_NS = 5 * NS
# If the last measurement is longer ago than this, it is not known which machines were running in the meantime. No machine
# time is then recorded for that period.
GAP_NS = 30 * NS
# If the cluster did not answer, the next try is made after this time, because each try delays the reconciler's pass.
AWAY_NS = 15 * NS


@dataclass(frozen=True, slots=True)
class KindCost:
    """Time and cost of the machines of one type and market."""

    kind: Kind
    alive_ns: int  #: How long the machines ran, summed over the machines.
    idle_ns: int  #: How long they ran without a trial, summed over the machines.
    cost: Money  #: Cost of `alive_ns`.
    idle: Money  #: Cost of `idle_ns`.


@dataclass(frozen=True, slots=True)
class ClusterCost:
    """Cost of the cluster in a range of whole hours, without head nodes."""

    since: Instant  #: When the cluster was first measured.
    kinds: tuple[KindCost, ...]
    watched_ns: int  #: How long the cluster was measured.
    #: How long no service measured the cluster after the first measurement. 0 if that was at most `GAP_NS` in total.
    unseen_ns: int
    unpriced_ns: int  #: Machine time whose price is not known.

    @property
    def cost(self) -> Money | None:
        """Return the cost of the machine time whose price is known. Return None if `_is_known` is false."""
        return sum((machine_kind.cost for machine_kind in self.kinds), ZERO) if self._is_known else None

    @property
    def idle(self) -> Money | None:
        """Return the cost of the machine time whose price is known and in which no trial ran. Return None if `_is_known` is false."""
        return sum((machine_kind.idle for machine_kind in self.kinds), ZERO) if self._is_known else None

    @property
    def _is_known(self) -> bool:
        """Return whether the cost is known, at least that of the priced machines.

        With no priced machines the cost is zero only if the period was observed and no unpriced machine was running.
        Otherwise it is unknown.
        """
        return bool(self.kinds) or (self.watched_ns > 0 and not self.unpriced_ns)


class ClusterMeter:
    """Measure the machine time of the cluster and record its cost. Use it from one thread only."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._again_at = Instant(0)

    def measure(self) -> None:
        """If a measurement is due, record the machine time since the last measurement by any service.

        No machine time is recorded if the cluster does not answer, or if the last measurement is more than `GAP_NS` ago.

        Raises:
            Unavailable: The database does not answer.
        """
        service, now = self._service, self._service.now()
        if now < self._again_at <= now + AWAY_NS:
            return
        self._again_at = Instant(now + LOOK_NS)
        try:
            workers = [node for node in service.cluster.nodes() if node.alive and not node.is_head]
        except RayUnavailable:
            self._again_at = Instant(now + AWAY_NS)
            return
        with service.database.write("reconciler.meter") as db:
            seen = cluster_hours.clock(db, service.project)
            if seen is None:
                cluster_hours.begin(db, service.project, now)
                return
            passed = now - seen.until
            # If the last measurement is slightly in the future, the clock of the service that made it is ahead of this one's.
            # Nothing is done then. If it is further in the future, a clock was set back, and measuring starts again from now.
            if -GAP_NS <= passed < LOOK_NS // 2 or not cluster_hours.advance(db, service.project, seen, now):
                return
            if 0 < passed <= GAP_NS:
                self._add(db, workers, passed, now)

    def _add(self, db: Connection, workers: list[Node], passed_ns: int, now: Instant) -> None:
        """Record that these nodes ran for `passed_ns` until `now`, and which of them were idle."""
        project = self._service.project
        idle = {node.id for node in idle_of(workers, cluster_hours.busy(db))}
        sums: dict[tuple[Kind, Price], tuple[int, int]] = {}
        unpriced = 0
        for node in workers:
            price = self._price(node)
            if price is None:
                unpriced += passed_ns
                continue
            key = (node.instance_type, node.market), price
            alive_ns, idle_ns = sums.get(key, (0, 0))
            sums[key] = alive_ns + passed_ns, idle_ns + passed_ns * (node.id in idle)
        times = [MachineTime(kind, price, *ns) for (kind, price), ns in sums.items()]
        cluster_hours.add(db, project, now, times, ObservedTime(passed_ns, unpriced))

    def _price(self, node: Node) -> Price | None:
        try:
            return priced(self._service.settings, node.labels, cpus=node.cpus, gpus=node.gpus).price
        except BadFile:
            return None


def idle_of(workers: Iterable[Node], busy: Busy) -> list[Node]:
    """Return the nodes on which no attempt runs.

    An attempt whose node is not known counts as running on one node of its instance type and market. The idle cost may
    therefore be too low, but never too high.
    """
    idle = [node for node in workers if node.id not in busy.nodes]
    for kind, market in busy.elsewhere:
        for node in idle:
            if kind in (None, node.instance_type) and market in (None, node.market):
                idle.remove(node)
                break
    return idle


def cluster_cost(service: Service, since: Instant | None, until: Instant | None) -> ClusterCost | None:
    """Return the cost of the whole hours that begin in a period, or None if no worker node was ever seen.

    Args:
        since: Start of the period. None means the first measurement.
        until: End of the period. None means now.
    """
    now = service.now()
    with service.database.read() as db:
        known = cluster_hours.clock(db, service.project)
        if known is None or not cluster_hours.has_seen_any(db, service.project):
            return None
        # Start at the beginning of the hour in which the cluster was first measured.
        began = known.since // HOUR_NS * HOUR_NS
        begin = Instant(began if since is None else max(began, -(-since // HOUR_NS) * HOUR_NS))
        end = now if until is None else Instant(min(-(-until // HOUR_NS) * HOUR_NS, now))
        times = cluster_hours.times(db, service.project, begin, end)
        watch = cluster_hours.watched(db, service.project, begin, end)
    costs: dict[Kind, KindCost] = {}
    for time in times:
        sums = costs.get(time.kind, KindCost(time.kind, 0, 0, ZERO, ZERO))
        costs[time.kind] = KindCost(
            time.kind,
            sums.alive_ns + time.alive_ns,
            sums.idle_ns + time.idle_ns,
            sums.cost + time.cost,
            sums.idle + time.idle_cost,
        )
    unseen = max(0, end - max(begin, known.since) - watch.watched_ns)
    unseen_ns = unseen if unseen > GAP_NS else 0
    return ClusterCost(
        known.since,
        tuple(costs[kind] for kind in sorted(costs)),
        watch.watched_ns,
        unseen_ns,
        watch.unpriced_ns,
    )
