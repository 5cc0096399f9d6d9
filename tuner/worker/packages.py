"""Uploaded packages of user code: check them, store them by digest, and unpack them on the machine that uses them.

An archive may contain only plain files of pure Python and data. These are refused:

- names that may lead outside the folder (absolute, `..`, backslashes, drives) and duplicate names,
- links and devices,
- files that Python runs by itself (`.pth`, `sitecustomize`).

The sizes in the archive's headers are not trusted: the unpacked bytes are counted as they are read. See Snyk's "Zip
Slip" (2018), CWE-22 and CWE-409.

Each process that imports from a package unpacks it again, because user code of the same system user could have changed a
copy that already exists (see SECURITY.md).
"""

import hashlib
import io
import os
import stat
import struct
import sys
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import IO

from tuner.checkpoints.storage import Storage
from tuner.domain.environment import INSTALLED
from tuner.domain.errors import BadFile
from tuner.domain.ids import PACKAGE_ID, package_id
from tuner.worker.scratch import new_directory

# Top-level modules that a package may not contain.
OURS = frozenset({"tuner", "trainables", "ray", "torch"})
METADATA = (".dist-info", ".egg-info")


def check_tops(names: Iterable[str]) -> None:
    """Raise BadFile if a top-level name of an uploaded package would hide another module.

    Names of Python's standard library, of the service and of installed packages are refused.

    Args:
        names: The names of the files in the package.
    """
    standard = {name.casefold() for name in sys.stdlib_module_names}
    # Of the files at the top level, only Python files can be imported.
    tops = {name.partition("/")[0] for name in names if "/" in name or name.endswith(".py")}
    for name in sorted(tops):
        top = _module(name)
        whose = (
            "a module of Python's standard library"
            if top in standard
            else "a module of the service"
            if top in OURS
            else "an installed package"
            if top in installed()
            else None
        )
        if whose is not None:
            raise BadFile(f"{name!r} has the same name as {whose}, which it would hide: rename it")


@cache
def installed() -> frozenset[str]:
    """Return the names of installed distributions and of their top-level modules, in lower case."""
    folders = [Path(root) for root in sys.path if Path(root).name in INSTALLED]
    return frozenset(_module(path.name) for folder in folders if folder.is_dir() for path in folder.iterdir())


def _module(name: str) -> str:
    """Return the lower-case module name of a file or folder: `a` for `a.py`, `a.cpython-311-x86_64-linux-gnu.so` and `a-1.0.dist-info`."""
    if name.endswith(METADATA):
        return name.partition("-")[0].replace(".", "_").casefold()
    return name.partition(".")[0].casefold()


MAX_FILES = 2000
MAX_NAME_BYTES = 250
MAX_DEPTH = 20
# The most unpacked bytes per packed byte. Text is compressed 3 to 20 times, zeros a thousand times.
MAX_RATIO = 100
ALWAYS_BYTES = 1 << 20  # a package may always unpack to this size, at any ratio
BLOCK = 1 << 16  # how many bytes are unpacked at once
# Endings of compiled code, and of archives, which may hide it. Both are refused.
NATIVE = (".so", ".pyd", ".dll", ".dylib", ".exe", ".a", ".o", ".lib")
PACKED = (".zip", ".whl", ".egg", ".jar", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".zst", ".rar")
RUNS_BY_ITSELF = ("sitecustomize", "usercustomize")
WHEEL = ".dist-info/WHEEL"
_ENTRY = b"PK\x01\x02"  # the first bytes of an entry in the central directory of a zip file
# Exceptions of zipfile for files that are not a zip, damaged, encrypted, or compressed with an unknown method.
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    RuntimeError,
    ValueError,
    OverflowError,
    IndexError,
    KeyError,
    OSError,
)


@dataclass(frozen=True, slots=True)
class PackageContents:
    """The files of a package."""

    digests: Mapping[str, str]  #: The SHA-256 of each file by its name.
    size_bytes: int  #: The unpacked size of all files.


