"""Who may use spot machines, on a cluster that has some: the restore self-test as people meet it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.system import books
from tests.system.serving import Served, until
from tuner.client import ApiError

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A spot machine and one on demand."""
    home = tmp_path_factory.mktemp("mixed")
    command = [sys.executable, "-m", "tuner.cli.main", "cluster", "--spot", "1", "--on-demand", "1", "--json"]
    with subprocess.Popen(
        command, env={**os.environ, "TUNER_HOME": str(home)}, stdout=subprocess.PIPE, text=True
    ) as cluster:
        assert cluster.stdout is not None
        nodes = json.loads(cluster.stdout.readline())["nodes"]
        assert {node["market"] for node in nodes} == {"spot", "on_demand"}
        served = Served(home, TUNER_SPOT_WAIT="8")
        try:
            yield served.start()
        finally:
            served.stop()
            cluster.terminate()


def refused(served: Served, trainable: str, market: str) -> str:
    with pytest.raises(ApiError) as found:
        served.submit(trainable, resources={"market": market})
    assert found.value.status == 422
    (error,) = found.value.errors
    assert error.pointer == "/resources/market"
    return error.detail


def test_the_first_job_of_some_code_pays_for_its_test_and_those_after_it_do_not(mixed: Served) -> None:
    paid = []
    for market in ("spot_with_fallback", "spot"):
        wanted = {"market": market, "max_concurrent_trials": 1}
        job = mixed.submit("steady:train", budget={"usd": 0.1, "trials": 1}, resources=wanted).id
        ended = mixed.finished(job)
        assert (ended.state, ended.stop_reason) == ("succeeded", "trials"), ended.detail
        books.check(mixed.client, job)
        paid.append(mixed.client.bill(job).self_test_usd)
    assert paid[0] > 0 == paid[1]


def test_what_forgets_is_kept_from_spot_by_its_first_job_and_at_the_door_from_then_on(mixed: Served) -> None:
    wanted = {"market": "spot_with_fallback"}
    job = mixed.submit("misbehaving:forgets", budget={"usd": 0.1}, resources=wanted).id
    ended = mixed.finished(job)
    assert (ended.state, ended.stop_reason) == ("failed", "error")
    assert "/resources/market" in ended.detail
    assert "counter['count']" in ended.detail
    assert "on_demand" in ended.detail
    assert ended.spend.held_usd == 0
    assert list(mixed.client.trials(job)) == []
    assert 0 < mixed.client.bill(job).self_test_usd == ended.spend.usd
    books.check(mixed.client, job)
    for market in ("spot_with_fallback", "spot"):
        assert "counter['count']" in refused(mixed, "misbehaving:forgets", market)
    fine = mixed.submit(
        "misbehaving:forgets", budget={"usd": 0.1, "trials": 1}, resources={"market": "on_demand"}
    ).id
    assert mixed.finished(fine).state == "succeeded"


@pytest.mark.soak
def test_code_that_raises_in_its_first_step_is_not_judged_for_good(mixed: Served) -> None:
    wanted = {"market": "spot", "max_concurrent_trials": 1}
    for _ in range(2):
        job = mixed.submit("misbehaving:always_raises", resources=wanted).id
        ended = mixed.finished(job)
        assert ended.state == "failed"
        assert "the data is not where it was" in ended.detail


def test_a_test_that_is_killed_is_paid_for_and_made_again_and_one_that_nobody_wants_is_given_up(
    mixed: Served,
) -> None:
    """Its first step takes as long as it takes to kill its driver, and to cancel its job."""
    wanted = {"market": "spot_with_fallback", "max_concurrent_trials": 1}
    job = mixed.submit("misbehaving:slow", budget={"usd": 0.1}, constants={"step_s": 20}, resources=wanted).id
    until("money is held for the test", lambda: mixed.client.job(job).spend.held_usd)
    mixed.kill_driver(job)
    lost = until("the next driver has settled it", lambda: mixed.client.bill(job).self_test_usd)
    until("money is held for the next test", lambda: mixed.client.job(job).spend.held_usd)
    mixed.client.cancel(job)
    ended = mixed.finished(job)
    assert ended.state == "cancelled"
    assert mixed.client.bill(job).self_test_usd >= lost
    assert list(mixed.client.trials(job)) == []
    books.check(mixed.client, job)


def test_the_wall_clock_ends_a_job_in_the_midst_of_its_test(mixed: Served) -> None:
    """Whose step takes ten times as long as the job may."""
    budget = {"usd": 0.1, "wall_clock": "6s"}
    wanted = {"market": "spot", "max_concurrent_trials": 1}
    job = mixed.submit("misbehaving:slow", budget=budget, constants={"step_s": 60}, resources=wanted).id
    ended = mixed.finished(job)
    assert (ended.state, ended.stop_reason) == ("succeeded", "wall_clock"), ended.detail
    assert not any(trial.attempts for trial in mixed.client.trials(job))
    assert mixed.client.bill(job).self_test_usd == ended.spend.usd
    books.check(mixed.client, job)


def test_where_others_have_what_is_not_spot_the_test_takes_what_there_is(mixed: Served) -> None:
    """A job on demand has the only such machine, for longer than the next one takes."""
    one = {"max_concurrent_trials": 1}
    long = mixed.submit(
        "misbehaving:slow",
        budget={"usd": 0.1, "trials": 1},
        constants={"step_s": 600},
        resources={"market": "on_demand", **one},
    ).id
    until("it has the machine", lambda: list(mixed.client.trials(long)))
    wanted = {"market": "spot_with_fallback", **one}
    limits = {"usd": 0.1, "trials": 1}
    job = mixed.submit("misbehaving:slow", budget=limits, constants={"step_s": 0.1}, resources=wanted).id
    ended = mixed.finished(job)
    assert ended.state == "succeeded", ended.detail
    assert mixed.client.bill(job).self_test_usd > 0
    assert mixed.client.job(long).state == "running"
    mixed.client.cancel(long)
    mixed.finished(long)
