"""Settings come from the environment. An invalid value is refused with the name of its variable, and secrets are not shown."""

from pathlib import Path

import pytest

from tuner.settings import Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TUNER_PORT", "http"),
        ("TUNER_PORT", "70000"),
        ("TUNER_NODE_PRICES", "local"),
        ("TUNER_NODE_PRICES", "local=-1"),
        ("TUNER_NODE_PRICES", "local=nan"),
        ("TUNER_LOCAL_CPUS", "0"),
        ("TUNER_SLICE", "0.1"),
        ("TUNER_SPOT_WAIT", "forever"),
        ("TUNER_PASS_ENV", "RAY_AUTH_TOKEN"),
        ("TUNER_PASS_ENV", "HOME,TUNER_*"),
        ("TUNER_PASS_ENV", "*"),
        ("TUNER_PASS_ENV", "A=b"),
        ("TUNER_MAX_PROCESSES", "0"),
        ("TUNER_MAX_OPEN_FILES", "many"),
        ("TUNER_IMPORT_MEMORY_GIB", "0.5"),
        ("TUNER_CLOUD", "oracle"),
        ("TUNER_METADATA_URL", "169.254.169.254"),
        ("TUNER_RATE_LIMIT", "0"),
        ("TUNER_CACHE_GIB", "0"),
        ("TUNER_STORAGE", "http://169.254.169.254/latest"),
        ("TUNER_STORAGE", "https://10.0.0.1/bucket"),
        ("TUNER_STORAGE", "simplecache::http://127.0.0.1/x"),
        ("TUNER_STORAGE", "s3::http://127.0.0.1/x"),
        ("TUNER_STORAGE", "ftp://files.internal/x"),
        ("TUNER_STORAGE", "gopher://127.0.0.1:6379/x"),
        ("TUNER_STORAGE", "s3://key:secret@bucket/path"),
    ],
)
def test_invalid_value_is_refused_with_the_name_of_the_variable(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        Settings.from_env({name: value})


@pytest.mark.parametrize("space", ["\n", "\r\n", " ", "\t"])
def test_space_around_the_key_is_removed(space: str) -> None:
    assert Settings.from_env({"TUNER_API_KEY": f"{space}tk_1{space}"}).given_api_key == "tk_1"


@pytest.mark.parametrize("name", ["TUNER_API_KEY", "TUNER_PROJECT"])
@pytest.mark.parametrize("value", ["secret\nkey", "secret key", "secret\x7f", "secret\u201d"])
def test_value_that_a_header_cannot_hold_is_refused_without_printing_it(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} ") as caught:
        Settings.from_env({name: value})
    assert "secret" not in str(caught.value)


def test_generated_key_is_kept_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    settings = Settings.from_env({"TUNER_HOME": str(tmp_path / "home")})
    key = settings.api_key()
    assert settings.api_key() == key
    assert len(key) > 40
    assert settings.api_key_path.stat().st_mode & 0o777 == 0o600
    assert key not in repr(settings)


def test_database_url_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("postgresql://u:secret@host/db\n")
    settings = Settings.from_env({"TUNER_DATABASE_URL_FILE": str(file)})
    assert settings.database_url == "postgresql://u:secret@host/db"
    assert settings.database_url_path == file
    assert "secret" not in repr(settings)


def test_missing_database_url_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"TUNER_DATABASE_URL_FILE: .*nowhere cannot be read"):
        Settings.from_env({"TUNER_DATABASE_URL_FILE": str(tmp_path / "nowhere")})


@pytest.mark.parametrize("home", ["/proc/nowhere", "/etc/hostname", "/etc/hostname/inside"])
def test_unusable_home_is_refused_with_what_to_do(home: str) -> None:
    with pytest.raises(
        ValueError, match=f"^TUNER_HOME: {home} cannot be created: .*; set TUNER_HOME to a directory"
    ):
        Settings.from_env({"TUNER_HOME": home}).make_home()
