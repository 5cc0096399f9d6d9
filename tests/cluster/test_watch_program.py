"""Test the watcher as a program when there is nothing to watch: it exits soon, costs little, and raises no
alarm.
"""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cluster.metadata_clouds import Nowhere
from tests.cluster.metadata_server import MetadataServer, hangs
from tuner.cluster.notice_watch import NO_CLOUD, main

ENDS = """
import sys
from tuner.cluster.notice_watch import main
code = main(sys.argv[1:], detect_s=0.5)
assert "ray" not in sys.modules, "it takes a second and 80 MB to load"
sys.exit(code)
"""


def ends(*words: str) -> str:
    """Run the watcher, check that it exits with NO_CLOUD, and return its log."""
    command = [sys.executable, "-c", ENDS, "--address", "127.0.0.1:1", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == NO_CLOUD, done.stderr
    return done.stderr


@pytest.fixture
def nobody() -> Iterator[str]:
    """A URL on which nothing listens. The port is bound, so that nothing else can."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{free.getsockname()[1]}"


def test_watcher_without_cloud_exits_with_one_log_line(nobody: str) -> None:
    (line,) = ends("--metadata-url", nobody).splitlines()
    assert "INFO" in line
    assert "nothing to watch" in line


@pytest.mark.parametrize("hanging", [False, True])
def test_watcher_exits_if_metadata_address_is_not_a_cloud(hanging: bool) -> None:
    with MetadataServer(Nowhere()) as server:
        if hanging:
            server.fail("", hangs)
        (line,) = ends("--metadata-url", server.url).splitlines()
        assert "nothing to watch" in line


def test_watcher_exits_if_cloud_is_none_and_not_in_a_pod() -> None:
    assert "nothing to watch" in ends("--cloud", "none")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--address"),
        (["--address", "head:6379", "--cloud", "oracle"], "oracle"),
        (["--address", "head:6379", "--grace", "soon"], "'soon' is not a number of seconds above 0"),
        (["--address", "head:6379", "--grace", "nan"], "'nan' is not a number of seconds above 0"),
        (["--address", "head:6379", "--gcp-lead", "-1"], "'-1' is not a number of seconds above 0"),
        (["--address", "head:6379", "--metadata-url", "169.254.169.254"], "http://"),
    ],
)
def test_wrong_usage_is_refused_with_the_reason(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
