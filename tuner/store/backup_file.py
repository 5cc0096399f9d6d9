"""The backup file: a zip archive with a copy of the database and a description of the copy. A digest protects the description.

The copy is a SQLite database or a dump for pg_restore. `unzip` can extract it without tuner.
"""

import hashlib
import json
import os
import zipfile
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Literal

from tuner.domain.errors import BadFile
from tuner.domain.time import Instant

Kind = Literal["sqlite", "postgresql"]
FORMAT = 1
ABOUT = "backup.json"
NAMES: dict[str, str] = {"sqlite": "tuner.db", "postgresql": "tuner.dump"}
BLOCK = 1 << 20
ABOUT_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class About:
    """The description of a backup."""

    tuner: str
    revision: str
    kind: Kind
    taken_at: Instant  #: When copying began. The copy may lack changes that were made after this time.
    jobs: int
    size_bytes: int  #: Size of the copy.
    sha256: str  #: Digest of the copy.
    format: int = FORMAT


def pack(copy: Path, about: About, to: Path) -> None:
    """Write the copy and its description to the backup file `to`, which must not exist yet, and sync the file to disk."""
    handle = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    # The output of pg_dump is already compressed.
    how = zipfile.ZIP_DEFLATED if about.kind == "sqlite" else zipfile.ZIP_STORED
    with os.fdopen(handle, "wb") as file:
        with zipfile.ZipFile(file, "w", how, compresslevel=1) as packed:
            packed.writestr(ABOUT, json.dumps({**asdict(about), "seal": _seal(about)}, indent=2))
            with copy.open("rb") as source, packed.open(NAMES[about.kind], "w", force_zip64=True) as inside:
                while block := source.read(BLOCK):
                    inside.write(block)
        file.flush()
        os.fsync(file.fileno())


def unpack(file: Path, to: Path) -> About:
    """Extract the copy of the database from the backup to the new file `to`, and return its description.

    Raises:
        BadFile: The file is not a backup, or was altered after it was written.
    """
    try:
        with zipfile.ZipFile(file) as packed:
            with packed.open(ABOUT) as about_file:
                about = _about(about_file.read(ABOUT_BYTES))
            members = sorted(packed.namelist())
            if members != sorted((ABOUT, NAMES[about.kind])):
                other = next((name for name in members if name not in (ABOUT, NAMES[about.kind])), members[0])
                raise BadFile(
                    f"{file} was altered: its member {other[:100]!r} is unknown or occurs twice; use another backup"
                )
            with packed.open(NAMES[about.kind]) as inside, _private(to) as target:
                digest_and_size = _copied(inside, target, about.size_bytes)
    except OSError as error:
        raise BadFile(f"{file} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError) as error:
        # zipfile raises RuntimeError if a member is encrypted or uses an unsupported compression.
        raise BadFile(
            f"{file} is not a backup of tuner, or a part of it is missing or altered: {error}; use another backup"
        ) from error
    if digest_and_size != (about.sha256, about.size_bytes):
        raise BadFile(
            f"{file} was altered: the digest of its copy of the database does not match; use another backup"
        )
    return about


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _about(data: bytes) -> About:
    try:
        fields = json.loads(data)
        seal, version = fields.pop("seal"), fields["format"]
        about = About(**fields) if version == FORMAT else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFile(f"the description in the backup cannot be read: {error}; use another backup") from error
    if about is None:
        raise BadFile(
            f"the backup has format {version}, but this version of tuner reads format {FORMAT}: restore it with a newer version of tuner"
        )
    if not _is_possible(about) or seal != _seal(about) or about.kind not in NAMES:
        raise BadFile("the description in the backup was altered; use another backup")
    return about


def _is_possible(about: About) -> bool:
    """Return True if the values of the description have valid types and ranges.

    This is checked in addition to the digest of the description, because somebody who alters a backup can also recompute the digest.
    """
    words = (about.tuner, about.revision, about.kind, about.sha256)
    counts = (about.taken_at, about.jobs, about.size_bytes)
    return all(type(word) is str for word in words) and all(
        type(count) is int and 0 <= count < 2**63 for count in counts
    )


def _seal(about: About) -> str:
    return hashlib.sha256(json.dumps(asdict(about), sort_keys=True).encode()).hexdigest()


def _private(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _copied(source: IO[bytes], target: IO[bytes], size_max: int) -> tuple[str, int]:
    """Copy `source` to `target`, and return the SHA-256 and the size of the copy.

    Copying stops at the first block that exceeds `size_max` bytes, because a small zip file can unpack to a file that fills the disk.
    """
    seen, size = hashlib.sha256(), 0
    while size <= size_max and (block := source.read(BLOCK)):
        seen.update(block)
        size += target.write(block)
    return seen.hexdigest(), size
