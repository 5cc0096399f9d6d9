"""Test access to a cluster's HTTP interface, and what is read through it."""

import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.waiting import is_dead, until
from tests.clusters import GPUS
from tuner.cluster.dashboard import Dashboard, RayUnavailable, cluster_token, dashboard_url
from tuner.cluster.head import Head, LocalHead
from tuner.cluster.jobs import RayJobs
from tuner.cluster.nodes import Node, nodes
from tuner.cluster.processes import mark_of, marked

BIG = Node("a", cpus=8, gpus=1, memory_bytes=64 << 30)


@pytest.mark.system
def test_node_has_the_resources_given_to_the_head(local_head: LocalHead, dashboard: Dashboard) -> None:
    (node,) = nodes(dashboard)
    assert (node.cpus, node.gpus, node.alive, node.is_head) == (2, GPUS, True, True)
    assert node.memory_bytes > 1 << 28
    assert node.labels["ray.io/node-id"] == node.id


@pytest.mark.system
def test_head_listens_only_on_loopback(local_head: LocalHead) -> None:
    session = local_head.find_or_start().session
    until(lambda: len(listening(session)) >= 8)  # the head's agents start after it answers
    assert set(listening(session)) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


def listening(session: str) -> list[str]:
    session_connections = [connection for process in marked(session) for connection in connections(process)]
    return [
        connection.laddr.ip for connection in session_connections if connection.status == psutil.CONN_LISTEN
    ]


def connections(process: psutil.Process) -> list[Any]:
    """Return the process's connections, or an empty list if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.net_connections("inet")
    return []


@pytest.mark.system
def test_head_requires_token_that_only_its_owner_can_read(local_head: LocalHead) -> None:
    head = local_head.find_or_start()
    assert stat.S_IMODE(local_head.token_path.stat().st_mode) == 0o600
    for token in (None, "guessed" * 8):
        stranger = Dashboard(head.dashboard_url, token)
        with pytest.raises(RayUnavailable, match="token"):
            stranger.get("/api/v0/nodes")
        stranger.close()


@pytest.mark.system
def test_every_process_of_a_head_carries_its_mark(local_head: LocalHead) -> None:
    head = local_head.find_or_start()
    until(lambda: bool(titled(head)))  # Processes to which Ray gives a title could lose the mark.
    family = psutil.Process(head.pids[0]).children(recursive=True)
    assert len(family) >= 5
    assert {mark_of(process.pid) for process in family if process.is_running()} <= {head.session, None}
    # An ending process releases its environment while Linux still calls it running. It soon disappears.
    until(lambda: all(mark_of(process.pid) == head.session or is_dead(process) for process in titled(head)))


def titled(head: Head) -> list[psutil.Process]:
    family = psutil.Process(head.pids[0]).children(recursive=True)
    return [process for process in family if name_of(process).startswith("ray::")]


def name_of(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


def test_missing_cluster_is_unavailable() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = Dashboard(f"http://127.0.0.1:{free.getsockname()[1]}", "token")
        assert not nobody.answers()
        for ask in (lambda: RayJobs(nobody).status("j"), lambda: nodes(nobody)):
            with pytest.raises(RayUnavailable):
                ask()
        nobody.close()


@pytest.mark.timeout(60)
def test_a_cluster_that_hangs_is_unavailable_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hung = Dashboard(f"http://127.0.0.1:{silent.getsockname()[1]}", "token", timeout_s=0.3)
        with pytest.raises(RayUnavailable, match=r"timed out|Timeout"):
            hung.get("/api/version")
        hung.close()


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("http://head:1234/", "http://head:1234"),
        ("https://ray.example.org/cluster", "https://ray.example.org/cluster"),
        ("head:6379", "http://head:8265"),
        ("ray://10.0.0.1:10001", "http://10.0.0.1:8265"),
        ("[::1]:6379", "http://[::1]:8265"),
    ],
)
def test_the_dashboard_is_derived_from_the_address(address: str, url: str) -> None:
    assert dashboard_url(address) == url


def test_an_address_without_a_host_is_refused() -> None:
    with pytest.raises(RayUnavailable, match="not the address"):
        dashboard_url(":6379")


def test_token_is_read_from_the_same_places_as_in_ray(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    assert cluster_token({"RAY_AUTH_TOKEN": "given", "RAY_AUTH_TOKEN_PATH": str(file)}) == "given"
    assert cluster_token({"RAY_AUTH_TOKEN_PATH": str(file)}) == "from-file"
    assert cluster_token({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")}) is None
