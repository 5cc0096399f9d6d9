"""Test packages in the storage and on a machine: only the uploaded content is used, even if a copy was changed."""

import os
import threading
from pathlib import Path

import pytest

from tests.packages.making import plain
from tuner.domain.errors import BadFile
from tuner.worker import packages as shelves
from tuner.worker.packages import Opened, PackageLost, Stored, id_of, opened

FILES = {"mine.py": "VALUE = 1\n", "helper/__init__.py": "", "helper/data.json": "{}"}


def stored(tmp_path: Path, files: dict[str, str] | None = None) -> Stored:
    data = plain(files or FILES)
    package = Stored(str(tmp_path / "storage"), "default", id_of(data))
    package.put(data)
    return package


def take(package: Stored, tmp_path: Path) -> Opened:
    return opened(package, tmp_path / "shelf")


def there(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_package_is_stored_by_digest_and_unpacked_unchanged_and_read_only(tmp_path: Path) -> None:
    package = stored(tmp_path)
    assert (tmp_path / f"storage/default/packages/{package.digest}.zip").read_bytes() == plain(FILES)
    assert os.listdir(tmp_path / "storage/default/packages") == [f"{package.digest}.zip"]
    found = take(package, tmp_path)
    assert found.path.name == package.digest
    assert there(found.path) == FILES
    assert {path.stat().st_mode & 0o222 for path in [found.path, *found.path.rglob("*")]} == {0}
    found.close()


def test_package_is_unpacked_once_and_shared(tmp_path: Path) -> None:
    package = stored(tmp_path)
    first = take(package, tmp_path)
    made = first.path.stat().st_ino
    second = take(package, tmp_path)
    assert second.path == first.path
    assert second.path.stat().st_ino == made
    first.close()
    second.close()


def test_concurrent_users_all_see_the_complete_package(tmp_path: Path) -> None:
    package, found = stored(tmp_path), list[dict[str, str]]()

    def begin() -> None:
        with_it = take(package, tmp_path)
        found.append(there(with_it.path))
        with_it.close()

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [FILES] * 8
    assert [p.name for p in (tmp_path / "shelf").iterdir() if p.is_dir()] == [package.digest]


@pytest.mark.parametrize("how", ["changed", "another package", "cut off", "empty"])
def test_package_changed_in_the_storage_is_refused_with_a_message(tmp_path: Path, how: str) -> None:
    package = stored(tmp_path)
    file = tmp_path / f"storage/default/packages/{package.digest}.zip"
    before = file.read_bytes()
    file.write_bytes(
        {
            "changed": before.replace(b"mine.py", b"fine.py"),
            "another package": plain({"mine.py": "VALUE = 2\n"}),
            "cut off": before[:-1],
            "empty": b"",
        }[how]
    )
    with pytest.raises(PackageLost, match="was changed in the storage"):
        take(package, tmp_path)
    assert not (tmp_path / "shelf").exists()


def test_package_missing_in_the_storage_is_refused_despite_a_local_copy(tmp_path: Path) -> None:
    package = stored(tmp_path)
    take(package, tmp_path).close()
    (tmp_path / f"storage/default/packages/{package.digest}.zip").unlink()
    with pytest.raises(PackageLost, match="upload it again"):
        take(package, tmp_path)


def _writable(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o700)


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
def test_package_changed_on_the_machine_is_unpacked_again(tmp_path: Path, harm: object) -> None:
    package = stored(tmp_path)
    (tmp_path / "elsewhere.py").write_text(FILES["mine.py"])
    found = take(package, tmp_path)
    _writable(found.path)
    harm(found.path)  # type: ignore[operator]
    found.close()
    again = take(package, tmp_path)
    assert there(again.path) == FILES
    assert not any(path.is_symlink() for path in again.path.rglob("*"))
    assert [p.name for p in (tmp_path / "shelf").iterdir() if p.is_dir()] == [package.digest]
    again.close()


def test_package_folder_that_others_can_write_to_or_symlink_is_refused(tmp_path: Path) -> None:
    package = stored(tmp_path)
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf").chmod(0o777)
    with pytest.raises(PermissionError, match="nobody else may write"):
        take(package, tmp_path)
    (tmp_path / "shelf").rmdir()
    (tmp_path / "own").mkdir()
    (tmp_path / "shelf").symlink_to(tmp_path / "own")
    with pytest.raises(PermissionError, match="nobody else may write"):
        take(package, tmp_path)


def test_unused_packages_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used, left, new = (stored(tmp_path, {"mine.py": f"VALUE = {n}\n"}) for n in range(3))
    in_use = take(used, tmp_path)
    take(left, tmp_path).close()
    for package in (used, left):
        os.utime(tmp_path / f"shelf/{package.digest}.used", (1, 1))
    take(new, tmp_path).close()
    assert {p.name for p in (tmp_path / "shelf").iterdir() if p.is_dir()} == {used.digest, new.digest}
    in_use.close()
    monkeypatch.setattr(shelves, "KEPT_S", -1.0)
    take(left, tmp_path).close()
    assert {p.name for p in (tmp_path / "shelf").iterdir() if p.is_dir()} == {left.digest}


@pytest.mark.parametrize("name", ["pkg_../../x", "pkg_" + "A" * 64, "pkg_" + "a" * 63, "", "job_1"])
def test_invalid_package_id_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no id"):
        Stored(str(tmp_path), "default", name).get()


def test_package_that_cannot_be_unpacked_leaves_no_files(tmp_path: Path) -> None:
    data = plain({"data.json": "{}"})
    package = Stored(str(tmp_path / "storage"), "default", id_of(data))
    package.put(data)
    with pytest.raises(BadFile):
        take(package, tmp_path)
    assert [p for p in (tmp_path / "shelf").iterdir() if p.is_dir()] == []
