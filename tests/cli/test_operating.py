"""The operator's commands: `tuner migrate`, `tuner doctor` and `tuner dashboard`."""

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.conftest import Tuner
from tests.upgrades import made_up
from tuner.cli import server
from tuner.cli.main import app
from tuner.database.database import Database, newest_revision


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    return f"sqlite:///{tmp_path}/tuner.db"


def test_migrate_prints_the_database_and_its_revisions_before_and_after(url: str) -> None:
    """Without TUNER_HOME, root would migrate a database in root's own home."""
    result = CliRunner().invoke(app, ["migrate"])
    assert result.exit_code == 0
    assert result.stdout == f"database: {url}\nthe database was empty, and is at {newest_revision()}\n"
    again = CliRunner().invoke(app, ["migrate", "--json"])
    assert json.loads(again.stdout) == {
        "database": url,
        "before": newest_revision(),
        "after": newest_revision(),
    }


def test_migrate_downgrades_to_a_given_revision(url: str, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["migrate"]).exit_code == 0
    with made_up.known(tmp_path / "newer"):
        assert CliRunner().invoke(app, ["migrate"]).exit_code == 0
        result = CliRunner().invoke(app, ["migrate", "--to", "0028"])
        assert result.stdout.splitlines() == [
            f"database: {url}",
            f"the database was at revision {made_up.REVISION}, and is at 0028",
        ]
        again = CliRunner().invoke(app, ["migrate", "--to", "0022"])
        assert again.exit_code == 1
        assert "'0022' is not a revision before 0028; the earlier revisions: none" in again.stderr


def test_migrate_refuses_a_newer_database_with_status_1(url: str) -> None:
    assert CliRunner().invoke(app, ["migrate"]).exit_code == 0
    database = Database(url)
    with database.write() as db:
        db.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    database.dispose()
    result = CliRunner().invoke(app, ["migrate"])
    assert result.exit_code == 1
    assert "newer version" in result.stderr


def parts(output: str) -> dict[str, dict[str, object]]:
    return {finding["part"]: finding for finding in json.loads(output)["findings"]}


@pytest.mark.usefixtures("url")
def test_doctor_reports_no_faults_in_a_new_home_and_leaves_no_files(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert "WRONG" not in result.stdout
    assert not list((tmp_path / "storage").iterdir())


def test_doctor_reports_each_fault_with_its_fix(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CliRunner().invoke(app, ["migrate"]).exit_code == 0
    database = Database(url)
    with database.write() as db:
        db.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    database.dispose()
    (tmp_path / "api_key").write_text("tk_x\n")
    (tmp_path / "api_key").chmod(0o644)
    tmp_path.chmod(0o755)
    (tmp_path / "file").touch()
    monkeypatch.setenv("TUNER_STORAGE", str(tmp_path / "file/storage"))
    monkeypatch.setenv("TUNER_RAY_ADDRESS", "http://127.0.0.1:9")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    findings = parts(result.stdout)
    assert not any(finding["ok"] for finding in findings.values())
    assert "chmod 600" in str(findings["key"]["fix"])
    assert "chmod 700" in str(findings["home"]["fix"])
    assert "run the newer version" in str(findings["database"]["fix"])
    assert "TUNER_STORAGE" in str(findings["storage"]["fix"])
    assert "TUNER_RAY_ADDRESS" in str(findings["ray"]["fix"])
    assert "RAY_AUTH_TOKEN" in str(findings["token"]["fix"])


def test_doctor_reports_an_outdated_database(url: str, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["migrate"]).exit_code == 0
    database = Database(url)
    database.dispose()
    with made_up.known(tmp_path / "newer"):
        result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    assert "tuner migrate" in str(parts(result.stdout)["database"]["fix"])


def test_service_with_unwritable_storage_does_not_start(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert url
    (tmp_path / "file").touch()
    monkeypatch.setenv("TUNER_STORAGE", str(tmp_path / "file/storage"))
    monkeypatch.setenv("TUNER_PORT", "0")
    sockets, listen = list[socket.socket](), server.listen
    monkeypatch.setattr(server, "listen", lambda settings: sockets.append(listen(settings)) or sockets[-1])
    result = CliRunner().invoke(app, ["serve"])
    assert result.exit_code == 1
    assert "create the folder or bucket of TUNER_STORAGE" in result.stderr
    assert [listening.fileno() for listening in sockets] == [-1], "the socket is not closed"


def test_dashboard_opens_the_ray_page_of_a_job_without_the_key_in_its_url(
    tuner: Tuner, done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) is None)
    monkeypatch.setenv("DISPLAY", ":0")
    result = tuner("dashboard", done)
    assert (result.exit_code, result.stderr) == (0, "")
    assert [result.stdout.strip()] == opened == [f"http://tuner/#/ray/{done}"]


def test_dashboard_prints_the_address_if_no_browser_can_be_opened(
    tuner: Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    result = tuner("dashboard")
    assert (result.exit_code, result.stdout) == (0, "http://tuner/#/ray/\n")
    assert "Open the address above" in result.stderr
    assert tuner("dashboard", "job_none").exit_code == 1
