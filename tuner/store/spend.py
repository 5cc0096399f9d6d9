"""Spend reports: queries that sum the ledger entries of a time span by tag, trainable, market, day or job."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    String,
    bindparam,
    case,
    distinct,
    func,
    literal_column,
    null,
    select,
)

from tuner.database.tables import attempt_usage, attempts, job_tags, jobs, same_attempt, same_trial, trials
from tuner.domain.calendar import day_name, offsets, zone
from tuner.domain.cost import CostKind
from tuner.domain.money import FREE, Cost, Money
from tuner.domain.time import DAY_NS, NS, Instant
from tuner.ledger.readable import entries

TAG = "tag:"
Key = str
"""A key by which spend is grouped: `tag:KEY`, `trainable`, `market`, `day` or `job`."""
Shifts = tuple[tuple[int, int], ...]
"""The offsets of a time zone from UTC, as (Unix time at which the offset begins, offset), in nanoseconds and in ascending order."""
FAILED = ("failed", "lost")
TRANSFERRED = (
    "read_bytes",
    "written_bytes",
    "moved_bytes",
    "unplaced_bytes",
    "data_read_bytes",
    "data_moved_bytes",
    "data_unplaced_bytes",
)
_PROJECT = bindparam("project", type_=String)
GB_MONTH = 10**9 * 730 * 3600 * NS  # a gigabyte for a month of 730 hours, in bytes times nanoseconds


@dataclass(frozen=True, slots=True)
class Span:
    """A time span from `since` up to, but not including, `until`."""

    since: Instant
    until: Instant
    timezone: str = "UTC"  #: Days begin at midnight in this time zone.


@dataclass(frozen=True, slots=True)
class SpendRow:
    """The spend and the counts of one group: one combination of values of the grouping keys."""

    #: The values of the grouping keys, in the requested order. The value of a tag is None if the job does not have the tag.
    keys: tuple[str | None, ...]
    cost: Cost = FREE
    lost: Cost = FREE
    jobs: int = 0
    trials: int = 0  #: Trials with an entry in the span.
    completed: int = 0  #: How many of these trials are completed.
    preemptions: int = 0  #: Attempts that ended by preemption in the span.
    retries: int = 0  #: Attempts that began in the span after an attempt that failed or was lost.
    #: Size of the stored files times the time in which they were stored. None if the groups cannot be matched to stored files.
    storage_byte_ns: int | None = 0
    storage_usd: Money | None = None  #: Cost of storing these files. None if it is not known.

    # The following fields are about the attempts that ended in the span.
    read_bytes: int = 0  #: Size of the checkpoints that the attempts read.
    written_bytes: int = 0  #: Size of the checkpoints that the attempts wrote.
    moved_bytes: int = (
        0  #: The part of `read_bytes` and `written_bytes` that attempts outside the storage's region moved.
    )
    unplaced_bytes: int = 0  #: The part of `read_bytes` and `written_bytes` for which it is not known whether it was moved between regions.
    transfer_usd: Money | None = (
        None  #: Cost of moving `moved_bytes` between regions. None if it is not known.
    )

    data_read_bytes: int = 0  #: Size of the datasets that the attempts downloaded.
    #: The part of the datasets that attempts in another region downloaded from buckets.
    data_moved_bytes: int = 0
    data_unplaced_bytes: int = 0  #: The part of `data_read_bytes` from buckets for which it is not known whether it was moved between regions.
    #: What the cloud of the buckets charges for moving `data_moved_bytes`. None if it is not known.
    data_transfer_usd: Money | None = None

    @property
    def storage_gb_months(self) -> float | None:
        return None if self.storage_byte_ns is None else gb_months(self.storage_byte_ns)

    @property
    def usd_per_completed(self) -> Money | None:
        return None if not self.completed else Money(round_half_up(self.cost.usd.micro_usd, self.completed))


def gb_months(byte_ns: int) -> float:
    """Convert bytes times nanoseconds to gigabytes (10^9 bytes) times months of 730 hours."""
    return round(byte_ns / GB_MONTH, 9)


def round_half_up(amount: int, parts: int) -> int:
    return (2 * amount + parts) // (2 * parts)


def extent(db: Connection, project: str) -> Span | None:
    """Return the span from the project's first ledger entry to just after its last entry, or None without entries."""
    e = entries.c
    # Two subqueries, because an index can answer each of them. If one query asks for both ends, SQLite reads all entries.
    ends = (select(find(e.at)).where(e.project == project).scalar_subquery() for find in (func.min, func.max))
    first, last = db.execute(select(*ends)).one()
    return None if first is None else Span(Instant(first), Instant(last + 1))


