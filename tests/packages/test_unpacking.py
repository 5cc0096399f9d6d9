"""Test packages in the storage and on a machine: only the uploaded content is used, even if a copy was changed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packages.making import plain
from tuner.worker.packages import PackageLost, Stored, id_of, unpack

FILES = {"mine.py": "VALUE = 1\n", "helper/__init__.py": "", "helper/data.json": "{}"}


@pytest.fixture
def package(tmp_path: Path) -> Stored:
    """A package in the storage."""
    data = plain(FILES)
    package = Stored(str(tmp_path / "storage"), "default", id_of(data))
    package.put(data)
    return package


@pytest.fixture
def file(package: Stored, tmp_path: Path) -> Path:
    """The file of the package in the storage."""
    return tmp_path / f"storage/default/packages/{package.digest}.zip"


def contents(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_package_is_stored_by_digest_and_unpacked_unchanged_and_read_only(
    package: Stored, file: Path, tmp_path: Path
) -> None:
    assert file.read_bytes() == plain(FILES)
    assert list(file.parent.iterdir()) == [file]
    unpacked = unpack(package, tmp_path / "here")
    assert unpacked == tmp_path / "here" / package.digest
    assert contents(unpacked) == FILES
    assert {path.stat().st_mode & 0o222 for path in [unpacked, *unpacked.rglob("*")]} == {0}


@pytest.mark.parametrize("how", ["changed", "another package", "cut off", "empty", "missing"])
def test_package_changed_in_the_storage_is_refused_with_a_message(
    package: Stored, file: Path, tmp_path: Path, how: str
) -> None:
    before, message = file.read_bytes(), "was changed in the storage"
    unpacked = unpack(package, tmp_path / "here")
    if how == "missing":
        file.unlink()
        message = "upload it again"
    else:
        damaged = {
            "changed": before.replace(b"mine.py", b"fine.py"),
            "another package": plain({"mine.py": "VALUE = 2\n"}),
            "cut off": before[:-1],
            "empty": b"",
        }
        file.write_bytes(damaged[how])
    with pytest.raises(PackageLost, match=message):
        unpack(package, tmp_path / "here")
    assert contents(unpacked) == FILES


def _change(folder: Path) -> None:
    (folder / "mine.py").write_text("VALUE = 2\n")


def _add(folder: Path) -> None:
    (folder / "helper/json.py").write_text("")


def _compile(folder: Path) -> None:
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/mine.cpython-311.pyc").write_bytes(b"another")


def _remove(folder: Path) -> None:
    (folder / "helper/data.json").unlink()


def _link_file(folder: Path) -> None:
    (folder / "mine.py").unlink()
    (folder / "mine.py").symlink_to(folder.parent.parent / "elsewhere.py")


def _link_folder(folder: Path) -> None:
    (folder / "more").symlink_to(folder.parent.parent)


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe.py")


HARMS = [_change, _add, _compile, _remove, _link_file, _link_folder, _pipe]


@pytest.mark.parametrize("harm", HARMS)
def test_package_changed_on_the_machine_is_unpacked_again(
    package: Stored, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    (tmp_path / "elsewhere.py").write_text(FILES["mine.py"])
    unpacked = unpack(package, tmp_path / "here")
    for path in [unpacked, *unpacked.rglob("*")]:
        path.chmod(0o700)
    harm(unpacked)
    assert contents(unpack(package, tmp_path / "here")) == FILES
    assert not any(path.is_symlink() for path in unpacked.rglob("*"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere.py", "here", "storage"]


@pytest.mark.parametrize("name", ["pkg_../../x", "pkg_" + "A" * 64, "pkg_" + "a" * 63, "", "job_1"])
def test_invalid_package_id_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not the id of a package"):
        Stored(str(tmp_path), "default", name).get()
