"""Upgrades of the database before services start, and how remote drivers find its URL."""

import tempfile
from pathlib import Path

import pytest

from tests.upgrades import made_up
from tuner.database.database import Database, newest_revision
from tuner.domain.errors import Conflict, Invalid
from tuner.service.bootstrap import build, keep_url
from tuner.service.cluster import driver_env
from tuner.service.maintenance import Migrated, downgrade, migrate
from tuner.service.sole_use import CommandTerm, term_of
from tuner.settings import Settings
from tuner.worker.limits import UserCodeLimits


def test_empty_database_is_migrated_once(tmp_path: Path) -> None:
    settings = Settings.from_env({"TUNER_HOME": str(tmp_path / "home")})
    assert migrate(settings) == Migrated(Database(settings.database_url).address, None, newest_revision())
    assert migrate(settings) == Migrated(
        Database(settings.database_url).address, newest_revision(), newest_revision()
    )


def test_downgrade_requires_an_earlier_revision_and_stopped_services(tmp_path: Path) -> None:
    settings, before = Settings.from_env({"TUNER_HOME": str(tmp_path / "home")}), newest_revision()
    migrate(settings)
    with made_up.known(tmp_path / "newer"):
        migrate(settings)
        for wrong in ("9999", "base", made_up.REVISION):
            with pytest.raises(
                Invalid, match=f"not a revision before {made_up.REVISION}; the earlier revisions: {before}"
            ):
                downgrade(settings, wrong)
        service = build(settings)
        assert service.leading.term() is not None
        with pytest.raises(Conflict, match="stop it and all other services, and wait for ten seconds"):
            downgrade(settings, before)
        service.leading.give_up()
        with term_of(service.database, "`tuner restore`"):
            with pytest.raises(Conflict, match="a service or command uses this database: `tuner restore`"):
                downgrade(settings, before)
            with pytest.raises(Conflict, match="wait for ten seconds"):
                CommandTerm(service.database, "another command")
        service.database.dispose()
        assert downgrade(settings, before) == Migrated(
            Database(settings.database_url).address, made_up.REVISION, before
        )
        assert migrate(settings) == Migrated(
            Database(settings.database_url).address, before, made_up.REVISION
        )
        assert downgrade(settings, before).after == before
        with pytest.raises(Invalid, match=f"not a revision before {before}; the earlier revisions: none"):
            downgrade(settings, before)


def test_drivers_receive_the_url_file_and_never_the_url(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(f"sqlite:///{tmp_path}/tuner.db\n")
    settings = Settings.from_env(
        {"TUNER_HOME": str(tmp_path / "home"), "TUNER_DATABASE_URL_FILE": str(file), "TUNER_RAY_ADDRESS": "h"}
    )
    service = build(settings)
    env = driver_env(settings, {})
    service.database.dispose()
    assert env["TUNER_DATABASE_URL_FILE"] == str(file)
    assert "TUNER_DATABASE_URL" not in env
    assert not (tmp_path / "home/database_url").exists()


@pytest.mark.parametrize(
    "url", ["postgresql://u:secret@h/db", "postgresql:///db?host=h&user=u&password=secret"]
)
def test_url_with_a_password_is_passed_in_a_file_of_the_home(url: str) -> None:
    settings = Settings.from_env({"TUNER_HOME": "/srv/tuner", "TUNER_DATABASE_URL": url})
    env = driver_env(settings, {})
    assert env["TUNER_DATABASE_URL_FILE"] == "/srv/tuner/database_url"
    assert "secret" not in str(env)


def test_drivers_and_workers_receive_the_class_and_tags_of_checkpoints() -> None:
    given = {"TUNER_STORAGE_CLASS": "STANDARD_IA", "TUNER_STORAGE_TAGS": "kind=checkpoint"}
    assert given.items() <= driver_env(Settings.from_env(given), {}).items()


def test_drivers_and_workers_receive_limits_and_passed_variables() -> None:
    given = {
        "TUNER_MAX_PROCESSES": "100",
        "TUNER_MAX_OPEN_FILES": "2000",
        "TUNER_PASS_ENV": "WANDB_*, HF_TOKEN",
    }
    limits = UserCodeLimits.from_env(driver_env(Settings.from_env(given), {}))
    assert limits == UserCodeLimits(processes=100, open_files=2000, passed=("WANDB_*", "HF_TOKEN"))
    assert (
        UserCodeLimits.from_env(driver_env(Settings.from_env({}), {}))
        == UserCodeLimits.from_env({})
        == UserCodeLimits()
    )


def test_cache_of_the_service_replaces_that_of_a_machine() -> None:
    """Without a setting of the service, a machine's own variables apply, and its directory for temporary files."""

    def seen(service: dict[str, str], machine: dict[str, str]) -> tuple[str, str]:
        environ = {**machine, **driver_env(Settings.from_env(service), {})}
        child = UserCodeLimits.from_env(environ).environment(environ, [])
        return child["TUNER_CACHE_DIR"], child["TUNER_CACHE_GIB"]

    machine = {"TUNER_CACHE_DIR": "/disk", "TUNER_CACHE_GIB": "7"}
    assert seen({}, {}) == (tempfile.gettempdir(), "20")
    assert seen({}, machine) == ("/disk", "7")
    assert seen({"TUNER_CACHE_DIR": "/big", "TUNER_CACHE_GIB": "9"}, machine) == ("/big", "9")


def test_unchanged_url_file_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "database_url"
    keep_url(path, "postgresql://u:old@h/d")
    before = path.stat()
    keep_url(path, "postgresql://u:old@h/d")
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    keep_url(path, "postgresql://u:new@h/d")
    assert path.read_text() == "postgresql://u:new@h/d"
    assert path.stat().st_mode & 0o777 == 0o600
