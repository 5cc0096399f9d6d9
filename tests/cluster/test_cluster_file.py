"""Test the file in which the process of a local cluster describes the cluster to other processes with the same
home, for as long as it runs.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.cluster.cluster_file import ClusterFile, KeptCluster, KeptNode
from tuner.domain.errors import Conflict

NODE = KeptNode("spot-1", "ab12", "session", "spot", "local", 0.0162, 1, 0, "alive")
KEEPS = "import sys, time, pathlib; from tuner.cluster.cluster_file import *\nwith ClusterFile(pathlib.Path(sys.argv[1])).kept():\n    ClusterFile(pathlib.Path(sys.argv[1])).write(KeptCluster('h'))\n    print('kept', flush=True); time.sleep(1000)"


def test_cluster_file_is_readable_only_while_it_is_kept(tmp_path: Path) -> None:
    file = ClusterFile(tmp_path)
    assert file.read() is None
    with file.kept():
        assert file.read() is None
        file.write(KeptCluster("head", (NODE,)))
        assert ClusterFile(tmp_path).read() == KeptCluster("head", (NODE,))
    assert ClusterFile(tmp_path).read() is None


def test_only_one_process_keeps_the_cluster_file(tmp_path: Path) -> None:
    with (
        ClusterFile(tmp_path).kept(),
        pytest.raises(Conflict, match="is already running"),
        ClusterFile(tmp_path).kept(),
    ):
        raise AssertionError("it is kept twice")


def test_file_of_a_killed_process_does_not_count_as_a_cluster(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", KEEPS, str(tmp_path)], stdout=subprocess.PIPE, env={**os.environ}
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"kept\n"
    file = ClusterFile(tmp_path)
    assert file.read() == KeptCluster("h")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert file.read() is None
    assert file.left_behind() == KeptCluster("h")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"own_head": ""}', '{"own_head": "", "nodes": [{"name": "x"}]}']
)
def test_invalid_cluster_file_is_read_as_no_cluster(tmp_path: Path, text: str) -> None:
    file = ClusterFile(tmp_path)
    with file.kept():
        (tmp_path / "cluster.json").write_text(text)
        assert file.read() is None