def rows(
    db: Connection,
    project: str,
    keys: Sequence[Key],
    span: Span,
    *,
    storage_region: str = "",
    data_region: str = "",
) -> list[SpendRow]:
    """Return the spend and the counts of the time span, with one row for each combination of values of the grouping keys.

    A combination without ledger entries, preemptions, retries and transfers in the span has no row. Without keys, return a single row with
    the totals.

    Args:
        storage_region: The region of the checkpoint storage. If empty, it is not known which checkpoints were moved between regions.
        data_region: The region of the buckets with datasets. If empty, it is not known which datasets were moved between regions.
    """
    shifts: Shifts = ()
    if "day" in keys:
        first, *later = offsets(span.since, span.until, zone(span.timezone))
        shifts = ((0, first[1]), *later)  # when the first offset began makes no difference
    queries = _queries(tuple(keys), shifts, storage_region, data_region)
    values = {"project": project, "since": span.since, "until": span.until}
    groups: dict[tuple[str | None, ...], SpendRow] = {}
    for row in db.execute(queries.sums, values):
        key = _keys(keys, row)
        groups[key] = SpendRow(
            key,
            Cost(Money(int(row.usd or 0)), int(row.gpu_ms or 0)),
            Cost(Money(int(row.lost_usd or 0)), int(row.lost_gpu_ms or 0)),
            row.jobs,
            row.trials,
            row.completed,
        )
    for name, query in (("preemptions", queries.preemptions), ("retries", queries.retries)):
        for row in db.execute(query, values):
            key = _keys(keys, row)
            groups[key] = replace(groups.get(key, SpendRow(key)), **{name: row.number})
    for row in db.execute(queries.transfers, values):
        key = _keys(keys, row)
        sizes: dict[str, Any] = {name: int(getattr(row, name) or 0) for name in TRANSFERRED}
        if any(sizes.values()):
            groups[key] = replace(groups.get(key, SpendRow(key)), **sizes)
    return list(groups.values())


def by_kind(db: Connection, project: str, span: Span) -> dict[CostKind, Cost]:
    """Return the spend of the project in the time span, by cost kind."""
    e = entries.c
    query = select(e.kind, func.sum(e.usd), func.sum(e.gpu_ms)).where(
        e.project == _PROJECT, e.kind.is_not(None), *_within(e.at)
    )
    values = {"project": project, "since": span.since, "until": span.until}
    rows = db.execute(query.group_by(e.kind), values)
    return {kind: Cost(Money(int(usd)), int(gpu_ms)) for kind, usd, gpu_ms in rows}


