"""Test what a project may run at once, for any quota and any jobs."""

from hypothesis import given
from hypothesis import strategies as st

from tuner.domain.quota import UNLIMITED, Quota

counts = st.none() | st.integers(1, 8)
quotas = st.builds(Quota, counts, counts)
widths = st.lists(st.integers(1, 12), max_size=12)


@given(quotas, widths)
def test_jobs_that_are_let_in_one_after_another_never_have_more_than_it_allows(
    quota: Quota, waiting: list[int]
) -> None:
    at_work: list[int] = []
    for concurrency in waiting:
        if not quota.reached(at_work, concurrency):
            at_work.append(concurrency)
    assert quota.concurrent_jobs is None or len(at_work) <= quota.concurrent_jobs
    trials = sum(map(quota.width, at_work))
    assert quota.concurrent_trials is None or trials <= quota.concurrent_trials
    if quota == UNLIMITED:
        assert at_work == waiting


@given(quotas, st.integers(1, 1000))
def test_a_job_alone_is_let_in_however_wide_it_would_be(quota: Quota, concurrency: int) -> None:
    assert quota.reached([], concurrency) == ""
    assert 1 <= quota.width(concurrency) <= concurrency


def test_what_is_used_up_is_said() -> None:
    assert Quota(2, 8).reached([4, 4], 1) == "2 jobs at once"
    assert Quota(3, 8).reached([4, 4], 1) == "8 trials at once"
    assert Quota(3, 8).reached([4, 3], 1) == ""


def test_less_than_one_of_anything_is_no_quota() -> None:
    assert [fault.pointer for fault in Quota(0, -1).faults()] == ["/concurrent_jobs", "/concurrent_trials"]
    assert Quota(1, None).faults() == []
