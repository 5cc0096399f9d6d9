"""Test `tuner preempt` with nodes of a cluster that another service started."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cluster.waiting import until
from tests.system.spot_cluster import OnSpot
from tuner.cli.main import app
from tuner.cluster.head import LocalHead
from tuner.cluster.notices.node_board import NodeBoard

pytestmark = [pytest.mark.system, pytest.mark.extended]


@pytest.fixture
def operator(on_spot: OnSpot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalHead:
    """Run commands as the operator of a cluster that this home did not start; return its head."""
    head = LocalHead(on_spot.home)
    running_head = head.running()
    assert running_head is not None
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "ours"))
    monkeypatch.setenv("TUNER_RAY_ADDRESS", running_head.dashboard_url)
    monkeypatch.setenv("RAY_AUTH_TOKEN", head.token)
    return head


def preempt(node: str, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["preempt", node, *options])
    return done.exit_code, " ".join(done.output.split())


def test_preempt_notifies_one_node_and_it_ends(on_spot: OnSpot, operator: LocalHead) -> None:
    """Nothing runs on the node, so it ends at once, as a drained node does."""
    on_spot.cluster.alive("spot-1", "on-demand-1")
    spot, other = (
        next(node for node in on_spot.cluster.nodes() if node.name == name)
        for name in ("spot-1", "on-demand-1")
    )
    for name, options, message in (
        ("nobody", (), "nodes match"),
        (spot.node_id, ("--notice", "0s"), "only sends a notice and does not remove the machine"),
    ):
        code, output = preempt(name, *options)
        assert code == 1
        assert message in output
    code, output = preempt(spot.node_id[:12], "--notice", "10m")
    assert code == 0, output
    assert "was notified" in output
    board = NodeBoard(operator.temp_dir / "session_latest" / "tuner_notices")
    notice = board.earliest_notice(spot.node_id)
    assert notice is not None
    assert notice.id.startswith("operator/")
    until(lambda: spot not in on_spot.cluster.nodes())
    assert other in on_spot.cluster.nodes()
    assert board.earliest_notice(other.node_id) is None
