"""A cloud says that a machine goes: the watcher beside its node, started as deploy/ starts it, has the trial there saved and moved."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import deployed
from tests.cluster.waiting import until
from tests.engine.metadata_clouds import Aws, Gcp
from tests.engine.metadata_server import MetadataServer, hangs, says
from tests.system import books
from tests.system.spot_cluster import OnSpot, SpotCluster, left_of, now
from tuner.domain.time import Instant, rfc3339
from tuner.engine.ray_cluster import LocalHead
from tuner.engine.ray_cluster.launch import ray_environment

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
SIDECAR, UNIT = deployed.commands().values()
ACTION = "instance-action"


@pytest.fixture
def on_spot(tmp_path: Path) -> Iterator[OnSpot]:
    cluster = SpotCluster(tmp_path / "home", spot=2, on_demand=0, replace_after="1s")
    found = OnSpot(cluster)
    try:
        cluster.wait()
        yield found.start()
    finally:
        if hasattr(found, "process"):
            found.stop()
        cluster.stop()
    assert left_of(cluster.home) == []


@contextmanager
def watched(
    served: OnSpot, node: str, command: list[str], cloud: str, server: MetadataServer[Any]
) -> Iterator["subprocess.Popen[bytes]"]:
    """The command of deploy/ as it stands, but for what another cluster and an emulated cloud make necessary: which of the nodes on
    this machine is meant, as each stands for a machine of its own."""
    local = LocalHead(served.home)
    head = local.found()
    assert head is not None
    (node_id,) = [kept.node_id for kept in served.cluster.nodes() if kept.name == node]
    assert command[0].endswith("python")
    changed = {"--address": head.address, "--cloud": cloud}
    kept = [word for word in command[1:] if word.partition("=")[0] not in changed]
    ours = {**changed, "--node-id": node_id, "--metadata-url": server.url}
    words = [sys.executable, *kept, *(f"{name}={value}" for name, value in ours.items())]
    environment = ray_environment(f"{local.tag}-test-watch", local.token_path)
    with (served.home / f"{node}.watch.log").open("wb") as log:
        process = subprocess.Popen(words, env=environment, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        print((served.home / f"{node}.watch.log").read_text())


def ended(served: OnSpot, job: str, count: int) -> list[Any]:
    """The attempts that ended with their machine, as soon as there are so many."""
    found: list[Any] = []

    def enough() -> bool:
        found[:] = [one for _, one in served.attempts(job) if one.end == "preempted"]
        return len(found) >= count

    until(enough, seconds=60)
    return found


def test_a_trial_is_saved_and_moved_by_the_word_of_one_cloud_and_then_of_another(on_spot: OnSpot) -> None:
    job = on_spot.submit(
        "steady:train",
        budget={"usd": 1, "trials": 1},
        fidelity={"min": 1000, "max": 1000},
        constants={"step_s": 0.5},
        checkpoint={"interval": "60s", "keep": 2},  # so that what is saved is saved for the notice
        resources={"market": "spot", "max_concurrent_trials": 1},
    ).id
    node, _ = on_spot.trains_on(job)
    (other,) = {"spot-1", "spot-2"} - {node}
    with (
        MetadataServer(Aws()) as aws,
        MetadataServer(Gcp()) as google,
        watched(on_spot, node, SIDECAR, "aws", aws) as sidecar,
        watched(on_spot, other, UNIT, "gcp", google) as unit,
    ):
        # Malformed first, and late then: neither is a notice.
        aws.fail(ACTION, says(b'{"action": "terminate", "time": "soon"}'), times=2)
        until(lambda: aws.asked(ACTION) >= 2, seconds=60)
        aws.fail(ACTION, hangs)
        asked = aws.asked(ACTION)
        until(lambda: aws.asked(ACTION) > asked, seconds=60)
        assert [one.end for _, one in on_spot.attempts(job)][-1:] == [None]
        at = now()
        aws.cloud.interrupt(at=rfc3339(Instant(int(at + 120) * 10**9)))
        aws.mend()
        assert on_spot.trains_on(job, since=at, but=node)[0] == other
        assert sidecar.wait(60) == 0, "its node ends once its trial has left"
        assert "AWS will terminate this spot instance" in ended(on_spot, job, 1)[-1].reason
        on_spot.cluster.alive(node)
        at = now()
        google.cloud.preempt()
        assert on_spot.trains_on(job, since=at, but=other)[0] == node
        assert unit.wait(60) == 0
    first, second = ended(on_spot, job, 2)
    assert "Google preempts this machine" in second.reason
    assert [first.bill["lost"], second.bill["lost"]] == [0, 0]
    later = [one for _, one in on_spot.attempts(job) if one.attempt > first.attempt]
    assert [one.from_step for one in later] == [first.to_step, second.to_step]
    on_spot.client.cancel(job)
    assert on_spot.finished(job).state == "cancelled"
    books.check(on_spot.client, job)
