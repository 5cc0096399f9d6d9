"""What the machines of the cluster cost while no trial ran on them: looked at every few seconds, by the service that leads.

Apart from jobs' bills, in which it is not. A time in which nobody looked is not guessed: it is told how long it was.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tuner.domain.errors import BadFile
from tuner.domain.money import ZERO, Money, Price
from tuner.domain.time import NS, Instant
from tuner.engine.ray_cluster import Node, RayUnavailable
from tuner.service.node_prices import priced
from tuner.service.wiring import Service
from tuner.store import cluster_hours
from tuner.store.cluster_hours import HOUR_NS, Busy, Kind, Time, Watch
from tuner.store.database import Connection

LOOK_NS = 5 * NS
# A service that was away for longer does not know what was there meanwhile.
GAP_NS = 30 * NS
# A cluster that does not answer is not asked in every pass, which waits for its answer.
AWAY_NS = 15 * NS


@dataclass(frozen=True, slots=True)
class KindCost:
    kind: Kind
    alive_ns: int
    idle_ns: int
    cost: Money
    idle: Money


@dataclass(frozen=True, slots=True)
class ClusterCost:
    """Of whole hours. `since` is the first that anybody looked, `watched_ns` for how long somebody did, `unseen_ns` for how long after the
    first nobody did, `unpriced_ns` the time of machines whose price is not known. Head nodes are not counted."""

    since: Instant
    kinds: tuple[KindCost, ...]
    watched_ns: int
    unseen_ns: int
    unpriced_ns: int

    @property
    def cost(self) -> Money | None:
        """None: nothing is known."""
        return sum((one.cost for one in self.kinds), ZERO) if self._is_known else None

    @property
    def idle(self) -> Money | None:
        """Likewise."""
        return sum((one.idle for one in self.kinds), ZERO) if self._is_known else None

    @property
    def _is_known(self) -> bool:
        """Where no machine with a price was there, that is nothing only if somebody looked, and no other was there."""
        return bool(self.kinds) or (self.watched_ns > 0 and not self.unpriced_ns)


class ClusterMeter:
    """One thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._again_at = Instant(0)

    def look(self) -> None:
        """Counts the time since the last look, whoever looked. Raises Unavailable where the database does not answer."""
        service, now = self._service, self._service.now()
        if now < self._again_at <= now + AWAY_NS:
            return
        self._again_at = Instant(now + LOOK_NS)
        try:
            workers = [node for node in service.cluster.nodes() if node.alive and not node.is_head]
        except RayUnavailable:
            self._again_at = Instant(now + AWAY_NS)
            return
        with service.database.write("keeper.meter") as db:
            seen = cluster_hours.clock(db, service.project)
            if seen is None:
                cluster_hours.begin(db, service.project, now)
                return
            passed = now - seen.until
            # A clock that was set back is followed; the clocks of two services may differ by a little.
            if -GAP_NS <= passed < LOOK_NS // 2 or not cluster_hours.advance(db, service.project, seen, now):
                return
            if 0 < passed <= GAP_NS:
                self._add(db, workers, passed, now)

    def _add(self, db: Connection, workers: list[Node], passed_ns: int, now: Instant) -> None:
        project = self._service.project
        idle = {node.id for node in idle_of(workers, cluster_hours.busy(db))}
        found: dict[tuple[Kind, Price], tuple[int, int]] = {}
        unpriced = 0
        for node in workers:
            price = self._price(node)
            if price is None:
                unpriced += passed_ns
                continue
            key = (node.instance_type, node.market), price
            alive_ns, idle_ns = found.get(key, (0, 0))
            found[key] = alive_ns + passed_ns, idle_ns + passed_ns * (node.id in idle)
        times = [Time(kind, price, *ns) for (kind, price), ns in found.items()]
        cluster_hours.add(db, project, now, times, Watch(passed_ns, unpriced))

    def _price(self, node: Node) -> Price | None:
        try:
            return priced(self._service.settings, node.labels, cpus=node.cpus, gpus=node.gpus).price
        except BadFile:
            return None


def idle_of(workers: Iterable[Node], busy: Busy) -> list[Node]:
    """Those on which nothing runs. What runs somewhere, where is not known, has one of its kind: idle cost may be told too low by
    that, never too high."""
    idle = [node for node in workers if node.id not in busy.nodes]
    for kind, market in busy.elsewhere:
        one = next((n for n in idle if kind in (None, n.instance_type) and market in (None, n.market)), None)
        if one is not None:
            idle.remove(one)
    return idle


def cluster_cost(service: Service, since: Instant | None, until: Instant | None) -> ClusterCost | None:
    """Of the hours that begin in that time; None: no worker node was ever seen."""
    now = service.now()
    with service.database.read() as db:
        known = cluster_hours.clock(db, service.project)
        if known is None or not cluster_hours.has_seen_any(db, service.project):
            return None
        # The hour of the first look began before it.
        began = known.since // HOUR_NS * HOUR_NS
        begin = Instant(began if since is None else max(began, -(-since // HOUR_NS) * HOUR_NS))
        end = now if until is None else Instant(min(-(-until // HOUR_NS) * HOUR_NS, now))
        times = cluster_hours.times(db, service.project, begin, end)
        watch = cluster_hours.watched(db, service.project, begin, end)
    kinds = sorted({one.kind for one in times})
    found = tuple(_of_kind(kind, [one for one in times if one.kind == kind]) for kind in kinds)
    unseen = max(0, end - max(begin, known.since) - watch.watched_ns)
    unseen_ns = unseen if unseen > GAP_NS else 0
    return ClusterCost(known.since, found, watch.watched_ns, unseen_ns, watch.unpriced_ns)


def _of_kind(kind: Kind, times: list[Time]) -> KindCost:
    alive, idle = sum(one.alive_ns for one in times), sum(one.idle_ns for one in times)
    cost, wasted = sum((one.cost for one in times), ZERO), sum((one.idle_cost for one in times), ZERO)
    return KindCost(kind, alive, idle, cost, wasted)
