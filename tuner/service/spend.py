"""Chargeback: spend by owner, trainable, market, day, job or tag, from the ledger."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from tuner.domain import calendar
from tuner.domain.access import DEFAULT_PROJECT, Actor
from tuner.domain.errors import Fault, Invalid
from tuner.domain.time import Instant
from tuner.service.bootstrap import Service
from tuner.service.cluster_meter import ClusterCost, cluster_cost
from tuner.store import spend
from tuner.store.spend import Span
from tuner.store.spend import SpendRow as SpendRow

GROUPS = ("owner", "trainable", "market", "day", "job")
MAX_GROUPS = 5


@dataclass(frozen=True)
class SpendView:
    """The spend of a project, in groups."""

    group_by: tuple[str, ...]
    since: Instant | None  #: Beginning of the period as requested; None means that of the project.
    until: Instant | None  #: End of the period as requested; None means now.
    timezone: str
    rows: list[SpendRow]
    total: SpendRow
    #: Cost of the cluster's machines in the period, for all users. None if it was never measured or the user may not
    #: see it.
    cluster: ClusterCost | None = None


def spend_of(
    service: Service,
    group_by: Sequence[str],
    *,
    since: str | None = None,
    until: str | None = None,
    timezone: str = "UTC",
) -> SpendView:
    """Return the spend by group. Days are in order of time, other groups start with the most expensive.

    Args:
        group_by: Names from `GROUPS`, or `tag:KEY`.
        since: Beginning of the period: a date in the time zone, or a time. None means no limit.
        until: End of the period, exclusive, in the same form. None means now.

    Raises:
        Invalid: A value is wrong; the possible groups are named.
    """
    first, last = between(since, until, timezone)
    keys = _keys(group_by)
    with service.database.read() as db:
        known = spend.extent(db, service.project) or Span(Instant(0), Instant(0))
        begin = max(known.since, known.since if first is None else first)
        end = min(known.until, known.until if last is None else last)
        span = Span(begin, Instant(max(begin, end)), timezone)
        found = spend.rows(db, service.project, keys, span)
        (total,) = spend.rows(db, service.project, (), span)
    rows = sorted(found, key=lambda row: _place(keys, row))
    cluster = cluster_cost(service, first, last) if _sees_cluster(service.actor) else None
    return SpendView(tuple(group_by), first, last, timezone, rows, total, cluster)


def _sees_cluster(actor: Actor) -> bool:
    """Return whether the actor may see the cluster's cost.

    The cost is that of all projects, so only the operator may see it.
    """
    return actor.is_operator and actor.project == DEFAULT_PROJECT


def between(since: str | None, until: str | None, timezone: str) -> tuple[Instant | None, Instant | None]:
    """Parse dates of the time zone, or times. Raise Invalid if one is wrong."""
    faults, where = [], calendar.zone("UTC")
    try:
        where = calendar.zone(timezone)
    except ValueError as error:
        faults.append(Fault("timezone", str(error)))
    found: list[Instant | None] = []
    for name, text in (("since", since), ("until", until)):
        try:
            found.append(None if text is None else calendar.moment_of(text, where))
        except ValueError as error:
            faults.append(Fault(name, str(error)))
    if faults:
        raise Invalid(*faults)
    first, last = found
    if first is not None and last is not None and first >= last:
        raise Invalid.at("until", "must be later than since")
    return first, last


def _keys(group_by: Sequence[str]) -> list[spend.Key]:
    if len(group_by) > MAX_GROUPS:
        raise Invalid.at("group_by", f"give at most {MAX_GROUPS} groups")
    if len(set(group_by)) < len(group_by):
        raise Invalid.at("group_by", "name each group once")
    return [_key(name) for name in group_by]


def _key(name: str) -> spend.Key:
    if name == "owner":
        return f"{spend.TAG}owner"
    tag = name.removeprefix(spend.TAG)
    if name in GROUPS or (tag != name and 1 <= len(tag) <= 100):
        return name
    near = get_close_matches(name, GROUPS, 1)
    said = f"did you mean {near[0]}? " if near else ""
    raise Invalid.at("group_by", f"{said}there are {', '.join(GROUPS)} and tag:KEY, not {name[:60]!r}")


def _place(keys: Sequence[spend.Key], row: SpendRow) -> tuple[object, ...]:
    days = tuple(value or "" for key, value in zip(keys, row.keys, strict=True) if key == "day")
    return (days, -row.cost.usd.micro_usd, tuple((value is None, value or "") for value in row.keys))
