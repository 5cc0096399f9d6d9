"""Spend by group."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tuner.database.database import Connection
from tuner.domain import calendar
from tuner.domain.access import DEFAULT_PROJECT, Actor
from tuner.domain.errors import Fault, Invalid
from tuner.domain.money import Money
from tuner.domain.text import nearest
from tuner.domain.time import NS, Instant
from tuner.service.bootstrap import Service
from tuner.service.catalogue import data_transfer_price, storage_price, transfer_price
from tuner.service.cluster_meter import ClusterCost, cluster_cost
from tuner.store import spend, stored_files
from tuner.store.spend import Span
from tuner.store.spend import SpendRow as SpendRow

GROUPS = ("owner", "trainable", "market", "day", "job")
MAX_GROUPS = 5


@dataclass(frozen=True, slots=True)
class RequestedPeriod:
    """The time that a request names: from `since` up to, but not including, `until`."""

    since: Instant | None  #: None means that the beginning is not limited.
    until: Instant | None  #: None means now.
    timezone: str = "UTC"  #: Days begin at midnight in this time zone.


@dataclass(frozen=True)
class SpendView:
    """The spend of a project, in groups."""

    group_by: tuple[str, ...]
    period: RequestedPeriod
    rows: list[SpendRow]
    total: SpendRow
    #: Cost of the cluster's machines in the period, for all users. None if it was never measured or the user may not
    #: see it.
    cluster: ClusterCost | None = None


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A time in the requested period for which files of a job had a constant size."""

    job: str
    begin: int
    end: int
    size_bytes: int

    @property
    def byte_ns(self) -> int:
        return self.size_bytes * (self.end - self.begin)


def spend_of(
    service: Service,
    group_by: Sequence[str],
    *,
    since: str | None = None,
    until: str | None = None,
    timezone: str = "UTC",
) -> SpendView:
    """Return the spend by group. Days are in order of time. Other groups are ordered by cost, the most expensive first.

    Args:
        group_by: Names from `GROUPS`, or `tag:KEY`.
        since: Beginning of the period: a date in the time zone `timezone`, or a time. None means no limit.
        until: End of the period, exclusive, in the same form. None means now.

    Raises:
        Invalid: A value is wrong; the possible groups are named.
    """
    return spend_in(service, group_by, period_of(since, until, timezone))


def spend_in(service: Service, group_by: Sequence[str], period: RequestedPeriod) -> SpendView:
    """Return the spend in a period by group, in the order of `spend_of`. Raise Invalid if a group is wrong."""
    keys = _keys(group_by)
    with service.database.read() as db:
        known = spend.extent(db, service.project) or Span(Instant(0), Instant(0))
        begin = max(known.since, known.since if period.since is None else period.since)
        end = min(known.until, known.until if period.until is None else period.until)
        span = Span(begin, Instant(max(begin, end)), period.timezone)
        regions = {
            "storage_region": service.settings.storage_region,
            "data_region": service.settings.data_region,
        }
        spend_rows = spend.rows(db, service.project, keys, span, **regions)
        (total,) = spend.rows(db, service.project, (), span, **regions)
        rows, total = _with_storage(db, service, keys, (spend_rows, total), period)
    rows = sorted(rows, key=lambda row: _place(keys, row))
    cluster = cluster_cost(service, period.since, period.until) if _sees_cluster(service.actor) else None
    return SpendView(tuple(group_by), period, rows, total, cluster)


