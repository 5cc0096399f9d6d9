"""`tuner cluster` and `tuner preempt`: what they refuse, and their errors. tests/system/test_preempted.py tests their effects."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cluster.waiting import until
from tuner.cli.main import app
from tuner.cluster.cluster_file import ClusterFile, KeptCluster, KeptNode
from tuner.cluster.head import LocalHead
from tuner.cluster.processes import MARK, marked

ALIVE = KeptNode("spot-1", "abcdef12", "nobody", "spot", "local", 0.0162, 1, 0, "alive")
STARTING = KeptNode("spot-2", "", "nobody", "spot", "local", 0.0162, 1, 0, "starting")
# `tuner cluster` with a program in place of Ray, which never becomes ready.
CLUSTER_WITH_SLOW_RAY = """
import sys
from tuner.cli.main import app
from tuner.cluster.launch import HeadLaunch
HeadLaunch.command = lambda _: [sys.executable, "-S", "-c", "import time; time.sleep(1000)"]
app(["cluster"])
"""


def test_local_cluster_does_not_import_the_database() -> None:
    """The import of SQLAlchemy takes half a second."""
    code = "import sys, tuner.service.local_cluster; print('sqlalchemy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    return tmp_path


def refused(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("cluster", "--spot", "0", "--on-demand", "0"), "at least one node"),
        (("cluster", "--spot", "-1"), "--spot"),
        (("cluster", "--replace-after", "soon"), "soon"),
        (("preempt",), "NODE"),
        (("preempt", "spot-1", "--notice", "a while"), "a while"),
        (("preempt", "spot-1", "--notice", "-15s"), "-15s"),
    ],
)
def test_wrong_usage_is_refused_and_writes_nothing(home: Path, words: tuple[str, ...], says: str) -> None:
    code, message = refused(*words)
    assert code == 2
    assert says in message
    assert not list(home.iterdir())


def test_cluster_command_is_refused_if_a_remote_cluster_is_configured(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_RAY_ADDRESS", "http://head:8265")
    code, message = refused("cluster")
    assert code == 1
    assert "TUNER_RAY_ADDRESS" in message


def test_ctrl_c_ends_a_start_of_the_cluster(home: Path) -> None:
    local = LocalHead(home)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
    command = [sys.executable, "-c", CLUSTER_WITH_SLOW_RAY]
    with subprocess.Popen(command, env={**kept, "TUNER_HOME": str(home)}) as process:
        try:
            until(lambda: bool(list(marked(f"{local.tag}-"))))
            process.send_signal(signal.SIGINT)
            assert process.wait(240) == 0
            assert not list(marked(f"{local.tag}-"))
        finally:
            process.kill()
            local.stop()


def test_second_cluster_of_a_home_is_refused(home: Path) -> None:
    with ClusterFile(home).kept():
        code, message = refused("cluster")
    assert code == 1
    assert "is already running" in message


def test_preempt_without_a_local_cluster_is_refused(home: Path) -> None:
    code, message = refused("preempt", "spot-1")
    assert code == 1
    assert "no `tuner cluster` runs" in message


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("spot-3", "name one of these nodes: spot-1, spot-2"),
        ("abc", "'abc' does not match exactly one node"),
        ("spot-2", "spot-2 is starting"),
    ],
)
def test_preempt_refuses_unknown_and_starting_nodes(home: Path, name: str, says: str) -> None:
    file = ClusterFile(home)
    with file.kept():
        file.write(KeptCluster("", (ALIVE, STARTING)))
        code, message = refused("preempt", name)
    assert code == 1
    assert says in message


def test_stop_says_that_the_ray_of_a_local_cluster_is_left_running(home: Path) -> None:
    file = ClusterFile(home)
    with file.kept():
        file.write(KeptCluster("session", (ALIVE,)))
        result = CliRunner().invoke(app, ["stop"])
    assert result.exit_code == 0
    assert "it is left running; to end it, press Ctrl-C in `tuner cluster`" in result.stdout


def test_node_can_be_named_by_a_prefix_of_its_id(home: Path) -> None:
    file = ClusterFile(home)
    with file.kept():
        file.write(KeptCluster("", (ALIVE,)))
        result = CliRunner().invoke(app, ["preempt", "abcd", "--notice", "0s"])
    assert result.exit_code == 0
    assert "spot-1 had already ended" in result.stdout


def test_preempt_with_notice_is_refused_if_the_cluster_head_is_gone(home: Path) -> None:
    """The cluster's head is gone, and the node's only remaining process is recognised by its environment variable."""
    file, node = ClusterFile(home), replace(ALIVE, session=f"untold-{os.getpid()}")
    left = subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: node.session})
    try:
        with file.kept():
            file.write(KeptCluster("", (node,)))
            code, message = refused("preempt", "spot-1", "--notice", "15s")
            assert code == 1
            assert "head of the local cluster has ended" in message
            assert left.poll() is None
            assert CliRunner().invoke(app, ["preempt", "spot-1", "--notice", "0s"]).exit_code == 0
        left.wait(120)
    finally:
        left.kill()
        left.wait()
