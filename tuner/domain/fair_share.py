"""The order of waiting jobs.

Jobs are ordered by priority, highest first. Within a priority, the owner with the fewest running jobs comes first, then the owner
with the lowest recent spend. Among the jobs of one owner, the one that has waited longest comes first. Once a job has its place
in the order, it counts as a running job of its owner when the next place is filled, so that owners take turns.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import groupby

from tuner.domain.money import ZERO, Money
from tuner.domain.time import Instant


@dataclass(frozen=True, slots=True)
class Waiting:
    job: str
    owner: str
    priority: int
    since: Instant
    project: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """An owner's use of the cluster: the number of running jobs, and the recent spend."""

    at_work: int = 0
    spent: Money = ZERO


NO_SHARE = Share()


def line_up(waiting: Iterable[Waiting], shares: Mapping[str, Share]) -> list[Waiting]:
    """Return all waiting jobs, the next one first. An owner without a share has no running jobs and no recent spend."""
    at_work = defaultdict(int, {owner: share.at_work for owner, share in shares.items()})
    queue: list[Waiting] = []
    ordered = sorted(waiting, key=lambda job: (-job.priority, job.owner, job.since, job.job))
    for _, alike in groupby(ordered, key=lambda job: job.priority):
        queue += _take_turns(list(alike), shares, at_work)
    return queue


def _take_turns(
    alike: list[Waiting], shares: Mapping[str, Share], at_work: defaultdict[str, int]
) -> list[Waiting]:
    """Order jobs of equal priority by turns of their owners.

    `alike` must have the jobs of each owner together, oldest first. `at_work` is updated.
    """

    def turn(waiting_job: Waiting) -> tuple[int, int, int, str]:
        spent = shares.get(waiting_job.owner, NO_SHARE).spent
        return at_work[waiting_job.owner], spent.micro_usd, waiting_job.since, waiting_job.job

    rest = {owner: list(jobs)[::-1] for owner, jobs in groupby(alike, key=lambda job: job.owner)}
    turns = [(turn(jobs[-1]), owner) for owner, jobs in rest.items()]
    heapify(turns)
    ordered_jobs = []
    while turns:
        _, owner = heappop(turns)
        ordered_jobs.append(rest[owner].pop())
        at_work[owner] += 1
        if rest[owner]:
            heappush(turns, (turn(rest[owner][-1]), owner))
    return ordered_jobs
