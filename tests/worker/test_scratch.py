"""Test removing the directories of processes that were killed."""

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import pytest

from tuner.worker.scratch import LOCK, Scratch


def test_processes_that_start_at_once_keep_their_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lock, others = fcntl.flock, list[Scratch]()

    def lock_late(file: IO[bytes], how: int) -> None:
        """Start another process, represented by its directory, just before the first one locks its own."""
        monkeypatch.setattr(fcntl, "flock", lock)
        others.append(Scratch("worker"))
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    folders = [Scratch("worker"), *others]
    assert [folder.path.exists() for folder in folders] == [True, True]
    for folder in folders:
        folder.close()
    assert list(tmp_path.iterdir()) == []


def test_entries_of_other_users_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user can create directories in `/tmp`. Only an own directory without a live process is removed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, link, elsewhere = tmp_path / "tuner-worker-a", tmp_path / "tuner-worker-b", tmp_path / "c"
    for folder in (left, elsewhere):
        folder.mkdir()
        (folder / LOCK).touch()
    link.symlink_to(elsewhere)
    own = os.getuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: own + 1)
        Scratch("worker").close()
        assert left.exists()
    Scratch("worker").close()
    assert not left.exists()
    assert link.is_symlink()


def test_lock_file_that_is_a_fifo_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "tuner-worker-a").mkdir()
    os.mkfifo(tmp_path / "tuner-worker-a" / LOCK)
    code = (
        "import tempfile; from tuner.worker.scratch import Scratch\n"
        f"tempfile.tempdir = {str(tmp_path)!r}; Scratch('worker').close()"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_next_process_removes_scratch_of_a_killed_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import tempfile, time; from tuner.worker.scratch import Scratch\n"
        f"tempfile.tempdir = {str(tmp_path)!r}; one = Scratch('worker'); print(one.path, flush=True); time.sleep(1000)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    theirs = Path(process.stdout.readline().strip())
    while_it_lives = Scratch("worker")
    assert theirs.exists()
    process.kill()
    process.wait()
    after = Scratch("worker")
    assert not theirs.exists()
    assert while_it_lives.path.exists()
    for scratch_folder in (while_it_lives, after):
        scratch_folder.close()
    assert list(tmp_path.iterdir()) == []