def read_archive(data: bytes, *, most_bytes: int, into: Path | None = None) -> PackageContents:
    """Check a package and return its contents.

    Args:
        data: The package.
        most_bytes: The largest allowed unpacked size. The compression ratio limits the size as well.
        into: An empty folder to which the files are written. None means that they are only checked.

    Raises:
        BadFile: The package is not allowed. The message says why and what to do.
    """
    if not data.startswith(b"PK\x03\x04"):
        raise BadFile("this is not a package: send a .zip or .whl that is not empty")
    if data.count(_ENTRY) > 5 * MAX_FILES:
        raise BadFile(_too_many())
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            return _read(packed, min(most_bytes, max(ALWAYS_BYTES, MAX_RATIO * len(data))), into)
    except BadFile:
        raise
    except _BROKEN as error:
        raise BadFile(f"the package cannot be unpacked: {error or type(error).__name__}") from error


def _read(packed: zipfile.ZipFile, most_bytes: int, into: Path | None) -> PackageContents:
    files = _files(packed.infolist())
    digests, left = dict[str, str](), most_bytes
    for info in files:
        with packed.open(info) as inside, _target(into, info.filename) as target:
            seen = hashlib.sha256()
            while block := inside.read(BLOCK):
                left -= len(block)
                if left < 0:
                    raise BadFile(
                        f"{info.filename!r}: the unpacked package exceeds the size limit, or its files are compressed to less than "
                        f"1/{MAX_RATIO}; leave out data, and load the data from a place that the workers can reach"
                    )
                seen.update(block)
                if target is not None:
                    target.write(block)
        digests[info.filename] = seen.hexdigest()
    for name in digests:
        if name.endswith(WHEEL):
            _check_wheel(packed.read(name))
    return PackageContents(digests, most_bytes - left)


def _target(into: Path | None, name: str) -> "IO[bytes] | nullcontext[None]":
    if into is None:
        return nullcontext()
    path = into / name
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    return os.fdopen(handle, "wb")


