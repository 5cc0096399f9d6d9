"""Check and read artifacts: small files that a trial reports with its metrics. This module needs only the standard library."""

import contextlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

# Limits of one file, of one report, of the files that a trial has at once, and of all files that a job has stored.
MAX_FILE_BYTES = 8 << 20
MAX_IN_REPORT = 16
MAX_TRIAL_FILES = 64
MAX_TRIAL_BYTES = 64 << 20
MAX_JOB_BYTES = 1 << 30
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NAMED = "use up to 100 letters, digits, dots, dashes and underscores, a letter or digit first"


class ArtifactRefused(ValueError):
    """A file cannot be stored as an artifact: its name, kind or size is not allowed."""


class ArtifactLimits:
    """Check that the artifacts of one attempt stay within the limits, and keep the names and sizes of the reported files."""

    def __init__(self, room_bytes: int | None = None) -> None:
        """Create the check for an attempt that has not reported a file yet.

        `room_bytes` is how many bytes the attempt may report in total. None if the limit of a job does not apply, as in a script.
        """
        self._room = room_bytes
        self._sizes: dict[str, int] = {}
        self._total = 0

    def read(self, artifacts: Mapping[str, str | Path]) -> dict[str, bytes]:
        """Return the content of the files by name, and count the files towards the limits.

        Raises:
            ArtifactRefused: A name is not valid, a file cannot be read or is not a regular file, or a limit is exceeded.
        """
        if len(artifacts) > MAX_IN_REPORT:
            raise ArtifactRefused(
                f"a report has {len(artifacts)} artifacts; report at most {MAX_IN_REPORT} at once"
            )
        files = {name: _content(name, path) for name, path in artifacts.items()}
        sizes = {**self._sizes, **{name: len(data) for name, data in files.items()}}
        total = self._total + sum(map(len, files.values()))
        if len(sizes) > MAX_TRIAL_FILES:
            raise ArtifactRefused(
                f"{len(sizes)} artifacts are too many for a trial, which may have {MAX_TRIAL_FILES}; report a name again to replace its file"
            )
        if sum(sizes.values()) > MAX_TRIAL_BYTES:
            raise ArtifactRefused(
                f"{sum(sizes.values())} bytes of artifacts are too many for a trial, which may have {MAX_TRIAL_BYTES} bytes; report smaller files"
            )
        check_room(total, self._room)
        self._sizes, self._total = sizes, total
        return files


def check_room(total_bytes: int, room_bytes: int | None) -> None:
    """Raise ArtifactRefused if the artifacts of an attempt exceed `room_bytes`, the unused rest of the job's limit. None means no limit."""
    if room_bytes is not None and total_bytes > room_bytes:
        raise ArtifactRefused(
            f"{total_bytes} bytes of artifacts are too many: a job may have {MAX_JOB_BYTES} bytes, of which {room_bytes} were left for this "
            "attempt; report fewer or smaller files"
        )


class ArtifactFolder:
    """A directory whose files are reported as artifacts when they are new or have changed.

    Directories, links, and files whose names begin with a dot are ignored. If a report could come while a file is being written, write the
    file under a name with a dot and then rename it.
    """

    def __init__(self, path: str | Path) -> None:
        """Create the object for the directory `path`, which need not exist yet. All its files count as new."""
        self._path = Path(path)
        self._reported: dict[str, tuple[int, int, int]] = {}

    def changed(self) -> dict[str, Path]:
        """Return the files that are new or have changed since the last call, by name."""
        seen: dict[str, tuple[int, int, int]] = {}
        for entry in os.scandir(self._path) if self._path.is_dir() else ():
            if not entry.name.startswith(".") and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(
                    FileNotFoundError
                ):  # the file may have been removed since the directory was listed
                    about = entry.stat(follow_symlinks=False)
                    seen[entry.name] = (about.st_ino, about.st_mtime_ns, about.st_size)
        changed = [name for name in sorted(seen) if seen[name] != self._reported.get(name)]
        self._reported = seen
        return {name: self._path / name for name in changed}


def folder_of(staging: Path, step: int) -> Path:
    """Return the directory in which the child process stores the artifacts of a step's report for its supervisor."""
    return staging / f"artifacts_{step:08d}"


def stage(staging: Path, step: int, files: Mapping[str, bytes]) -> None:
    """Write the artifacts of a step's report to their directory, from which the supervisor reads them."""
    folder = folder_of(staging, step)
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def _content(name: object, path: str | Path) -> bytes:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ArtifactRefused(f"{name!r:.120} is not a valid name for an artifact: {NAMED}")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, TypeError, ValueError) as error:
        raise ArtifactRefused(f"artifact {name}: {path!r} cannot be read: {error}") from error
    try:
        return read_bounded(handle, name)
    finally:
        os.close(handle)


def read_bounded(handle: int, name: str) -> bytes:
    """Return the content of an open file. Raise ArtifactRefused if it is not a regular file or has more than `MAX_FILE_BYTES`."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise ArtifactRefused(f"artifact {name} is not a regular file")
    chunks, size = [], 0
    while chunk := os.read(handle, 1 << 20):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_FILE_BYTES:
            raise ArtifactRefused(f"artifact {name} has more than {MAX_FILE_BYTES} bytes")
    return b"".join(chunks)
