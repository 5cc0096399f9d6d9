"""Test a local Ray head as real processes: found again, detected when it dies, replaced, and removed without a
trace.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.waiting import is_dead, until
from tuner.cluster import head as head_module
from tuner.cluster.dashboard import Dashboard, RayUnavailable
from tuner.cluster.head import Head, LocalHead
from tuner.cluster.jobs import RayJobs
from tuner.cluster.launch import free_ports
from tuner.cluster.processes import marked

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

FIND = """
import sys
from pathlib import Path
from tuner.cluster.head import LocalHead
print(LocalHead(Path(sys.argv[1]), cpus=1, gpus=0).find_or_start().session)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    head_home = tmp_path_factory.mktemp("killed")
    yield head_home
    LocalHead(head_home).stop()


def test_head_environment_excludes_settings_of_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuner.cluster.launch import HeadLaunch

    monkeypatch.setenv("TUNER_API_KEY", "secret")
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    environment = HeadLaunch("s", tmp_path, tmp_path / "token", tuple(range(9)), 1, 0).environment()
    assert not {"TUNER_API_KEY", "RAY_ADDRESS"} & set(environment)
    assert environment["PATH"] == os.environ["PATH"]


def test_services_starting_simultaneously_share_one_head(home: Path) -> None:
    command = [sys.executable, "-c", FIND, str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as elsewhere:
        mine = LocalHead(home, cpus=1, gpus=0)
        session = mine.find_or_start().session
        assert elsewhere.communicate(timeout=300)[0].strip() == session
    assert mine.alive()


@pytest.mark.extended
@pytest.mark.parametrize("part", ["raylet", "gcs_server", "dashboard", "ray start"])
def test_head_with_a_killed_process_is_detected_and_replaced(home: Path, part: str) -> None:
    local = LocalHead(home, cpus=1, gpus=0)
    head = local.find_or_start()
    assert local.alive()
    killed = psutil.Process(pid_of(head, part))
    killed.kill()
    until(lambda: is_dead(killed))
    assert not local.alive()
    successor = local.find_or_start()
    assert successor.session != head.session
    assert not list(marked(head.session))
    assert local.alive()


@pytest.mark.extended
def test_busy_head_is_not_replaced(home: Path) -> None:
    """The dashboard is suspended for longer than a request waits for its answer."""
    local = LocalHead(home, cpus=1, gpus=0)
    head = local.find_or_start()
    dashboard = psutil.Process(pid_of(head, "dashboard"))
    dashboard.suspend()
    wakes = threading.Timer(12.0, dashboard.resume)
    wakes.start()
    try:
        assert LocalHead(home).find_or_start().session == head.session
    finally:
        wakes.join()


@pytest.mark.extended
def test_half_started_head_is_removed(home: Path) -> None:
    local = LocalHead(home, cpus=1, gpus=0)
    head = local.find_or_start()
    state = json.loads((home / "ray.json").read_text())
    (home / "ray.json").write_text(json.dumps({**state, "pids": []}))
    assert local.find_or_start().session != head.session
    assert not list(marked(head.session))


@pytest.mark.extended
def test_head_that_cannot_start_raises_the_reason(tmp_path: Path) -> None:
    local = LocalHead(tmp_path, cpus=-1)
    with pytest.raises(RayUnavailable, match=r"ended with status [12]"):
        local.find_or_start()
    assert not local.temp_dir.exists()


@pytest.mark.extended
def test_head_is_started_on_other_ports_if_the_dashboard_gets_no_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process takes the port of the dashboard before Ray uses it."""
    tries = list[tuple[int, ...]]()
    local = LocalHead(tmp_path, cpus=1, gpus=0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        def ports(count: int) -> tuple[int, ...]:
            free = free_ports(count)
            tries.append(free if tries else (free[0], taken.getsockname()[1], *free[2:]))
            return tries[-1]

        monkeypatch.setattr(head_module, "free_ports", ports)
        try:
            assert local.find_or_start().dashboard_url == f"http://127.0.0.1:{tries[1][1]}"
        finally:
            local.stop()
    assert len(tries) == 2


def test_stop_leaves_no_process_and_no_directory(home: Path) -> None:
    local = LocalHead(home, cpus=1, gpus=0)
    head = local.find_or_start()
    assert local.temp_dir.parent.stat().st_mode & 0o777 == 0o700, "other users reach no log or socket of Ray"
    dashboard = Dashboard(head.dashboard_url, local.token, timeout_s=60)
    jobs = RayJobs(dashboard)
    jobs.submit("sleeper", "trap '' INT TERM; sleep 1000 & echo started; wait", env={})
    until(lambda: "started" in jobs.logs("sleeper"))
    dashboard.close()
    LocalHead(home).stop()
    assert not local.alive()
    assert not list(marked(head.session))
    assert not local.temp_dir.parent.exists()
    assert not (home / "ray.json").exists()


def test_directory_planted_by_another_user_is_refused(tmp_path: Path) -> None:
    local = LocalHead(tmp_path)
    planted = local.temp_dir.parent
    os.symlink(tmp_path, planted)
    try:
        with pytest.raises((RayUnavailable, FileExistsError)):
            local.find_or_start()
    finally:
        planted.unlink()


def pid_of(head: Head, part: str) -> int:
    if part == "ray start":
        return head.pids[0]
    return next(pid for pid in head.pids[1:] if part in " ".join(psutil.Process(pid).cmdline()[:3]))