def _with_storage(
    db: Connection,
    service: Service,
    keys: Sequence[spend.Key],
    rows: tuple[list[SpendRow], SpendRow],
    period: RequestedPeriod,
) -> tuple[list[SpendRow], SpendRow]:
    """Return the groups and the total, with the costs of stored files and of data transfer added.

    Files belong to a job, which may use several markets, so groups by market have no storage cost. A group may have storage cost and no
    other spend.

    Args:
        rows: The groups and the total.
    """
    groups, total = {row.keys: row for row in rows[0]}, rows[1]
    now, since = service.now(), period.since or Instant(0)
    until = now if period.until is None else min(period.until, now)
    parts = [
        StoredPart(span.job, begin, end, span.size_bytes)
        for span in stored_files.spans(db, service.project, since, until)
        # A period that has not begun yet ends before it begins.
        if (begin := max(span.since, since)) < (end := min(span.until or until, until))
    ]
    whole = sum(part.byte_ns for part in parts)
    sums: dict[tuple[str | None, ...], int] = {}
    if "market" not in keys:
        which = stored_files.stored_between(service.project, since, until)
        values = {key: spend.values_of_jobs(db, key, which) for key in keys if key not in ("job", "day")}
        sums = stored_by_group(parts, keys, values, period.timezone)
    price, transfer = storage_price(service.settings), transfer_price(service.settings)
    of_data = data_transfer_price(service.settings)

    def with_cost(row: SpendRow, byte_ns: int | None) -> SpendRow:
        return replace(
            row,
            storage_byte_ns=byte_ns,
            storage_usd=storage_cost(price, byte_ns),
            transfer_usd=_transfer_cost(transfer, row.moved_bytes, row.unplaced_bytes),
            data_transfer_usd=_transfer_cost(of_data, row.data_moved_bytes, row.data_unplaced_bytes),
        )

    rows_with_storage = [
        with_cost(groups.get(key, SpendRow(key)), None if "market" in keys else sums.get(key, 0))
        for key in {**groups, **sums}
    ]
    return rows_with_storage, with_cost(total, whole)


def storage_cost(price: Money | None, byte_ns: int | None) -> Money | None:
    """Return the cost of the stored bytes, or None if it is not known.

    Args:
        price: The price of 10^9 bytes for a month. If it is None, the cost is known only if nothing is stored.
        byte_ns: The stored bytes times the nanoseconds for which they were stored. None if that is not known.
    """
    if byte_ns is None or (byte_ns and price is None):
        return None
    return Money(0 if price is None else spend.round_half_up(price.micro_usd * byte_ns, spend.GB_MONTH))


def _transfer_cost(price: Money | None, moved_bytes: int, unplaced_bytes: int) -> Money | None:
    """Return the cost of moving bytes between regions, or None if it is not known.

    Args:
        price: The price of moving 10^9 bytes. If it is None, the cost is known only if nothing was moved.
        moved_bytes: Bytes that were moved between regions.
        unplaced_bytes: Bytes of which it is not known whether they were moved between regions. Unless this is 0, the cost is not known.
    """
    if unplaced_bytes or (moved_bytes and price is None):
        return None
    return Money(0 if price is None else spend.round_half_up(price.micro_usd * moved_bytes, 10**9))


def stored_by_group(
    parts: Sequence[StoredPart],
    keys: Sequence[spend.Key],
    values: Mapping[spend.Key, Mapping[str, str]],
    timezone: str,
) -> dict[tuple[str | None, ...], int]:
    """Return the stored bytes times nanoseconds of each group.

    Args:
        values: The values of the keys other than `job` and `day`, by key and job.
        timezone: Days begin at midnight in this time zone.
    """
    groups: dict[tuple[str | None, ...], list[StoredPart]] = {}
    for part in parts:
        of_job = {"job": part.job, "day": ""}
        key = tuple(of_job[name] if name in of_job else values[name].get(part.job) for name in keys)
        groups.setdefault(key, []).append(part)
    if "day" not in keys or not parts:
        return {key: sum(part.byte_ns for part in group) for key, group in groups.items()}
    days = _days(min(part.begin for part in parts), max(part.end for part in parts), timezone)
    place = keys.index("day")
    return {
        (*key[:place], day, *key[place + 1 :]): byte_ns
        for key, group in groups.items()
        for day, byte_ns in _stored_by_day(group, *days)
    }


