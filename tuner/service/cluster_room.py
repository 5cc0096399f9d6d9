"""Tell whether the cluster and the quota of a project have room for one more job."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tuner.cluster.nodes import Node
from tuner.domain.budget import Quota
from tuner.domain.job import MarketPolicy, markets_of
from tuner.service.offers import is_suitable
from tuner.store.jobs import JobRow


def eligible(nodes: Sequence[Node], row: JobRow) -> frozenset[int]:
    """Return the indexes of the nodes that the job's trials may run on."""
    wants = row.spec.resources
    return frozenset(number for number, node in enumerate(nodes) if is_suitable(node, wants))


def of_export(row: JobRow) -> JobRow:
    """Return a copy of the job's row with the resources of an export of the job: those of one trial on one node."""
    spec = replace(row.spec, resources=row.spec.resources.on_one_node)
    return replace(row, spec=spec, concurrency=1)


def has_room(nodes: Sequence[Node], under_way: Iterable[JobRow], row: JobRow) -> bool:
    """Return whether the trials of one more job fit on the nodes, in addition to the trials of the jobs under way.

    Only jobs under way that may use the same nodes count. Without such a job, return True, even if the nodes do not have
    room for all of the new job's concurrent trials. If a job under way may use both markets, its trials are assumed to use
    the market that the new job cannot use, as far as they fit there.

    If the job may run on none of the present nodes, only the market counts: return False if a job under way may use the
    same market as the job.

    Args:
        row: The job that is to be launched.
    """
    wants, mine = row.spec.resources, eligible(nodes, row)
    others = [(other, eligible(nodes, other)) for other in under_way]
    if not mine:  # all nodes that the job may run on are gone, or none has joined yet
        return not any(
            set(markets_of(wants.market)) & set(markets_of(other_row.spec.resources.market))
            for other_row, _ in others
        )
    if not any(mine & theirs for _, theirs in others):
        return True
    pool = mine.union(
        *(
            theirs
            for other, theirs in others
            if other.spec.resources.market == "spot_with_fallback" and mine & theirs
        )
    )
    sharing = [other for other, theirs in others if pool & theirs]
    return all(
        _left([nodes[number] for number in pool], sharing, wants.market, unit)
        >= wants.workers(row.concurrency) * wants.nodes * getattr(wants, unit)
        for unit in ("cpus", "gpus")
    )


def _left(nodes: Iterable[Node], others: Iterable[JobRow], market: MarketPolicy, unit: str) -> float:
    """Return how many CPUs or GPUs of these nodes the other jobs leave free for a job that may use `market`.

    Args:
        market: The market policy of the job.
        unit: `cpus` or `gpus`.
    """
    free, flexible = {"spot": 0.0, "on_demand": 0.0}, 0.0
    for node in nodes:
        free[node.market] += getattr(node, unit)
    for other in others:
        size = other.spec.resources
        takes = size.workers(other.concurrency) * size.nodes * getattr(size, unit)
        if size.market == "spot_with_fallback":
            flexible += takes
        else:
            free[size.market] -= takes
    if market == "spot_with_fallback":
        return sum(max(0.0, left) for left in free.values()) - flexible
    elsewhere = sum(max(0.0, left) for name, left in free.items() if name != market)
    return free[market] - max(0.0, flexible - elsewhere)


def is_full(quota: Quota | None, under_way: Iterable[JobRow], row: JobRow) -> bool:
    """Return whether starting this job, in addition to the jobs under way, would exceed the quota of its project."""
    if quota is None:
        return False
    took = [other.concurrency for other in under_way if other.project == row.project]
    return bool(quota.reached(took, row.concurrency))
