"""Test that a machine's notices reach all nodes on that machine, whenever they started, and that Ray drains
each node that it can.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.metadata_clouds import Aws, Azure
from tests.cluster.metadata_server import MetadataServer
from tests.cluster.waiting import until
from tests.cluster.watchers import OPERATORS, looks_again, sources
from tuner.cluster.drain import RayNode
from tuner.cluster.notices.notice import Notice
from tuner.cluster.preemption_notices import MachineWatch
from tuner.domain.errors import Conflict, NotFound, Unavailable

ACTION = "aws/instance-action"


@dataclass
class Cluster:
    """A fake of what Ray knows. `here` holds the ids of the nodes on this machine. The cluster does not answer
    while `down` is set.
    """

    folder: Path
    here: list[str] = field(default_factory=lambda: ["head", "a"])
    drained: list[tuple[str, str]] = field(default_factory=list)
    down: bool = False
    queries: int = 0

    def node(self, node_id: str) -> RayNode:
        return RayNode(node_id, node_id == "head", self.folder)

    def nodes_here(self) -> dict[str, RayNode]:
        self.queries += 1
        self._answer()
        return {node_id: self.node(node_id) for node_id in self.here}

    def drain(self, node_id: str, notice: Notice) -> None:
        self._answer()
        if node_id == "head":
            raise Conflict("head is the head node, which cannot be drained")
        if node_id not in self.here:
            raise NotFound(f"{node_id} is gone")
        self.drained.append((node_id, notice.id))

    def seen(self, node_id: str) -> str | None:
        """Return the id of the notice that the node's workers see, or None."""
        standing = self.node(node_id).boards.earliest_notice(node_id)
        return None if standing is None else standing.id

    def looked(self, times: int = 2) -> None:
        """Wait until the machine's nodes were queried `times` more times."""
        before = self.queries
        until(lambda: self.queries >= before + times)

    def _answer(self) -> None:
        if self.down:
            raise Unavailable("the cluster does not answer")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@contextmanager
def watched(
    cluster: Cluster, server: MetadataServer[Any], cloud: Any = "aws", **more: Any
) -> Iterator[tuple[MachineWatch, threading.Thread]]:
    watch = MachineWatch(cluster, cluster.nodes_here, sources(server, cloud), look_s=0.01, **more)
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        yield watch, thread
    finally:
        cluster.down, cluster.here = False, []
        thread.join(120)
        assert not thread.is_alive()


def test_every_node_of_machine_is_notified_and_workers_are_drained(cluster: Cluster) -> None:
    cluster.here = ["head", "a", "b"]
    with MetadataServer(Aws()) as server, watched(cluster, server):
        server.cloud.interrupt()
        until(lambda: cluster.drained == [("a", ACTION), ("b", ACTION)])
        assert [cluster.seen(node) for node in ("head", "a", "b")] == [ACTION] * 3


def test_node_that_starts_during_a_notice_is_notified(cluster: Cluster) -> None:
    """A node may restart on the same machine."""
    cluster.here = []
    with MetadataServer(Aws()) as server, watched(cluster, server):
        server.cloud.interrupt()
        looks_again(server, "instance-action")
        for node in ("a", "b"):
            cluster.here = ["head", node]
            until(lambda node=node: (node, ACTION) in cluster.drained)  # type: ignore[misc]
            assert cluster.seen(node) == ACTION


def test_withdrawn_notice_is_removed_from_the_boards(cluster: Cluster) -> None:
    with MetadataServer(Aws()) as server, watched(cluster, server):
        server.cloud.interrupt()
        until(lambda: cluster.seen("head") == cluster.seen("a") == ACTION)
        server.cloud.withdraw()
        until(lambda: cluster.seen("head") is None and cluster.seen("a") is None)
        cluster.here = ["head", "a", "b"]
        cluster.looked()
        assert ("b", ACTION) not in cluster.drained


def test_workers_are_notified_during_ray_outage_and_ray_afterwards(cluster: Cluster) -> None:
    with MetadataServer(Aws()) as server, watched(cluster, server):
        cluster.looked()
        cluster.down = True
        server.cloud.interrupt()
        until(lambda: cluster.seen("a") == ACTION)
        cluster.looked()
        assert cluster.drained == []
        cluster.down = False
        until(lambda: cluster.drained == [("a", ACTION)])


def test_node_is_drained_even_if_board_cannot_be_written(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    board = cluster.folder / "tuner_notices"
    board.write_text("in the way")
    with MetadataServer(Aws()) as server, watched(cluster, server):
        server.cloud.interrupt()
        until(lambda: ("a", ACTION) in cluster.drained)
        board.unlink()
        until(lambda: cluster.seen("a") == ACTION)
    assert "cannot be notified" in caplog.text


def test_container_without_session_folder_logs_what_to_mount(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.folder = cluster.folder / "session_1"
    with MetadataServer(Aws()) as server, watched(cluster, server):
        server.cloud.interrupt()
        until(lambda: cluster.drained == [("a", ACTION)])
    assert not cluster.folder.exists()
    assert f"the directory {cluster.folder} does not exist here" in caplog.text
    assert "mount it" in caplog.text


def test_watch_waits_for_first_node_and_ends_with_the_last(cluster: Cluster) -> None:
    cluster.here = []
    with MetadataServer(Aws()) as server, watched(cluster, server) as (_, thread):
        cluster.looked()
        assert thread.is_alive()
        cluster.here = ["a", "b"]
        cluster.looked()
        cluster.here = ["b"]
        cluster.looked()
        assert thread.is_alive()
        cluster.here = []
        thread.join(120)
        assert not thread.is_alive()


def test_watch_ends_if_cluster_stays_silent_too_long(
    cluster: Cluster,
) -> None:
    with MetadataServer(Aws()) as server, watched(cluster, server, silent_s=0.2) as (_, thread):
        cluster.looked()
        cluster.down = True
        thread.join(120)
        assert not thread.is_alive()


def test_watch_survives_temporarily_silent_cluster(cluster: Cluster) -> None:
    cluster.down = True
    with MetadataServer(Aws()) as server, watched(cluster, server) as (_, thread):
        cluster.looked()
        cluster.down = False
        cluster.looked()
        cluster.down = True
        cluster.looked()
        assert thread.is_alive()


@pytest.mark.parametrize("may_release", [True, False])
def test_azure_event_is_released_after_all_nodes_are_gone(cluster: Cluster, may_release: bool) -> None:
    cluster.here = ["a", "b"]
    with MetadataServer(Azure()) as server:
        with watched(cluster, server, "azure", may_release=may_release) as (_, thread):
            server.cloud.schedule("ours")
            until(lambda: len(cluster.drained) == 2)
            cluster.here = ["b"]
            cluster.looked()
            assert server.cloud.released == []
            cluster.here = []
            thread.join(120)
        assert server.cloud.released == (["ours"] if may_release else [])


def test_announced_notice_reaches_the_nodes(cluster: Cluster) -> None:
    with MetadataServer(Aws()) as server, watched(cluster, server, None) as (watch, _):
        watch.watcher.announce(OPERATORS)
        until(lambda: cluster.drained == [("a", OPERATORS.id)])
