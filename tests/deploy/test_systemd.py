"""systemd accepts the units. They start existing commands and sandbox the service."""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY, ROOT, unit
from tests.deploy.stand_ins import Scratch
from tools.checks.blocks import CONSOLE, PROGRAMS, blocks, commands, words_of
from tuner.settings import Settings

FOLDER = DEPLOY / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))


def startable(path: Path, folder: Path) -> Path:
    """Return a copy of the unit with programs that exist on this machine, as systemd requires."""
    copy = folder / path.name
    copy.write_text(re.sub(r"(ExecStart(?:Post)?=-?)\S+", rf"\1{sys.executable}", path.read_text()))
    return copy


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_unit(path: Path, tmp_path: Path) -> None:
    completed = subprocess.run(
        ["systemd-analyze", "verify", startable(path, tmp_path)], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0
    assert path.name not in completed.stderr


@pytest.mark.needs("systemd-analyze")
def test_systemd_reports_an_unknown_key(tmp_path: Path) -> None:
    wrong = startable(FOLDER / "tuner.service", tmp_path)
    wrong.write_text(wrong.read_text().replace("ProtectHome=", "ProtectHouse="))
    completed = subprocess.run(
        ["systemd-analyze", "verify", wrong], capture_output=True, text=True, check=False
    )
    assert "ProtectHouse" in completed.stderr


@pytest.mark.needs("systemd-analyze")
def test_service_sandbox_has_low_exposure(tmp_path: Path) -> None:
    words = ["systemd-analyze", "security", "--offline=true", "--json=short", "--no-pager"]
    startable_unit = startable(FOLDER / "tuner.service", tmp_path)
    completed = subprocess.run(
        [*words, "--threshold=30", startable_unit], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, "its exposure is above 3 of 10"
    assert json.loads(completed.stdout)


def test_service_runs_tuner_serve_as_a_non_root_user() -> None:
    service = unit(FOLDER / "tuner.service")
    assert shlex.split(service["ExecStart"]) == ["/opt/tuner/bin/tuner", "serve"]
    assert service["User"] == "tuner"
    assert service["Restart"] == "always"
    assert service["KillMode"] == "process", "Ray goes on with the jobs that run"


def test_start_waits_until_the_service_is_ready() -> None:
    """Otherwise the submission that follows in the README would find no service."""
    answers = [503, 503, 200]

    class Starting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/readyz"
            self.send_response(answers.pop(0))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    _, *words = shlex.split(unit(FOLDER / "tuner.service")["ExecStartPost"])
    with HTTPServer(("127.0.0.1", 0), Starting) as there:
        threading.Thread(target=there.serve_forever, daemon=True).start()
        env = {**os.environ, "TUNER_URL": f"http://127.0.0.1:{there.server_port}"}
        subprocess.run([sys.executable, *words], env=env, check=True)
        there.shutdown()
    assert answers == []


def test_home_is_the_writable_state_directory() -> None:
    service_unit = unit(FOLDER / "tuner.service")
    text = (FOLDER / "tuner.service").read_text()
    assert (
        Settings.from_env({"TUNER_HOME": "/var/lib/tuner"}).home
        == Path("/var/lib") / service_unit["StateDirectory"]
    )
    assert "Environment=TUNER_HOME=/var/lib/tuner\n" in text
    assert "/tmp" in service_unit["ReadWritePaths"].split()
    assert "PrivateTmp" not in service_unit


@pytest.mark.parametrize("name", ["docs/upgrading.md", "docs/backup.md", "deploy/systemd/README.md"])
def test_documented_commands_for_the_server_use_the_settings_of_the_service(name: str) -> None:
    """Otherwise they would act on the database in the home of the user who calls them."""
    of_server = [
        line
        for block in blocks(ROOT / name)
        if block.language in CONSOLE and ("systemctl" in block.text or "install.sh" in block.text)
        for line in commands(block)
        if Path(words_of(line)[0]).name in PROGRAMS
    ]
    assert len(of_server) >= 1
    for line in of_server:
        assert line.startswith("sudo tuner-admin "), line


def test_documented_rehearsal_of_a_restore_leaves_the_database_of_the_service_unchanged() -> None:
    """`tuner-admin` ignores TUNER_HOME and always uses the database of the service."""
    lines = [
        line for block in blocks(ROOT / "docs/backup.md") for line in commands(block) if "TUNER_HOME=" in line
    ]
    assert [words_of(line)[:2] for line in lines] == [
        ["tuner", "restore"],
        ["/opt/tuner/bin/tuner", "restore"],
    ]
    assert lines[1].startswith("sudo -u tuner TUNER_HOME=/tmp/rehearsal /opt/tuner/bin/tuner ")


@pytest.mark.parametrize("changes", ["migrate", "--to"])
def test_documented_upgrade_stops_if_its_backup_fails(changes: str, tmp_path: Path) -> None:
    """Each backup has another name, because `tuner backup` overwrites no file."""
    (block,) = [
        block
        for block in blocks(ROOT / "docs/upgrading.md")
        if "install.sh" in block.text and ("--to" in block.text) == (changes == "--to")
    ]
    # Only these programs have stand-ins. Any other would run on this machine.
    programs = {part.split()[0] for part in re.split(r"[&|;\n]+", block.text) if part.strip()}
    assert programs == {"sudo", "git"}
    scratch = Scratch(tmp_path)
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    for status in (0, 1):
        scratch.stand_in("git")
        scratch.stand_in("sudo", (("backup", status, ""),))
        subprocess.run(["bash", "-c", block.text], env=env, stdin=subprocess.DEVNULL, check=False)
        called = scratch.called()
        assert any(changes in words for words in called) == (status == 0)
        assert ("git" in {words[0] for words in called}) == (status == 0)
        (file,) = [words[-1] for words in called if "backup" in words]
        assert re.search(r"-\d{4}-\d\d-\d\d-\d{4}\.backup$", file)


def test_settings_of_the_example_file_are_valid() -> None:
    lines = re.findall(r"^#(TUNER_\w+)=(.*)$", (FOLDER / "tuner.env").read_text(), re.MULTILINE)
    assert len(lines) >= 5
    Settings.from_env({name: value for name, value in lines if not name.endswith("_FILE")})


def test_sandbox_of_the_service_hides_no_gpus() -> None:
    service_unit = unit(FOLDER / "tuner.service")
    # In older versions of systemd, ProtectClock implies a list of allowed devices without GPUs.
    assert not {"PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock"} & set(service_unit)
    # The clock is protected all the same.
    assert service_unit["CapabilityBoundingSet"] == ""
