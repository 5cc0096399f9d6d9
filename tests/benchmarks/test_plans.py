"""The plan benchmark runs on recorded curves. Its accuracy is not tested."""

from benchmarks.plan_jobs import recorded
from benchmarks.plans import SHIPPED, Case, job, run_case


def test_benchmarked_job_has_a_pilot_a_plan_and_an_actual_cost() -> None:
    with recorded(SHIPPED) as place:
        benchmarked = run_case(place, Case("small", job("asha", 6, sampler="random", max=9), 0.004))
    assert benchmarked.reason == "trials"
    assert benchmarked.is_open
    assert 0 < benchmarked.pilot <= 0.004
    assert 0 < benchmarked.low < benchmarked.expected < benchmarked.high
    assert benchmarked.actual > 0
