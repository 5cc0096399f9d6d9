"""Test the watcher of a local head: started, restarted and ended with it, and its notices reach every node of
the machine.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from tests import deployed
from tests.cluster.metadata_clouds import Aws
from tests.cluster.metadata_server import MetadataServer
from tests.cluster.waiting import until
from tests.cluster.watchers import looks_again
from tuner.cluster import local_watch as module
from tuner.cluster.head import Head, LocalHead
from tuner.cluster.launch import ray_environment
from tuner.cluster.local_cluster import LocalCluster
from tuner.cluster.local_node import LocalNode, NodeSpec
from tuner.cluster.local_watch import LocalWatch, Metadata
from tuner.cluster.notice_watch import NO_CLOUD
from tuner.cluster.notices.node_board import NodeBoard
from tuner.cluster.processes import marked
from tuner.domain.listing import Market
from tuner.domain.time import Instant, rfc3339, system_now
from tuner.service.cluster import RayCluster
from tuner.settings import Settings

NOBODY = Head("nobody-1", "127.0.0.1:1", "http://127.0.0.1:1")


def in_two_minutes() -> str:
    return rfc3339(Instant(system_now() // 10**9 * 10**9 + 120 * 10**9))


def watchers(mark: str) -> list[int]:
    return [process.pid for process in marked(f"{mark}-watch")]


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], LocalWatch]:
    def make(program: str) -> LocalWatch:
        monkeypatch.setattr(sys, "executable", program)
        return LocalWatch(tmp_path, tmp_path / "token", Metadata())

    return make


@pytest.mark.parametrize(("status", "again"), [(NO_CLOUD, False), (0, True), (1, True)])
def test_watcher_restarts_unless_there_is_no_cloud(
    watch: Callable[[str], LocalWatch],
    tmp_path: Path,
    status: int,
    again: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The head is alive; it only did not answer."""
    program = tmp_path / "ends"
    program.write_text(f"#!/bin/sh\nexit {status}\n")
    program.chmod(0o700)
    watcher, pids = watch(str(program)), set[int]()
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    for _ in range(3):
        watcher.keep(NOBODY)
        assert watcher._process is not None
        pids.add(watcher._process.pid)
        watcher._process.wait()
    assert len(pids) == (3 if again else 1)


def test_watcher_that_fails_immediately_is_not_restarted_immediately(
    watch: Callable[[str], LocalWatch],
) -> None:
    watcher = watch("/bin/false")
    watcher.keep(NOBODY)
    assert watcher._process is not None
    before = watcher._process.pid
    watcher._process.wait()
    watcher.keep(NOBODY)
    assert watcher._process.pid == before


def test_no_watcher_starts_if_cloud_is_configured_as_none(tmp_path: Path) -> None:
    LocalWatch(tmp_path, tmp_path / "token", Metadata("none")).keep(NOBODY)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def board(tmp_path: Path) -> NodeBoard:
    return NodeBoard(LocalHead(tmp_path).temp_dir / "session_latest" / "tuner_notices")


@pytest.fixture
def server() -> Iterator[MetadataServer[Aws]]:
    with MetadataServer(Aws()) as metadata_server:
        yield metadata_server


@pytest.fixture
def cluster(tmp_path: Path, server: MetadataServer[Aws]) -> Iterator[LocalCluster]:
    markets: tuple[Market, ...] = ("spot", "on_demand")
    specs = [NodeSpec(market, market, "local", Decimal(1), 1, 0, 500_000_000) for market in markets]
    local_cluster = LocalCluster(tmp_path, specs, Metadata("aws", server.url), replace_after_s=None)
    with local_cluster.kept():
        yield local_cluster
    assert not list(marked(f"{LocalHead(tmp_path).tag}-"))


@pytest.mark.system
@pytest.mark.extended
def test_pod_notice_reaches_one_node_and_machine_notice_reaches_all(
    cluster: LocalCluster,
    tmp_path: Path,
    server: MetadataServer[Aws],
    board: NodeBoard,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nodes without work end at once, as drained nodes do. The head, which cannot be drained, notifies its
    workers.
    """
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    head = LocalHead(tmp_path).running()
    assert head is not None
    it_is_kept_by_whoever_keeps_the_head(tmp_path, head, server, cluster)
    spot, other = cluster.nodes
    a_pod_is_deleted(tmp_path, head, spot.node_id)

    def gone(node: LocalNode) -> bool:
        cluster.turn()
        return node.state == "gone"

    until(lambda: gone(spot))
    notice = board.earliest_notice(spot.node_id)
    assert notice is not None
    assert notice.id == "signal/SIGTERM"
    assert other.state == "alive"
    assert board.earliest_notice(other.node_id) is None
    server.cloud.interrupt(at=in_two_minutes())
    until(lambda: gone(other))
    (head_id,) = [
        path.name for path in board_paths(tmp_path) if path.name not in (spot.node_id, other.node_id)
    ]
    for node_id in (other.node_id, head_id):
        notice = board.earliest_notice(node_id)
        assert notice is not None
        assert notice.id == "aws/instance-action"


def it_is_kept_by_whoever_keeps_the_head(
    home: Path, head: Head, server: MetadataServer[Aws], cluster: LocalCluster
) -> None:
    (pid,) = watchers(head.session)
    environ = {"TUNER_HOME": str(home), "TUNER_CLOUD": "aws", "TUNER_METADATA_URL": server.url}
    services = [RayCluster(Settings.from_env(environ)) for _ in "12"]
    for service in services:
        service.ensure()
    assert watchers(head.session) == [pid]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not watchers(head.session))
    for service in services:
        service.ensure()
    cluster.turn()
    (again,) = watchers(head.session)
    assert again != pid


def a_pod_is_deleted(home: Path, head: Head, node_id: str) -> None:
    """Send SIGTERM to the sidecar of a pod whose node is the raylet. The sidecar ends with its node."""
    with MetadataServer(Aws()) as server:
        kept = [word for word in deployed.sidecar()["command"][1:] if not word.startswith("--address")]
        more = [f"--address={head.address}", f"--node-id={node_id}", f"--metadata-url={server.url}"]
        environment = ray_environment(f"{LocalHead(home).tag}-sidecar", home / "ray_token")
        sidecar = subprocess.Popen([sys.executable, *kept, *more], env=environment)
        try:
            looks_again(server, "instance-action", 1)
            sidecar.terminate()
            assert sidecar.wait(120) == 0
        finally:
            sidecar.kill()


def board_paths(home: Path) -> list[Path]:
    return list((LocalHead(home).temp_dir / "session_latest" / "tuner_notices").iterdir())
