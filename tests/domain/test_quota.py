"""Test what a project may run at once, for any quota and any jobs."""

from hypothesis import given
from hypothesis import strategies as st

from tuner.domain.budget import UNLIMITED, Quota

counts = st.none() | st.integers(1, 8)
quotas = st.builds(Quota, counts, counts)
widths = st.lists(st.integers(1, 12), max_size=12)


@given(quotas, widths)
def test_admitted_jobs_never_exceed_the_quota(quota: Quota, waiting: list[int]) -> None:
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
def test_single_job_is_admitted_at_any_concurrency(quota: Quota, concurrency: int) -> None:
    assert quota.reached([], concurrency) == ""
    assert 1 <= quota.width(concurrency) <= concurrency


def test_exhausted_limit_is_named() -> None:
    assert Quota(2, 8).reached([4, 4], 1) == "2 jobs at once"
    assert Quota(3, 8).reached([4, 4], 1) == "8 trials at once"
    assert Quota(3, 8).reached([4, 3], 1) == ""


def test_quota_below_one_is_refused() -> None:
    assert [fault.pointer for fault in Quota(0, -1).faults()] == ["/concurrent_jobs", "/concurrent_trials"]
    assert Quota(1, None).faults() == []
