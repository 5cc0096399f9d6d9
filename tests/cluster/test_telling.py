"""An operator's word to a cluster that somebody else keeps: on real nodes, by the command."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cluster.waiting import until
from tuner.cli.main import app
from tuner.engine.notices.node_board import NodeBoard
from tuner.engine.ray_cluster import LocalCluster, LocalHead, Market, Metadata, NodeSpec
from tuner.engine.ray_cluster.processes import marked

pytestmark = pytest.mark.system


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    home = tmp_path / "theirs"
    home.mkdir()
    specs = [_spec("spot"), _spec("on_demand")]
    cluster, head = LocalCluster(home, specs, Metadata("none"), replace_after_s=None), LocalHead(home)
    with cluster.kept():
        found = head.found()
        assert found is not None
        monkeypatch.setenv("TUNER_HOME", str(tmp_path / "ours"))
        monkeypatch.setenv("TUNER_RAY_ADDRESS", found.dashboard_url)
        monkeypatch.setenv("RAY_AUTH_TOKEN", head.token)
        yield cluster
    assert not list(marked(f"{head.tag}-"))


def _spec(market: Market) -> NodeSpec:
    return NodeSpec(market, market, "local", Decimal(1), 1, 0, 500_000_000)


def preempt(node: str, *more: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["preempt", node, *more])
    return done.exit_code, " ".join(done.output.split())


def test_a_node_is_told_by_its_operator_and_no_other_is(theirs: LocalCluster, tmp_path: Path) -> None:
    """Nothing runs on it, so that it ends at once, as drained nodes do."""
    spot, other = theirs.nodes
    for name, words, says in (
        ("nobody", (), "there is"),
        ("spot", ("--notice", "0s"), "not ours to take"),
    ):
        code, said = preempt(name, *words)
        assert code == 1
        assert says in said
    code, said = preempt(spot.node_id[:12], "--notice", "10m")
    assert code == 0, said
    assert "has been told" in said
    board = NodeBoard(LocalHead(tmp_path / "theirs").temp_dir / "session_latest" / "tuner_notices")
    told = board.standing(spot.node_id)
    assert told is not None
    assert (told.source, told.kind) == ("operator", "terminate")

    def gone() -> bool:
        theirs.turn()
        return spot.state == "gone"

    until(gone)
    assert other.state == "alive"
    assert board.standing(other.node_id) is None
