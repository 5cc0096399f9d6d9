"""Test the ports of a node on this machine."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from tuner.cluster.local_node import LocalNode, NodeSpec
from tuner.cluster.processes import marked

NOBODY = "127.0.0.1:1"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LocalNode]:
    spec = NodeSpec("spot-1", "spot", "local", Decimal("0.03"), 1, 0, 1 << 30)
    prefix = f"tuner-test-{tmp_path.name}-"
    local_node = LocalNode(
        spec, prefix=prefix, token_path=tmp_path / "token", log_path=tmp_path / "log", sockets=tmp_path
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
