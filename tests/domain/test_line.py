"""Test which waiting job is next."""

from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tuner.domain.fair_share import Share, Waiting, line_up
from tuner.domain.money import ZERO, Money
from tuner.domain.time import Instant

PROJECTS = {"a": "p", "b": "p", "c": "q", "d": "r"}
owners = st.sampled_from("abcd")
waiting = st.lists(
    st.builds(
        Waiting,
        st.integers(0, 999).map(lambda n: f"job_{n}"),
        owners,
        st.integers(-1, 1),
        st.integers(0, 5).map(Instant),
    ).map(lambda waiting_job: replace(waiting_job, project=PROJECTS[waiting_job.owner])),
    max_size=20,
    unique_by=lambda waiting_job: waiting_job.job,
)
shares = st.dictionaries(
    owners, st.builds(Share, st.integers(0, 3), st.integers(0, 3).map(Money)), max_size=4
).map(lambda given: {name: replace(share, project=PROJECTS[name]) for name, share in given.items()})


def job(name: str, owner: str, since: int = 0, priority: int = 0) -> Waiting:
    return Waiting(name, owner, priority, Instant(since))


def names(line: list[Waiting]) -> str:
    return " ".join(waiting_job.job for waiting_job in line)


@given(waiting, shares, st.randoms())
def test_queue_holds_every_job_once_regardless_of_input_order(
    jobs: list[Waiting], given: dict[str, Share], random: Random
) -> None:
    queue = line_up(jobs, given)
    assert sorted(queue, key=lambda waiting_job: waiting_job.job) == sorted(
        jobs, key=lambda waiting_job: waiting_job.job
    )
    random.shuffle(jobs)
    assert line_up(jobs, given) == queue


@given(waiting, shares)
def test_each_position_holds_the_job_with_the_smallest_sort_key(
    jobs: list[Waiting], given: dict[str, Share]
) -> None:
    """Check each position of the queue by trying all waiting jobs."""
    queue, rest = line_up(jobs, given), list(jobs)
    at_work = Counter({owner: share.at_work for owner, share in given.items()})
    in_project, spent = Counter[str](), Counter[str]()
    for share in given.values():
        in_project[share.project] += share.at_work
        spent[share.project] += share.spent.micro_usd
    for queued_job in queue:
        turns = {
            other.job: (
                -other.priority,
                at_work[other.owner],
                given.get(other.owner, Share()).spent,
                other.since,
                other.job,
            )
            for other in rest
        }
        heads = [
            min((other for other in rest if other.project == project), key=lambda other: turns[other.job])
            for project in {other.project for other in rest}
        ]
        next_job = min(
            heads,
            key=lambda head: (in_project[head.project], spent[head.project], head.since, head.job),
        )
        assert queued_job == next_job
        rest.remove(queued_job)
        at_work[queued_job.owner] += 1
        in_project[queued_job.project] += 1


@given(waiting, owners)
def test_owner_is_not_starved_by_owners_who_keep_submitting_jobs(jobs: list[Waiting], owner: str) -> None:
    """There is one slot, and each job uses one dollar. The other owners submit a new job whenever one of theirs
    has run.
    """
    mine = [waiting_job for waiting_job in jobs if waiting_job.owner == owner]
    others = [job(f"new_{name}", name, since=0) for name in "abcd" if name != owner]
    alike = [
        Waiting(waiting_job.job, waiting_job.owner, 0, waiting_job.since) for waiting_job in mine
    ] + others
    spent: Counter[str] = Counter()
    for turn in range(4 * len(mine) + 1):
        line = line_up(alike, {name: Share(0, Money(count)) for name, count in spent.items()})
        first = line[0]
        alike.remove(first)
        spent[first.owner] += 1
        if first.owner != owner:
            alike.append(Waiting(f"{first.job}.{turn}", first.owner, 0, Instant(0)))
    assert all(waiting_job.owner != owner for waiting_job in alike)


def test_owners_alternate_and_ties_are_served_by_age() -> None:
    line = [job("a1", "a", 1), job("a2", "a", 2), job("a3", "a", 3), job("b1", "b", 4), job("c1", "c", 5)]
    assert names(line_up(line, {})) == "a1 b1 c1 a2 a3"


def test_owner_with_fewer_running_jobs_or_less_recent_spend_comes_first() -> None:
    line = [job("a1", "a", 1), job("b1", "b", 2), job("c1", "c", 3)]
    of_late = {"a": Share(1, ZERO), "b": Share(0, Money(5)), "c": Share(0, Money(4))}
    assert names(line_up(line, of_late)) == "c1 b1 a1"


def test_priority_comes_before_fairness_and_fairness_before_age() -> None:
    line = [job("a1", "a", 1), job("a2", "a", 9, priority=1), job("b1", "b", 5)]
    assert names(line_up(line, {"a": Share(3, Money(10))})) == "a2 b1 a1"


def test_many_owners_or_a_high_priority_do_not_pass_the_jobs_of_another_project() -> None:
    theirs = [Waiting(f"b{number}", "p/b", 0, Instant(1), "p") for number in (1, 2)]
    many = [Waiting(f"m{number}", f"q/{number}", 1000, Instant(2), "q") for number in (1, 2, 3)]
    assert names(line_up([*many, *theirs], {})) == "b1 m1 b2 m2 m3"
    busy = {"q/9": Share(2, ZERO, "q")}
    assert names(line_up([*many, *theirs], busy)) == "b1 b2 m1 m2 m3"
