"""Machine time of the cluster by hour, machine type, market and price: how long machines were alive, and how long they were idle.

Machine time is stored in whole milliseconds and converted to money when it is read, so that money is rounded only once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Table, exists, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from tuner.database.codec import contains_field, decode
from tuner.database.tables import attempts, cluster_clock, cluster_hours, cluster_watch, exports, jobs
from tuner.domain.ids import SELF_TEST
from tuner.domain.job import Resources
from tuner.domain.money import ZERO, Money, Price
from tuner.domain.time import HOUR_NS, MS_NS, Instant
from tuner.ledger.readable import holds

Kind = tuple[str, str]
"""(instance type, market)"""


@dataclass(frozen=True, slots=True)
class MeteredSpan:
    since: Instant  #: When observation began.
    until: Instant  #: The end of the time for which machine time has been counted so far.


@dataclass(frozen=True, slots=True)
class MachineTime:
    """The summed time of the machines of one type, market and price."""

    kind: Kind
    price: Price
    alive_ns: int
    idle_ns: int

    @property
    def cost(self) -> Money:
        return self.price.of(self.alive_ns)

    @property
    def idle_cost(self) -> Money:
        return self.price.of(self.idle_ns)


@dataclass(frozen=True, slots=True)
class ObservedTime:
    """How long the cluster was observed, and the summed time of machines whose price is unknown."""

    watched_ns: int
    unpriced_ns: int


@dataclass(frozen=True, slots=True)
class Busy:
    """The machines on which attempts are running. All other machines are idle."""

    nodes: frozenset[str]  #: The nodes that run an attempt.
    #: (instance type, market) of each attempt whose node is unknown. None matches any value.
    elsewhere: tuple[tuple[str | None, str | None], ...]


def clock(db: Connection, project: str) -> MeteredSpan | None:
    row = db.execute(select(cluster_clock).where(cluster_clock.c.project == project)).first()
    return None if row is None else MeteredSpan(Instant(row.since), Instant(row.until))


def begin(db: Connection, project: str, at: Instant) -> None:
    try:
        with db.begin_nested():
            db.execute(insert(cluster_clock).values(project=project, since=at, until=at))
    except IntegrityError:
        return  # another process has inserted the project's clock


def advance(db: Connection, project: str, seen: MeteredSpan, now: Instant) -> bool:
    """Move the project's clock (the time up to which machine time is counted) from `seen.until` to `now`.

    Return True if the caller must count the machine time in between.

    Return False if another process has moved the clock since `seen` was read. That process counts the time.
    """
    c = cluster_clock.c
    mine = (c.project == project) & (c.until == seen.until)
    return db.execute(update(cluster_clock).where(mine).values(until=now)).rowcount == 1


def add(db: Connection, project: str, at: Instant, times: Iterable[MachineTime], watch: ObservedTime) -> None:
    hour = at // HOUR_NS
    here = {"project": project, "hour": hour}
    _add(
        db,
        cluster_watch,
        here,
        {"watched_ms": watch.watched_ns // MS_NS, "unpriced_ms": watch.unpriced_ns // MS_NS},
    )
    for machine_time in times:
        key = {
            **here,
            "instance_type": machine_time.kind[0],
            "market": machine_time.kind[1],
            "price": machine_time.price.micro_usd_per_hour,
        }
        _add(
            db,
            cluster_hours,
            key,
            {"alive_ms": machine_time.alive_ns // MS_NS, "idle_ms": machine_time.idle_ns // MS_NS},
        )


def times(db: Connection, project: str, since: Instant, until: Instant) -> list[MachineTime]:
    """Return the machine time in the hours that begin in this span, summed by machine type, market and price."""
    c = cluster_hours.c
    sums = func.sum(c.alive_ms), func.sum(c.idle_ms)
    keys = c.instance_type, c.market, c.price
    rows = db.execute(
        select(*keys, *sums).where(_within(cluster_hours, project, since, until)).group_by(*keys)
    ).all()
    return [
        MachineTime((kind, market), Price(price), int(alive) * MS_NS, int(idle) * MS_NS)
        for kind, market, price, alive, idle in rows
    ]


def has_seen_any(db: Connection, project: str) -> bool:
    """Return True if any machine of the project was ever observed, even one without a known price."""
    of_price = exists().where(cluster_hours.c.project == project)
    of_none = exists().where((cluster_watch.c.project == project) & (cluster_watch.c.unpriced_ms > 0))
    return bool(db.execute(select(of_price | of_none)).scalar_one())


def watched(db: Connection, project: str, since: Instant, until: Instant) -> ObservedTime:
    c = cluster_watch.c
    row = db.execute(
        select(func.sum(c.watched_ms), func.sum(c.unpriced_ms)).where(
            _within(cluster_watch, project, since, until)
        )
    ).one()
    return ObservedTime(int(row[0] or 0) * MS_NS, int(row[1] or 0) * MS_NS)


def idle_cost(times: Iterable[MachineTime]) -> dict[Kind, Money]:
    costs: dict[Kind, Money] = {}
    for time in times:
        costs[time.kind] = costs.get(time.kind, ZERO) + time.idle_cost
    return costs


def busy(db: Connection) -> Busy:
    """Return the machines on which attempts of all projects run. Self-tests and exports count as attempts on an unknown machine.

    The queries use indexes, because this function runs every few seconds.
    """
    a, h, j = attempts.c, holds.c, jobs.c
    under_way = a.end.is_(None) & a.landed_at.is_not(None)
    rows = db.execute(select(a.job, a.node, a.instance_type, a.market).where(under_way)).all()
    running = select(j.id).where(j.state == "running")
    tests = h.job.in_(running) & (h.state == "open") & (h.trial == SELF_TEST)
    count = int(db.execute(select(func.count()).select_from(holds).where(tests)).scalar_one())
    exporting = select(func.count()).select_from(exports).where(exports.c.state == "running")
    count += int(db.execute(exporting).scalar_one())
    unknown = [(row.instance_type, row.market) for row in rows if not row.node]
    # An attempt on several nodes records only its first node. The number of nodes is in the job's spec if it is more than one.
    several = j.id.in_(select(a.job).where(under_way)) & contains_field(j.spec, Resources, "nodes")
    specs = db.execute(select(j.id, j.spec).where(several))
    nodes = {job: decode(spec).resources.nodes for job, spec in specs}
    # The machine type of the attempt's other nodes is unknown, because it may differ from that of the first node.
    unknown += [(None, row.market) for row in rows for _ in range(nodes.get(row.job, 1) - 1)]
    return Busy(frozenset(row.node for row in rows if row.node), (*unknown, *[(None, None)] * count))


def _within(table: Table, project: str, since: Instant, until: Instant) -> ColumnElement[bool]:
    first, last = -(-since // HOUR_NS), -(-until // HOUR_NS)
    return (table.c.project == project) & (table.c.hour >= first) & (table.c.hour < last)


def _add(db: Connection, table: Table, key: Mapping[str, object], more: Mapping[str, int]) -> None:
    """Add the numbers in `more` to the row with this key. If the row does not exist, insert it.

    Call `advance` first in the same transaction: it locks the project's clock, so that no other process adds at the same time.
    """
    mine = [table.c[name] == value for name, value in key.items()]
    plus = {name: table.c[name] + value for name, value in more.items()}
    if db.execute(update(table).where(*mine).values(plus)).rowcount == 0:
        db.execute(insert(table).values(**key, **more))
