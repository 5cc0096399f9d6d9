"""Test that other users of the machine cannot read a SQLite database, which contains the keys of webhooks."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.fakes import database_in
from tuner.database.database import Database
from tuner.store.copies import put_in_place


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.glob("tuner.db*")}


def test_new_database_and_its_logs_are_readable_by_the_owner_only(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/tuner.db").engine.connect()):
        assert modes(tmp_path) == {"tuner.db": 0o600}
    database = Database(f"sqlite:///{tmp_path}/tuner.db")
    database.migrate()
    with database.read():
        assert set(modes(tmp_path).values()) == {0o600}
    database.dispose()


def test_restored_database_is_readable_by_the_owner_only(tmp_path: Path) -> None:
    database_in(tmp_path / "from").dispose()
    (tmp_path / "to").mkdir()
    put_in_place(tmp_path / "from" / "tuner.db", tmp_path / "to" / "tuner.db")
    assert modes(tmp_path / "to") == {"tuner.db": 0o600}


def test_start_takes_rights_from_other_users_only(tmp_path: Path) -> None:
    database = database_in(tmp_path)
    database.use_write_ahead_log()
    with database.write():
        before = modes(tmp_path)
        for name in before:
            (tmp_path / name).chmod(0o664)
    database.migrate()
    assert modes(tmp_path) == dict.fromkeys(before, 0o660)
    database.dispose()
