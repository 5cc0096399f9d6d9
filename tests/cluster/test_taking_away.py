"""Test a node whose end is announced in two ways, of which the second fails."""

import os
from pathlib import Path

import pytest

from tests.cli.test_cluster import ALIVE
from tuner.cluster import drain, simulated_preemption
from tuner.cluster.head import Head, LocalHead
from tuner.cluster.notices.notice import Notice
from tuner.domain.errors import Conflict
from tuner.domain.time import NS


class Refuses(drain.Gcs):
    folder: Path

    def node(self, node_id: str) -> drain.RayNode:
        return drain.RayNode(node_id, is_head=False, session_dir=self.folder)

    def drain(self, node_id: str, notice: Notice) -> None:
        hanging = self.node(node_id).boards.earliest_notice(node_id)
        assert hanging is not None
        assert hanging == notice
        raise Conflict("not now")


def test_notice_is_withdrawn_if_ray_refuses_to_drain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Refuses.folder = tmp_path
    monkeypatch.setattr(drain, "Gcs", Refuses)
    monkeypatch.setattr(os, "environ", {**os.environ})
    monkeypatch.setattr(LocalHead, "running", lambda _: Head("nobody-1", "127.0.0.1:1", "http://127.0.0.1:1"))
    with pytest.raises(Conflict, match="not now"):
        simulated_preemption.announce(LocalHead(tmp_path), ALIVE, 3600 * NS)
    assert (
        drain.RayNode("", is_head=False, session_dir=tmp_path).boards.earliest_notice(ALIVE.node_id) is None
    )
