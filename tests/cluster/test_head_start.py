"""Test the start of a local Ray head with a program in place of Ray, which never becomes ready."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cluster.waiting import is_dead, until
from tuner.cluster import head as head_module
from tuner.cluster.dashboard import RayUnavailable
from tuner.cluster.head import LocalHead
from tuner.cluster.launch import HeadLaunch, tail
from tuner.cluster.processes import marked

# Starts a head with a program in place of Ray. Prints "start" at each try, and then the error.
START_SLOW_RAY = """
import sys
from pathlib import Path
from tuner.cluster.dashboard import RayUnavailable
from tuner.cluster.head import LocalHead
from tuner.cluster.launch import HeadLaunch
def command(_):
    print("start", flush=True)
    return [sys.executable, "-S", "-c", "import time; time.sleep(1000)"]
HeadLaunch.command = command
try:
    LocalHead(Path(sys.argv[1])).find_or_start()
except RayUnavailable as error:
    print(error.detail)
"""


def run_instead_of_ray(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(HeadLaunch, "command", lambda _: [sys.executable, "-S", "-c", program])


def test_stop_ends_a_start_in_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead_of_ray(monkeypatch, "import time; time.sleep(1000)")
    local = LocalHead(tmp_path)
    errors = []

    def start() -> None:
        with pytest.raises(RayUnavailable) as raised:
            local.find_or_start()
        errors.append(raised.value.detail)

    starts = threading.Thread(target=start)
    starts.start()
    until(lambda: bool(list(marked(f"{local.tag}-"))))
    local.stop()
    starts.join()
    assert errors == ["the local Ray head was stopped while it started"]
    assert not list(marked(f"{local.tag}-"))
    assert not local.temp_dir.parent.exists()


def test_stop_ends_a_start_in_another_process(tmp_path: Path) -> None:
    local = LocalHead(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", START_SLOW_RAY, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        until(lambda: bool(list(marked(f"{local.tag}-"))))
        local.stop()
        shown = process.communicate(timeout=240)[0].splitlines()
    assert shown == ["start", "`tuner stop` ended the local Ray head while it started"]
    assert not list(marked(f"{local.tag}-"))
    assert not local.temp_dir.parent.exists()


def test_head_starts_again_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead_of_ray(monkeypatch, "import sys; sys.exit(7)")
    LocalHead(tmp_path).stop()
    with pytest.raises(RayUnavailable, match="ended with status 7"):
        LocalHead(tmp_path).find_or_start()


def test_next_start_ends_the_half_started_head_of_a_killed_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed process has recorded no process id of the head."""
    local = LocalHead(tmp_path)
    with subprocess.Popen([sys.executable, "-c", START_SLOW_RAY, str(tmp_path)]) as process:
        until(lambda: bool(list(marked(f"{local.tag}-"))))
        process.kill()
    assert json.loads((tmp_path / "ray.json").read_text())["pids"] == []
    half_started = list(marked(f"{local.tag}-"))
    assert half_started, "it outlives the process that started it"
    run_instead_of_ray(monkeypatch, "import time; time.sleep(1000)")
    monkeypatch.setattr(head_module, "RAY_START_S", 0.0)
    with pytest.raises(RayUnavailable, match="was not ready in time"):
        local.find_or_start()
    assert all(is_dead(left) for left in half_started)
    assert not list(marked(f"{local.tag}-"))


def test_head_that_is_not_ready_in_time_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead_of_ray(monkeypatch, "import time; time.sleep(1000)")
    monkeypatch.setattr(head_module, "RAY_START_S", 0.0)
    with pytest.raises(RayUnavailable, match="was not ready in time"):
        LocalHead(tmp_path).find_or_start()


def test_tail_of_a_log_begins_at_a_line_and_has_no_escape_sequences(tmp_path: Path) -> None:
    log = tmp_path / "ray.log"
    assert tail(log) == ""
    log.write_text("\x1b[32mLocal node IP\x1b[39m: 127.0.0.1\n\x1b[1mRay runtime started.\x1b[22m\n")
    assert tail(log) == "Local node IP: 127.0.0.1\nRay runtime started."
    assert tail(log, bytes_max=30) == "Ray runtime started."
    assert tail(log, bytes_max=20) == "Ray runtime started."
    assert tail(log, bytes_max=8) == "started."
