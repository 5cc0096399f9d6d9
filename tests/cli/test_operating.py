"""`tuner migrate`, as an operator calls it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli.main import app
from tuner.store.database import Database, newest_revision


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    return f"sqlite:///{tmp_path}/tuner.db"


@pytest.mark.usefixtures("url")
def test_migrate_says_from_where_to_where() -> None:
    said = CliRunner().invoke(app, ["migrate"])
    assert said.exit_code == 0
    assert said.stdout == f"the database was empty, and is at {newest_revision()}\n"
    again = CliRunner().invoke(app, ["migrate", "--json"])
    assert json.loads(again.stdout) == {"before": newest_revision(), "after": newest_revision()}


def test_migrate_refuses_a_newer_database_with_status_1(url: str) -> None:
    assert CliRunner().invoke(app, ["migrate"]).exit_code == 0
    database = Database(url)
    with database.write() as db:
        db.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    database.dispose()
    said = CliRunner().invoke(app, ["migrate"])
    assert said.exit_code == 1
    assert "newer version" in said.stderr