def _files(entries: list[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
    """Check all entries of the archive, each alone and all together, and return those that are files.

    Raises:
        BadFile: An entry is not allowed, entries conflict, or the package has no Python file.
    """
    if len(entries) > MAX_FILES:
        raise BadFile(_too_many())
    for info in entries:
        fault = _name_fault(info.filename) or _kind_fault(info) or _content_fault(info.filename)
        if fault is not None:
            raise BadFile(f"{info.orig_filename!r} {fault}")
    files = [info for info in entries if not info.is_dir()]
    _check_together([info.filename for info in entries])
    if not any(info.filename.endswith(".py") for info in files):
        raise BadFile("this package has no Python file: add the .py file that defines the trainable")
    return files


def _kind_fault(info: zipfile.ZipInfo) -> str | None:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if info.flag_bits & 0x1:
        return "is encrypted: pack it without a password"
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR if info.is_dir() else 0):
        return "is a link, a device, or a file with the name of a folder: pack plain files"
    if info.is_dir() and info.file_size:
        return "is a folder entry with content of its own: pack it again"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is not compressed with deflate: pack it with zip, or python -m zipfile"
    if info.filename != info.orig_filename:
        return "has two different names in the archive: pack it again"
    return None


def _name_fault(name: str) -> str | None:
    parts = name.removesuffix("/").split("/")
    if "\\" in name or ":" in name or not name.isprintable():
        return "has a name with a backslash, a colon or a control character: rename it"
    if any(part in ("", ".", "..") for part in parts):
        return (
            "is not a path within the package: use paths relative to the package's folder, without . and .."
        )
    if any(part != part.strip() or part.endswith(".") for part in parts):
        return "has a name that begins or ends with a space, or ends with a dot: rename it"
    if unicodedata.normalize("NFC", name) != name or len(name.encode()) > MAX_NAME_BYTES:
        return f"has a name that is not in Unicode normalization form C (NFC), or has more than {MAX_NAME_BYTES} bytes: rename it"
    if len(parts) > MAX_DEPTH:
        return f"is nested deeper than {MAX_DEPTH} folders: use fewer nested folders"
    return None


def _content_fault(name: str) -> str | None:
    parts = name.casefold().removesuffix("/").split("/")
    last = parts[-1]
    if last.endswith(".pth") or any(part.partition(".")[0] in RUNS_BY_ITSELF for part in parts):
        return "would be run at every start of Python: leave it out"
    if last.endswith(NATIVE) or ".so." in last:
        return "is machine code, but packages must be pure Python: have the operator install machine code on the workers"
    if last.endswith((".pyc", ".pyo")) or "__pycache__" in parts:
        return "is compiled Python code: leave out __pycache__ and .pyc"
    if last.endswith(PACKED):
        return "is an archive in an archive: pack its files instead"
    if parts[0].endswith(".data"):
        return "has to be installed: packages are used without installation, so pack a wheel without a .data folder"
    return None


def _check_together(names: list[str]) -> None:
    """Raise BadFile if two names differ only in case, or if a name is both a file and a folder."""
    files, folders = set[str](), dict[str, str]()
    for name in names:
        *above, last = name.removesuffix("/").split("/")
        if name.endswith("/"):
            above.append(last)
        elif name.casefold() in files:
            raise BadFile(
                f"another file's name differs from {name!r} only in upper and lower case: rename or remove one"
            )
        else:
            files.add(name.casefold())
        for depth in range(1, len(above) + 1):
            folder = "/".join(above[:depth])
            if folders.setdefault(folder.casefold(), folder) != folder:
                raise BadFile(
                    f"another folder's name differs from {folder!r} only in upper and lower case: rename one"
                )
    if both := files & folders.keys():
        raise BadFile(f"{min(both)!r} is a file and a folder: rename one")


def _check_wheel(text: bytes) -> None:
    if b"root-is-purelib: true" not in text.lower():
        raise BadFile("this wheel is not a pure Python wheel: have the operator install it on the workers")


def _too_many() -> str:
    return f"the package has more than {MAX_FILES} files: leave out data, and load the data from a place that the workers can reach"


FOLDER = "packages"


class PackageLost(BadFile):
    """The package in storage is not the one that was uploaded."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The id of a package and its place in storage. The id contains the digest, so the bytes can be checked against it."""

    storage: str
    project: str
    id: str

    @classmethod
    def parse(cls, message: Mapping[str, str] | None) -> "Stored | None":
        return None if message is None else cls(**message)

    def message(self) -> dict[str, str]:
        return asdict(self)

    @property
    def digest(self) -> str:
        if not PACKAGE_ID.fullmatch(self.id):  # the digest becomes part of a file name
            raise ValueError(f"{self.id!r} is not the id of a package")
        return self.id.removeprefix("pkg_")

    def put(self, data: bytes) -> None:
        """Store `data`, the bytes of the package, durably and atomically. Errors of the storage propagate."""
        assert id_of(data) == self.id
        Storage(self.storage).put_file(data, *self._where(), durably=True)

    def get(self) -> bytes:
        """Return the bytes of the package.

        Raises:
            PackageLost: The package is missing or its digest differs.
            Exception: Any other error of the storage.
        """
        try:
            data = Storage(self.storage).read(*self._where())
        except FileNotFoundError as error:
            raise PackageLost(
                f"the package {self.id} is missing from the storage: upload it again"
            ) from error
        if id_of(data) != self.id:
            raise PackageLost(
                f"the package {self.id} was changed in the storage after its upload: upload it again, and check who can write to the storage"
            )
        return data

    def _where(self) -> tuple[str, str, str]:
        return self.project, FOLDER, f"{self.digest}.zip"


def id_of(data: bytes) -> str:
    return package_id(hashlib.sha256(data).hexdigest())


def unpack(package: Stored, folder: Path) -> Path:
    """Fetch a package, and unpack it into a new directory in `folder`. Return that directory, whose name is the package's digest.

    The directory and its files are read-only. `tuner.worker.scratch.wipe` can still remove them.

    Raises:
        PackageLost: The package is missing in storage or was changed there.
        BadFile: The package is not allowed.
        Exception: Any error of the storage.
    """
    data = package.get()
    unpacked = new_directory(folder, package.digest)
    # The digest shows that this is the package that was checked against its size limit when it was uploaded.
    read_archive(data, most_bytes=MAX_RATIO * len(data) + ALWAYS_BYTES, into=unpacked)
    for path in [*unpacked.rglob("*"), unpacked]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    return unpacked
