"""A cloud announces that a machine goes away. The watcher next to its node, started as in deploy/, has the
trial saved and moved.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests import deployed
from tests.cluster.metadata_clouds import Aws, Gcp
from tests.cluster.metadata_server import MetadataServer, hangs, says
from tests.cluster.waiting import until
from tests.system import books
from tests.system.spot_cluster import OnSpot, now
from tuner.cluster.head import LocalHead
from tuner.cluster.launch import ray_environment
from tuner.domain.time import Instant, rfc3339

SIDECAR, UNIT = deployed.commands().values()
ACTION = "instance-action"


@contextmanager
def watched(
    served: OnSpot, node: str, command: list[str], cloud: str, server: MetadataServer[Any]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the watcher command of deploy/, changed only for the test cluster and the emulated cloud.

    The node is named explicitly, because each node of this machine represents a machine of its own.
    """
    local = LocalHead(served.home)
    head = local.running()
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


def a_trial_is_moved_by_the_word_of_one_cloud_and_then_of_another(on_spot: OnSpot) -> None:
    """Check that notices of two clouds in turn each move the trial. The cluster has three nodes, so that there
    is always one to move to.
    """
    job = on_spot.submit(
        "steady:train",
        budget={"usd": 1, "trials": 1},
        fidelity={"min": 1000, "max": 1000},
        constants={"step_s": 0.5},
        checkpoint={"interval": "60s", "keep": 2},  # long, so that only the notice causes a save
        resources={"market": "spot", "max_concurrent_trials": 1},
    ).id
    first, _ = on_spot.trains_on(job)
    with MetadataServer(Aws()) as aws, watched(on_spot, first, SIDECAR, "aws", aws) as sidecar:
        nothing_is_a_notice_but_one(on_spot, job, aws)
        at = now()
        aws.cloud.interrupt(at=rfc3339(Instant(int(at + 120) * 10**9)))
        aws.fix()
        second, _ = on_spot.trains_on(job, since=at, but=first)
        spot = Gcp()
        spot.say("scheduling/preemptible", "TRUE")
        with MetadataServer(spot) as google, watched(on_spot, second, UNIT, "gcp", google) as unit:
            until(lambda: google.request_count("preempted") > 0, seconds=300)
            at = now()
            google.cloud.preempt()
            on_spot.trains_on(job, since=at, but=second)
            assert [sidecar.wait(300), unit.wait(300)] == [0, 0], "a node ends once its trial has left"
    attempts = [attempt for _, attempt in on_spot.attempts(job)]
    assert [attempt.end for attempt in attempts] == ["preempted", "preempted", None]
    assert "AWS will terminate this spot instance" in attempts[0].reason
    assert "Google will preempt this machine" in attempts[1].reason
    assert [attempt.bill["lost"] for attempt in attempts[:2]] == [0, 0]
    assert [attempt.from_step for attempt in attempts[1:]] == [attempt.to_step for attempt in attempts[:2]]
    on_spot.client.cancel(job)
    assert on_spot.finished(job).state == "cancelled"
    books.check(on_spot.client, job)


def nothing_is_a_notice_but_one(on_spot: OnSpot, job: str, aws: MetadataServer[Aws]) -> None:
    """Check that malformed and then late answers do not count as notices. The last request is still pending at
    the end.
    """
    aws.fail(ACTION, says(b'{"action": "terminate", "time": "soon"}'), times=2)
    until(lambda: aws.request_count(ACTION) >= 3, seconds=300)
    aws.fail(ACTION, hangs)
    asked = aws.request_count(ACTION)
    until(lambda: aws.request_count(ACTION) > asked, seconds=300)
    assert [attempt.end for _, attempt in on_spot.attempts(job)] == [None]
