"""Test the ports of a node on this machine, and when it is started again."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from tuner.cluster import local_cluster
from tuner.cluster.local_cluster import LocalCluster
from tuner.cluster.local_node import LocalNode, NodeSpec
from tuner.cluster.local_watch import Metadata
from tuner.cluster.nodes import Node
from tuner.cluster.processes import marked

SPEC = NodeSpec("spot-1", "spot", "local", Decimal("0.03"), 1, 0, 1 << 30)
NOBODY = "127.0.0.1:1"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LocalNode]:
    prefix = f"tuner-test-{tmp_path.name}-"
    local_node = LocalNode(
        SPEC, prefix=prefix, token_path=tmp_path / "token", log_path=tmp_path / "log", sockets=tmp_path
    )
    yield local_node
    local_node.kill()
    assert list(marked(prefix)) == []


def ports(node: LocalNode) -> str:
    """Return the node manager port that the node's process was started with."""
    assert node._process is not None
    words = node._process.args
    assert isinstance(words, list)
    return str(words[words.index("--node-manager-port") + 1])


def test_restarted_node_keeps_its_ports(node: LocalNode) -> None:
    node.start(NOBODY)
    before = ports(node)
    node.joined("a" * 56)
    node.kill()
    node.start(NOBODY)
    assert ports(node) == before


def test_node_that_never_joined_tries_other_ports(node: LocalNode) -> None:
    """Another process may have taken one of the ports since they were chosen."""
    node.start(NOBODY)
    before = ports(node)
    node.kill()
    node.start(NOBODY)
    assert ports(node) != before


def test_node_is_started_again_only_after_ray_has_noticed_its_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the address of the dead node, whose place in a trial it would take."""
    cluster = LocalCluster(tmp_path, [SPEC], Metadata("none"), replace_after_s=0)
    alive, (local_node,) = [Node("a" * 56, 1, 0, 1, name="spot-1")], cluster.nodes
    monkeypatch.setattr(local_cluster, "nodes", lambda _: alive)
    monkeypatch.setattr(cluster, "_head", MagicMock())
    monkeypatch.setattr(cluster, "_joined", SimpleNamespace(address=NOBODY))
    monkeypatch.setattr(cluster, "_dashboard", object())
    try:
        local_node.start(NOBODY)
        cluster.turn()
        assert local_node.state == "alive"
        local_node.kill()
        cluster._lost(local_node, 0)
        assert cluster.turn() == []
        alive.clear()
        assert cluster.turn() == ["spot-1 is started again"]
    finally:
        local_node.kill()