def _keys(keys: Sequence[Key], row: Any) -> tuple[str | None, ...]:
    values = [getattr(row, f"key{number}") for number in range(len(keys))]
    return tuple(
        day_name(int(value)) if key == "day" else value for key, value in zip(keys, values, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Queries:
    """The queries of a spend report. Their parameters are `project`, `since` and `until`."""

    sums: Select[Any]
    preemptions: Select[Any]
    retries: Select[Any]
    transfers: Select[Any]


# Cached, because building the queries took more than half of the processor time of a report.
@lru_cache(maxsize=64)
def _queries(keys: tuple[Key, ...], shifts: Shifts, storage_region: str, data_region: str) -> _Queries:
    """Build the queries that group by `keys`, and, if they group by day, use these offsets from UTC."""
    return _Queries(
        _sums(keys, shifts),
        _preempted(keys, shifts),
        _retried(keys, shifts),
        _transferred(keys, shifts, storage_region, data_region),
    )


def _sums(keys: Sequence[Key], shifts: Shifts) -> Select[Any]:
    """Return a query for the sums of each group. An inner query first sums by trial, so that no trial is counted twice."""
    e = entries.c
    joined = entries.outerjoin(attempts, same_attempt(attempts, entries))
    source, columns = _grouped(joined, keys, e.job, e.at, shifts)
    lost = e.kind == "lost"
    each = (
        select(
            *columns,
            e.job,
            e.trial,
            func.sum(e.usd).label("usd"),
            func.sum(e.gpu_ms).label("gpu_ms"),
            func.sum(case((lost, e.usd), else_=0)).label("lost_usd"),
            func.sum(case((lost, e.gpu_ms), else_=0)).label("lost_gpu_ms"),
        )
        .select_from(source)
        .where(e.project == _PROJECT, e.kind.is_not(None), *_within(e.at))
        .group_by(*_names(keys), e.job, e.trial)
        .subquery()
    )
    amounts = (each.c.usd, each.c.gpu_ms, each.c.lost_usd, each.c.lost_gpu_ms)
    return (
        select(
            *(each.c[name] for name in _names(keys)),
            *(func.sum(amount).label(amount.name) for amount in amounts),
            func.count(distinct(each.c.job)).label("jobs"),
            func.count(trials.c.trial).label("trials"),
            func.count(case((trials.c.state == "completed", 1))).label("completed"),
        )
        .select_from(each.outerjoin(trials, same_trial(trials, each)))
        .group_by(*_names(keys))
    )


def _preempted(keys: Sequence[Key], shifts: Shifts) -> Select[Any]:
    a = attempts.c
    source, columns = _grouped(attempts, keys, a.job, a.ended_at, shifts)
    query = select(*columns, func.count().label("number")).select_from(source)
    wanted = (a.project == _PROJECT, a.end == "preempted", *_within(a.ended_at))
    return query.where(*wanted).group_by(*_names(keys))


def _retried(keys: Sequence[Key], shifts: Shifts) -> Select[Any]:
    a, before = attempts.c, attempts.alias("before")
    follows = same_trial(before, attempts) & (before.c.attempt == a.attempt - literal_column("1"))
    source, columns = _grouped(attempts.join(before, follows), keys, a.job, a.began_at, shifts)
    query = select(*columns, func.count().label("number")).select_from(source)
    wanted = (a.project == _PROJECT, before.c.end.in_(FAILED), *_within(a.began_at))
    return query.where(*wanted).group_by(*_names(keys))


def _transferred(keys: Sequence[Key], shifts: Shifts, storage_region: str, data_region: str) -> Select[Any]:
    a, u = attempts.c, attempt_usage.c
    joined = attempts.join(attempt_usage, same_attempt(attempt_usage, attempts))
    source, columns = _grouped(joined, keys, a.job, a.ended_at, shifts)
    restored, saved, read, from_buckets = (
        func.coalesce(size, 0)
        for size in (u.restored_bytes, u.saved_bytes, u.data_read_bytes, u.data_bucket_bytes)
    )

    def by_place(size: ColumnElement[int], other: str) -> tuple[ColumnElement[int], ColumnElement[int]]:
        """Return two columns of an attempt: the bytes that were moved between regions, and the bytes for which this is not known.

        The first column is `size` if the attempt ran in another region than `other`, and otherwise 0. The second column is `size` if the
        attempt's region or `other` is unknown, and otherwise 0.
        """
        region = a.region if other else null()
        moved = case((func.lower(region) != other.lower(), size), else_=0)
        return moved, case((region.is_(None), size), else_=0)

    sizes = (
        restored,
        saved,
        *by_place(restored + saved, storage_region),
        read,
        *by_place(from_buckets, data_region),
    )
    sums = (func.sum(size).label(name) for name, size in zip(TRANSFERRED, sizes, strict=True))
    query = select(*columns, *sums)
    wanted = (a.project == _PROJECT, *_within(a.ended_at))
    return query.select_from(source).where(*wanted).group_by(*_names(keys))


def _within(at: ColumnElement[int]) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return at >= bindparam("since", type_=BigInteger), at < bindparam("until", type_=BigInteger)


def _names(keys: Sequence[Key]) -> list[str]:
    return [f"key{number}" for number in range(len(keys))]


def _grouped(
    source: FromClause, keys: Sequence[Key], job: ColumnElement[str], at: ColumnElement[int], shifts: Shifts
) -> tuple[FromClause, list[ColumnElement[Any]]]:
    """Return `source` joined with the tables that the grouping keys need, and a labelled column for each key."""
    columns: list[ColumnElement[Any]] = []
    for key, name in zip(keys, _names(keys), strict=True):
        column: ColumnElement[Any]
        if key.startswith(TAG):
            tags = job_tags.alias(f"tags_{name}")
            source = source.outerjoin(tags, (tags.c.job == job) & (tags.c.key == key.removeprefix(TAG)))
            column = tags.c.value
        elif key == "trainable":
            source, column = source.join(jobs, jobs.c.id == job), jobs.c.trainable
        elif key == "market":
            column = attempts.c.market
        elif key == "day":
            column = _day(at, shifts)
        else:
            column = job
        columns.append(column.label(name))
    return source, columns


def values_of_jobs(db: Connection, key: Key, which: Select[tuple[str]]) -> dict[str, str]:
    """Return the values of a key that belongs to jobs (`trainable` or a tag) for the jobs that `which` selects.

    Jobs without the tag are left out.
    """
    t = job_tags.c
    query = select(jobs.c.id, jobs.c.trainable).where(jobs.c.id.in_(which))
    if key != "trainable":
        query = select(t.job, t.value).where(t.key == key.removeprefix(TAG), t.job.in_(which))
    return {job: value for job, value in db.execute(query)}


def _day(at: ColumnElement[int], shifts: Shifts) -> ColumnElement[int]:
    """Return an expression for the number of the local day, counted from 1970-01-01, that contains the time `at`.

    Its constants are literals, not parameters, so that databases recognise the grouped column as the selected one.
    """
    shift: ColumnElement[int] = _number(shifts[0][1])
    if len(shifts) > 1:
        later = [(at >= _number(start), _number(ns)) for start, ns in reversed(shifts[1:])]
        shift = case(*later, else_=shift)
    return (at + shift) // _number(DAY_NS)


def _number(value: int) -> ColumnElement[int]:
    return literal_column(str(value), BigInteger)


def slots(
    db: Connection, project: str, since: Instant, slot_ns: int
) -> dict[str, dict[int, tuple[int, int]]]:
    """Return the posted amounts of each job by time slot since `since`, as (micro-dollars, GPU milliseconds).

    Slots are `slot_ns` long and numbered from 0. The first begins at `since`.
    """
    e = entries.c
    number = ((e.at - _number(since)) // _number(slot_ns)).label("slot")
    query = (
        select(e.job, number, func.sum(e.usd), func.sum(e.gpu_ms))
        .where(e.project == project, e.entry == "post", e.at >= since)
        .group_by(e.job, "slot")
    )
    by_job: dict[str, dict[int, tuple[int, int]]] = {}
    for job, slot, usd, gpu_ms in db.execute(query):
        by_job.setdefault(job, {})[int(slot)] = (int(usd), int(gpu_ms))
    return by_job
