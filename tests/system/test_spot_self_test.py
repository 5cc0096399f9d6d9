"""Test who may use spot machines, with the restore self-test on a cluster that has spot nodes."""

import pytest

from tests.system import books
from tests.system.serving import Served, until
from tests.system.spot_cluster import OnSpot
from tuner.client import ApiError

pytestmark = [pytest.mark.system, pytest.mark.extended, pytest.mark.timeout(1200)]


def refused(served: Served, trainable: str, market: str) -> str:
    with pytest.raises(ApiError) as refusal:
        served.submit(trainable, resources={"market": market})
    assert refusal.value.status == 422
    (error,) = refusal.value.errors
    assert error.pointer == "/resources/market"
    return error.detail


def test_only_the_first_job_of_the_same_code_pays_for_the_self_test(on_spot: OnSpot) -> None:
    paid = []
    for market in ("spot_with_fallback", "spot"):
        wanted = {"market": market, "max_concurrent_trials": 1}
        job = on_spot.submit("steady:tested_on_spot", budget={"usd": 0.1, "trials": 1}, resources=wanted).id
        ended = on_spot.finished(job)
        assert (ended.state, ended.stop_reason) == ("succeeded", "trials"), ended.detail
        books.check(on_spot.client, job)
        paid.append(on_spot.client.bill(job).self_test_usd)
    assert paid[0] > 0 == paid[1]


def test_code_that_loses_its_state_fails_on_spot_and_is_then_refused(
    on_spot: OnSpot,
) -> None:
    wanted = {"market": "spot_with_fallback"}
    job = on_spot.submit("misbehaving:forgets", budget={"usd": 0.1}, resources=wanted).id
    ended = on_spot.finished(job)
    assert (ended.state, ended.stop_reason) == ("failed", "error")
    assert "/resources/market" in ended.detail
    assert "counter['count']" in ended.detail
    assert "on_demand" in ended.detail
    assert ended.spend.held_usd == 0
    assert list(on_spot.client.trials(job)) == []
    assert 0 < on_spot.client.bill(job).self_test_usd == ended.spend.usd
    books.check(on_spot.client, job)
    for market in ("spot_with_fallback", "spot"):
        assert "counter['count']" in refused(on_spot, "misbehaving:forgets", market)
    fine = on_spot.submit(
        "misbehaving:forgets", budget={"usd": 0.1, "trials": 1}, resources={"market": "on_demand"}
    ).id
    assert on_spot.finished(fine).state == "succeeded"


def test_code_that_raises_in_its_first_step_gets_no_permanent_verdict(on_spot: OnSpot) -> None:
    wanted = {"market": "spot", "max_concurrent_trials": 1}
    for _ in range(2):
        job = on_spot.submit("misbehaving:always_raises", resources=wanted).id
        ended = on_spot.finished(job)
        assert ended.state == "failed"
        assert "the data is not where it was" in ended.detail


def test_killed_self_test_is_billed_and_repeated_until_the_job_is_cancelled(
    on_spot: OnSpot,
) -> None:
    """The first step takes long enough to kill the driver, and to cancel the job."""
    wanted = {"market": "spot_with_fallback", "max_concurrent_trials": 1}
    job = on_spot.submit(
        "misbehaving:slow", budget={"usd": 0.1}, constants={"step_s": 20}, resources=wanted
    ).id
    until("money is held for the test", lambda: on_spot.client.job(job).spend.held_usd)
    on_spot.kill_driver(job)
    lost = until("the next driver has settled it", lambda: on_spot.client.bill(job).self_test_usd)
    until("money is held for the next test", lambda: on_spot.client.job(job).spend.held_usd)
    on_spot.client.cancel(job)
    ended = on_spot.finished(job)
    assert ended.state == "cancelled"
    assert on_spot.client.bill(job).self_test_usd >= lost
    assert list(on_spot.client.trials(job)) == []
    books.check(on_spot.client, job)


def test_wall_clock_limit_ends_a_job_during_its_self_test(on_spot: OnSpot) -> None:
    """The step takes ten times as long as the job may run, so the job has no metric and fails."""
    budget = {"usd": 0.1, "wall_clock": "6s"}
    wanted = {"market": "spot", "max_concurrent_trials": 1}
    job = on_spot.submit("misbehaving:slow", budget=budget, constants={"step_s": 60}, resources=wanted).id
    ended = on_spot.finished(job)
    assert (ended.state, ended.stop_reason) == ("failed", "wall_clock"), ended.detail
    assert not any(trial.attempts for trial in on_spot.client.trials(job))
    assert on_spot.client.bill(job).self_test_usd == ended.spend.usd
    books.check(on_spot.client, job)


def test_self_test_runs_on_spot_if_no_on_demand_machine_is_free(on_spot: OnSpot) -> None:
    """An on-demand job holds the only on-demand machine for longer than the next job takes."""
    one_trial = {"max_concurrent_trials": 1}
    long = on_spot.submit(
        "misbehaving:slow",
        budget={"usd": 0.1, "trials": 1},
        constants={"step_s": 600},
        resources={"market": "on_demand", **one_trial},
    ).id
    until("it has the machine", lambda: list(on_spot.client.trials(long)))
    wanted = {"market": "spot_with_fallback", **one_trial}
    limits = {"usd": 0.1, "trials": 1}
    job = on_spot.submit("misbehaving:slow", budget=limits, constants={"step_s": 0.1}, resources=wanted).id
    ended = on_spot.finished(job)
    assert ended.state == "succeeded", ended.detail
    assert on_spot.client.bill(job).self_test_usd > 0
    assert on_spot.client.job(long).state == "running"
    on_spot.client.cancel(long)
    on_spot.finished(long)
