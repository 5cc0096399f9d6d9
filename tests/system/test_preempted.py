"""Test preemptions of running jobs on a real cluster of several raylets: trials, decisions and best are the
same as without preemptions.
"""

import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.system import books, noticed
from tests.system.decisions import decided, undisturbed
from tests.system.serving import TIMEOUT_S, until
from tests.system.spot_cluster import OnSpot, now
from tuner.cluster.head import LocalHead
from tuner.cluster.processes import mark_of
from tuner.schemas.answers import Attempt

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]
# A pod's notice, and a silent raylet kill without any notice. TWENTY adds a short notice, no notice, as in a power
# cut, and repeated short ones.
WAYS = ("15s", "silent")
TWENTY = (*WAYS, "5s", "0s", *["5s"] * 16)


def decisive(trials: int) -> dict[str, Any]:
    """Return the part of a request that its decisions depend on. There is one trial at a time, so that none depends on
    the order of results.
    """
    return {
        "budget": {"usd": 0.05, "trials": trials},
        "fidelity": {"min": 2, "max": 18, "reduction_factor": 3},
        "algorithm": {"scheduler": "asha", "sampler": "random", "seed": 7},
    }


def submit(served: OnSpot, *, trials: int) -> str:
    """Submit a job whose steps are long until the `speed_up` file exists."""
    speed_up(served).unlink(missing_ok=True)
    return served.submit(
        "steady:train",
        **decisive(trials),
        constants={"step_s": 1.5, "speed_up": str(speed_up(served))},
        checkpoint={"interval": "2s", "keep": 2},
        resources={"market": "spot", "max_concurrent_trials": 1},
    ).id


def speed_up(served: OnSpot) -> Path:
    return served.home / "speed_up"


def preempted(served: OnSpot, job: str) -> list[Attempt]:
    return [attempt for _, attempt in served.attempts(job) if attempt.end == "preempted"]


def take_away(served: OnSpot, node: str, way: str) -> None:
    served.cluster.alive(node)  # Wait until the cluster process that preempts it knows the node.
    if way == "silent":
        served.cluster.kill_raylet(node)
    else:
        served.cluster.preempt(node, way)


@pytest.mark.parametrize(
    ("ways", "trials"),
    [(WAYS, 12), pytest.param(TWENTY, 60, marks=pytest.mark.extended)],
    ids=["two", "twenty"],
)
def test_repeatedly_preempted_job_ends_like_an_undisturbed_job(
    on_spot: OnSpot, ways: tuple[str, ...], trials: int
) -> None:
    job = submit(on_spot, trials=trials)
    node, _ = on_spot.trains_on(job)
    for number, way in enumerate(ways):
        # Retry if the trial had just been paused or moved on its own.
        while len(preempted(on_spot, job)) <= number:
            at = now()
            take_away(on_spot, node, way)
            node, _ = on_spot.trains_on(job, since=at, but=node)
    speed_up(on_spot).touch()
    ended = on_spot.finished(job)
    assert (ended.state, ended.stop_reason) == ("succeeded", "trials"), ended.detail
    assert decided(on_spot.client, job) == undisturbed(**decisive(trials))
    it_is_on_the_record(on_spot, job, ways)
    until("the job holds nothing", lambda: on_spot.client.job(job).spend.held_usd == 0)


def it_is_on_the_record(served: OnSpot, job: str, ways: tuple[str, ...]) -> None:
    """Check the recorded preemptions, their nodes, and their cost."""
    books.check(served.client, job)
    bill, attempts = served.client.bill(job), served.attempts(job)
    taken = preempted(served, job)
    assert len(taken) == bill.preemptions == sum(trial.preemptions for trial in served.client.trials(job))
    assert len(taken) == len(ways)
    assert {attempt.market for _, attempt in served.attempts(job)} == {"spot"}
    assert all(attempt.usd_per_hour == 0.0162 and attempt.node for attempt in taken)
    assert not [attempt for _, attempt in served.attempts(job) if attempt.end in ("lost", "failed")]
    # At the prices of one vCPU, up to the rounding of each attempt. On demand, no self-test would have run.
    trained = bill.total_usd - bill.self_test_usd
    assert abs(bill.savings.on_demand_usd - trained * 0.0504 / 0.0162) < 0.000_01
    assert abs(bill.savings.against_on_demand_usd - (bill.savings.on_demand_usd - bill.total_usd)) < 0.000_001
    for notice, attempt in zip(ways, taken, strict=True):
        if notice not in ("silent", "0s"):
            assert "taken away by its operator" in attempt.reason
            assert attempt.bill["lost"] == 0, attempt
            trial = next(trial for trial, other_attempt in attempts if other_attempt == attempt)
            later = [
                other_attempt
                for name, other_attempt in attempts
                if name == trial and other_attempt.attempt == attempt.attempt + 1
            ]
            # There is no later attempt if the trial was left paused at a rung.
            assert {later_attempt.from_step for later_attempt in later} <= {attempt.to_step}, (
                "steps were lost in spite of the notice"
            )


