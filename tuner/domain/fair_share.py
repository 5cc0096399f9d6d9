"""The order of waiting jobs.

Projects take turns: the project with the fewest running jobs comes first, then the project with the lowest recent spend, then the one
whose next job has waited longest. Tags and priorities are chosen by the users of a project, so they decide only the order within it.

The owner of a job is its project together with the value of its tag `owner`. Within a project, jobs are ordered by priority, highest
first. Within a priority, the owner with the fewest running jobs comes first, then the owner with the lowest recent spend. Among the jobs
of one owner, the one that has waited longest comes first. Once a job has its place in the order, it counts as a running job of its
project and owner when the next place is filled.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
    project: str = ""


NO_SHARE = Share()


def line_up(waiting: Iterable[Waiting], shares: Mapping[str, Share]) -> list[Waiting]:
    """Return the waiting jobs in the order in which they should start.

    Args:
        shares: The use of the cluster by owner. An owner who is missing has no running jobs and no recent spend.
    """
    at_work, spent = defaultdict[str, int](int), defaultdict[str, int](int)
    for share in shares.values():
        at_work[share.project] += share.at_work
        spent[share.project] += share.spent.micro_usd
    queue: list[tuple[int, int, int, str, Waiting]] = []
    for job in _line_up_each(waiting, shares):
        queue.append((at_work[job.project], spent[job.project], job.since, job.job, job))
        at_work[job.project] += 1
    return [job for *_, job in sorted(queue, key=lambda place: place[:-1])]


def _line_up_each(waiting: Iterable[Waiting], shares: Mapping[str, Share]) -> list[Waiting]:
    """Return the waiting jobs. The jobs of each project are in the order in which they should start."""
    at_work = defaultdict(int, {owner: share.at_work for owner, share in shares.items()})
    queue: list[tuple[int, int, int, int, str, Waiting]] = []
    # An owner's jobs start by priority and then by waiting time. In this loop, `at_work` therefore counts all of the owner's jobs that start
    # before `job`.
    for job in sorted(waiting, key=lambda job: (-job.priority, job.since, job.job)):
        spent = shares.get(job.owner, NO_SHARE).spent.micro_usd
        queue.append((-job.priority, at_work[job.owner], spent, job.since, job.job, job))
        at_work[job.owner] += 1
    return [job for *_, job in sorted(queue, key=lambda place: place[:-1])]