def _stored_by_day(
    parts: Sequence[StoredPart], starts: Sequence[int], names: Sequence[str]
) -> Iterator[tuple[str, int]]:
    """Yield the stored bytes times nanoseconds of each day on which something was stored.

    The work grows with the number of parts plus the number of days, because a part that covers whole days is added only at its first and
    its last day. Thousands of jobs may each have stored their files for a year.

    Args:
        starts: The beginnings of the days, and the end of the last day.
        names: The dates of the days.
    """
    # Bytes times nanoseconds on days that a part does not cover as a whole.
    partial = defaultdict[int, int](int)
    # By how many more bytes whole days are covered than on the day before.
    change = defaultdict[int, int](int)
    for part in parts:
        first, last = bisect_right(starts, part.begin) - 1, bisect_left(starts, part.end) - 1
        if first == last:
            partial[first] += part.byte_ns
            continue
        partial[first] += part.size_bytes * (starts[first + 1] - part.begin)
        partial[last] += part.size_bytes * (part.end - starts[last])
        change[first + 1] += part.size_bytes
        change[last] -= part.size_bytes
    whole_days = 0
    for day in range(min(partial), max(partial) + 1):
        whole_days += change[day]
        if byte_ns := partial[day] + whole_days * (starts[day + 1] - starts[day]):
            yield names[day], byte_ns


def _days(begin: int, end: int, timezone: str) -> tuple[list[int], list[str]]:
    """Return the days of a time zone that overlap the time between two instants.

    Returns:
        The beginnings of the days followed by the end of the last day, and the ISO date of each day.
    """
    where = calendar.zone(timezone)
    at, _ = calendar.period_of(Instant(begin), "day", where)
    starts, names = [int(at)], list[str]()
    while at < end:
        _, following = calendar.period_of(at, "day", where)
        assert following is not None
        # The middle of the day has the right date even if the clock was changed at night.
        names.append(datetime.fromtimestamp((at + following) // 2 // NS, where).date().isoformat())
        starts.append(following)
        at = following
    return starts, names


def _sees_cluster(actor: Actor) -> bool:
    """Return whether the actor may see the cluster's cost.

    The cost covers the jobs of all projects, so only the operator may see it, and only in the default project.
    """
    return actor.is_operator and actor.project == DEFAULT_PROJECT


def period_of(since: str | None, until: str | None, timezone: str = "UTC") -> RequestedPeriod:
    """Parse the beginning and the end of a period, each a date in the time zone or a time.

    Raise Invalid if a value is wrong or the end is not later than the beginning.
    """
    faults, where = [], calendar.zone("UTC")
    try:
        where = calendar.zone(timezone)
    except ValueError as error:
        faults.append(Fault("timezone", str(error)))
    moments: list[Instant | None] = []
    for name, text in (("since", since), ("until", until)):
        try:
            moment = None if text is None else calendar.moment_of(text, where)
        except ValueError as error:
            faults.append(Fault(name, str(error)))
            continue
        if moment is not None and abs(moment) >= 2**63:  # databases cannot compare with larger numbers
            faults.append(Fault(name, "must be between the years 1678 and 2261"))
        moments.append(moment)
    if faults:
        raise Invalid(*faults)
    first, last = moments
    if first is not None and last is not None and first >= last:
        raise Invalid.at("until", "must be later than since")
    return RequestedPeriod(first, last, timezone)


def _keys(group_by: Sequence[str]) -> list[spend.Key]:
    if len(group_by) > MAX_GROUPS:
        raise Invalid.at("group_by", f"give at most {MAX_GROUPS} groups")
    if len(set(group_by)) < len(group_by):
        raise Invalid.at("group_by", "a group is named twice; name each group once")
    return [_key(name) for name in group_by]


def _key(name: str) -> spend.Key:
    if name == "owner":
        return f"{spend.TAG}owner"
    tag = name.removeprefix(spend.TAG)
    if name in GROUPS or (tag != name and 1 <= len(tag) <= 100):
        return name
    near = nearest(name, GROUPS, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise Invalid.at("group_by", f"{hint}group by {', '.join(GROUPS)} or tag:KEY, not {name[:60]!r}")


def _place(keys: Sequence[spend.Key], row: SpendRow) -> tuple[object, ...]:
    days = tuple(value or "" for key, value in zip(keys, row.keys, strict=True) if key == "day")
    return (days, -row.cost.usd.micro_usd, tuple((value is None, value or "") for value in row.keys))