@pytest.mark.extended
def test_node_is_preempted_once_despite_repeated_notices(on_spot: OnSpot) -> None:
    """The node comes back at the address that it had, and is trained on again."""
    job = submit(on_spot, trials=100)  # it is cancelled long before its last trial
    node, _ = on_spot.trains_on(job)
    before = address(on_spot, node)
    preemptions = [on_spot.cluster.preempt(node, notice) for notice in ("15s", "10s", "15s")]
    other, _ = on_spot.trains_on(job, but=node)
    assert [process.wait(TIMEOUT_S) for process in preemptions].count(0) >= 1
    on_spot.cluster.alive("spot-1", "spot-2", "spot-3")
    assert address(on_spot, node) == before
    assert [on_spot.cluster.names[str(attempt.node)] for attempt in preempted(on_spot, job)] in ([node], [])
    third = ({"spot-1", "spot-2", "spot-3"} - {node, other}).pop()
    at = now()
    take_away(on_spot, third, "0s")
    take_away(on_spot, other, "0s")
    assert on_spot.trains_on(job, since=at, but=other)[0] in (node, third)
    on_spot.client.cancel(job)
    assert on_spot.finished(job).state == "cancelled"
    books.check(on_spot.client, job)


@pytest.mark.extended
def test_trial_on_two_nodes_fails_and_is_preempted_and_billed_as_a_whole(
    on_spot_with_gpus: OnSpot, tmp_path: Path
) -> None:
    """Each node has a logical GPU, which the trial reserves. Without a real one, its two ranks train on the CPU with gloo."""
    on_spot = on_spot_with_gpus
    on_spot.cluster.alive("spot-1", "spot-2", "spot-3")
    speed_up(on_spot).unlink(missing_ok=True)
    step_s, usd_per_hour = 0.5, 2 * 0.378  # of the cheapest spot machine with a GPU
    job = on_spot.submit(
        "steady:distributed",
        budget={"usd": 1, "trials": 2},
        fidelity={"min": 400, "max": 400},
        algorithm={"scheduler": "none", "sampler": "random", "seed": 7},
        constants={"step_s": step_s, "speed_up": str(speed_up(on_spot)), "pids": str(tmp_path)},
        checkpoint={"interval": "2s", "keep": 2},
        resources={"market": "spot", "nodes": 2, "gpus": 1, "max_concurrent_trials": 1},
    ).id
    node, _ = on_spot.trains_on(job)
    os.kill(pid_of_rank(1, tmp_path), signal.SIGKILL)
    until(
        "the trial has failed", lambda: any(trial.state == "failed" for trial in on_spot.client.trials(job))
    )
    ways = [("15s", 1), ("silent", 1), ("silent", 0)]
    for number, (way, lost_rank) in enumerate(ways):
        node, _ = on_spot.trains_on(job, since=now())
        second = node_of_process(on_spot, pid_of_rank(1, tmp_path))
        assert second != node
        take_away(on_spot, (node, second)[lost_rank], way)
        until("the trial is preempted", lambda number=number: len(preempted(on_spot, job)) > number)
    on_spot.trains_on(job, since=now())
    speed_up(on_spot).touch()
    ended = on_spot.finished(job)
    assert (ended.state, ended.stop_reason) == ("succeeded", "trials"), ended.detail
    books.check(on_spot.client, job)
    attempts = [attempt for _, attempt in on_spot.attempts(job)]
    assert [attempt.end for attempt in attempts] == ["failed", *["preempted"] * len(ways), "completed"]
    failed, noticed_one, *silent, last = attempts
    assert "rank 1: user code's process was killed by SIGKILL" in failed.reason
    assert "taken away by its operator" in noticed_one.reason
    assert noticed_one.bill["lost"] == 0
    assert silent[0].from_step == noticed_one.to_step > 0, "steps were lost in spite of the notice"
    for before, after in pairwise([*silent, last]):
        assert 0 < after.from_step <= before.to_step
    for attempt in attempts:
        assert attempt.usd_per_hour == pytest.approx(usd_per_hour)
    for attempt in attempts[:-1]:
        steps = attempt.to_step - attempt.from_step
        trained = attempt.bill["train"] + attempt.bill["lost"]
        assert trained >= steps * step_s * usd_per_hour / 3600 - 0.000_001


def pid_of_rank(rank: int, folder: Path) -> int:
    return int((folder / str(rank)).read_text())


def node_of_process(served: OnSpot, pid: int) -> str:
    """Return the name of the node that a process is on."""
    marks = {mark_of(parent.pid) for parent in psutil.Process(pid).parents()}
    return next(kept.name for kept in served.cluster.nodes() if kept.session in marks)


@pytest.mark.extended
def test_preemption_notice_of_a_cloud_moves_the_trial_without_loss(on_spot: OnSpot) -> None:
    on_spot.cluster.alive("spot-1", "spot-2", "spot-3")
    noticed.a_trial_is_moved_by_the_word_of_one_cloud_and_then_of_another(on_spot)


def address(served: OnSpot, name: str) -> str:
    """Return the host and port of the node's raylet, as Ray reports them."""
    head = LocalHead(served.home)
    dashboard = head.dashboard(head.find_or_start())
    rows = dashboard.get("/api/v0/nodes?detail=1&limit=1000")["data"]["result"]["result"]
    dashboard.close()
    node_id = next(node.node_id for node in served.cluster.nodes() if node.name == name)
    (row,) = [row for row in rows if row["node_id"] == node_id]
    return f"{row['node_ip']}:{row.get('node_manager_port', row.get('raylet_socket_name'))}"
