"""Packages for tests: malformed archives made by hand, and valid ones."""

import io
import stat
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

TRAIN = "from tuner.training import SpotSafe\n\n\ndef train(config):\n    return {'acc': VALUE}\n"
LINK = (stat.S_IFLNK | 0o777) << 16


def archive(*entries: tuple[str | zipfile.ZipInfo, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return an archive with exactly these entries, valid or not."""
    data = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(data, "w", how) as packed:
        warnings.simplefilter("ignore")  # the warning about duplicate names
        for name, content in entries:
            info = name if isinstance(name, zipfile.ZipInfo) else zipfile.ZipInfo(name)
            info.compress_type = how
            packed.writestr(info, content)
    return data.getvalue()


def plain(files: Mapping[str, str] | None = None) -> bytes:
    return archive(
        *((name, text.encode()) for name, text in (files or {"mine.py": "def train(c): ...\n"}).items())
    )


def of_kind(name: str, mode: int, content: bytes = b"/etc/passwd") -> bytes:
    info = zipfile.ZipInfo(name)
    info.external_attr, info.create_system = mode << 16, 3
    return archive((info, content), ("mine.py", b""))


def named(name: bytes, *, utf8: bool = False) -> bytes:
    """Return a valid archive in which a name was later changed to `name`, in both places."""
    before = b"x" * (len(name) - 3) + b".py"
    data = archive((before.decode(), b"a = 1\n"), ("mine.py", b"def train(c): ...\n"))
    assert data.count(before) == 2
    data = data.replace(before, name)
    return flagged(data, 0x800) if utf8 else data


def flagged(data: bytes, bits: int) -> bytes:
    """Return the archive with these bits set in the flags of each entry."""
    return _patched(data, 6, 8, lambda flags: flags | bits)


def packed_how(data: bytes, method: int) -> bytes:
    return _patched(data, 8, 10, lambda _: method)


def _patched(data: bytes, local: int, central: int, change: Callable[[int], int]) -> bytes:
    patched = bytearray(data)
    for mark, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        at = patched.find(mark)
        while at >= 0:
            (before,) = struct.unpack_from("<H", patched, at + offset)
            struct.pack_into("<H", patched, at + offset, change(before))
            at = patched.find(mark, at + 4)
    return bytes(patched)


def lying(name: str, content: bytes, says: int) -> bytes:
    """Return an archive whose file claims another size in both headers."""
    data = bytearray(archive((name, content), ("mine.py", b"def train(c): ...\n")))
    for mark, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<I", data, data.find(mark) + offset, says)
    return bytes(data)


def folder(path: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path
