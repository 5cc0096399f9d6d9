"""An archive may contain only plain Python files with plain names, within limits. Otherwise it is refused and no file is written."""

import hashlib
import io
import os
import stat
import warnings
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.packages import making
from tests.packages.making import archive, flagged, lying, named, of_kind, packed_how, plain
from tests.strategies import examples
from tuner.domain.errors import BadFile
from tuner.worker import packages as archives
from tuner.worker.packages import MAX_FILES, check_tops, read_archive

MIB = 1 << 20
OK = ("mine.py", b"def train(c): ...\n")
DEEP = "/".join(["d"] * 40)
MODES = {
    "a link": stat.S_IFLNK | 0o777,
    "a character device": stat.S_IFCHR | 0o666,
    "a block device": stat.S_IFBLK | 0o666,
    "a pipe": stat.S_IFIFO | 0o666,
    "a socket": stat.S_IFSOCK | 0o666,
}
DAMAGED = plain({"mine.py": "a = 1\nb = 2\n" * 40})
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "no zip": b"import os\n",
    "an empty zip": archive(),
    "gzip": b"\x1f\x8b\x08\x00" + b"\0" * 40,
    "cut off": plain()[:-30],
    "a damaged file": DAMAGED[:45] + bytes([DAMAGED[45] ^ 0xFF]) + DAMAGED[46:],
    "something before it": b"#!/bin/sh\n" + plain(),
    "no Python": archive(("data.json", b"{}")),
    "absolute": archive(("/etc/cron.d/mine.py", b"")),
    "two slashes": archive(("//host/share.py", b"")),
    "a file above": archive(("../mine.py", b"")),
    "above from within": archive(("a/../../mine.py", b"")),
    "to above at the end": archive(OK, ("a/..", b"")),
    "itself": archive(OK, ("./other.py", b"")),
    "a dot within": archive(OK, ("a/./other.py", b"")),
    "an empty part": archive(OK, ("a//other.py", b"")),
    "no name": archive(OK, ("", b"")),
    "a backslash": named(rb"..\\..\\mine.py"),
    "a share of Windows": named(rb"\\host\c$\mine.py"),
    "a drive": named(b"C:/mine.py"),
    "a stream of NTFS": named(b"mine.py:hidden.py"),
    "a NUL": named(b"mine.py\0.txt.py"),
    "a line's end": named(b"mi\nne1.py"),
    "an escape": named(b"mi\x1b[31m.py"),
    "right to left": named("a\u202eyp.py".encode(), utf8=True),
    "no Unicode": named(b"\xff\xfe\xfd_.py", utf8=True),
    "another form of Unicode": named("e\u0301_.py".encode(), utf8=True),
    "a space at the end": archive(OK, ("other.py ", b"")),
    "a dot at the end": archive(OK, ("other.py.", b"")),
    "a long name": archive(OK, (f"{'a' * 300}.py", b"")),
    "a deep name": archive(OK, (f"{DEEP}/a.py", b"")),
    **{name: of_kind("thing.py", mode) for name, mode in MODES.items()},
    "a link that is a folder": of_kind("thing/", stat.S_IFLNK | 0o777, b""),
    "a folder without a slash": of_kind("thing", stat.S_IFDIR | 0o755, b""),
    "a folder with content": archive(OK, ("thing/", b"content")),
    "twice": archive(OK, OK),
    "twice but for case": archive(OK, ("Mine.py", b"")),
    "twice but for its folder's case": archive(OK, ("a/x.py", b""), ("A/y.py", b"")),
    "a file and a folder": archive(OK, ("thing", b""), ("thing/a.py", b"")),
    "a folder and a file but for case": archive(OK, ("thing/a.py", b""), ("Thing", b"")),
    "encrypted": flagged(plain(), 0x1),
    "packed by LZMA": archive(OK, how=zipfile.ZIP_LZMA),
    "packed by bzip2": archive(OK, how=zipfile.ZIP_BZIP2),
    "packed by what there is not": packed_how(plain(), 99),
    "patched data": flagged(plain(), 0x20),
    "a bomb": archive(OK, ("zeros.bin", b"\0" * 20 * MIB)),
    "a bomb that is declared small": lying("zeros.bin", b"\0" * 20 * MIB, says=10),
    "a bomb of many": archive(OK, *((f"z{i}.bin", b"\0" * MIB) for i in range(12))),
    "an archive in it": archive(OK, ("inner.zip", archive(("z", b"\0" * MIB)))),
    "a wheel in it": archive(OK, ("vendor/inner-1.0-py3-none-any.whl", plain())),
    "a tarball in it": archive(OK, ("inner.tar.gz", b"")),
    "more files than anybody needs": archive(OK, *((f"f{i}", b"") for i in range(MAX_FILES))),
    "a contents of tens of thousands": plain() + b"PK\x01\x02" * 20_000,
    ".pth": archive(OK, ("mine.pth", b"import os")),
    ".pth in capitals": archive(OK, ("a/MINE.PTH", b"import os")),
    "sitecustomize": archive(OK, ("sitecustomize.py", b"")),
    "usercustomize as a package": archive(OK, ("usercustomize/__init__.py", b"")),
    "machine code": archive(OK, ("fast.so", b"\x7fELF")),
    "machine code with a version": archive(OK, ("libfast.so.1", b"\x7fELF")),
    "machine code of Windows": archive(OK, ("fast.PYD", b"MZ")),
    "compiled": archive(OK, ("other.pyc", b"")),
    "a cache": archive(OK, ("__pycache__/mine.cpython-311.pyc", b"")),
    "a wheel that is not pure": archive(OK, ("m-1.dist-info/WHEEL", b"Root-Is-Purelib: false\n")),
    "a wheel that is to be installed": archive(OK, ("m-1.data/scripts/x.py", b"")),
}
SHADOWS = [
    "os.py",
    "json/__init__.py",
    "Types.py",
    "_socket.py",
    "tuner/__init__.py",
    "tuner/worker/child.py",
    "ray.py",
    "torch/nn.py",
    "Torch.py",
    "trainables/digits.py",
    "numpy/__init__.py",
    "psutil.py",
    "yaml/x.json",
    "numpy-9.9.dist-info/METADATA",
    "typing_extensions.py",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archive_is_refused_and_writes_nothing_outside(name: str, tmp_path: Path) -> None:
    into = tmp_path / "a" / "b" / "into"
    into.mkdir(parents=True)
    with pytest.raises(BadFile) as refused:
        read_archive(HOSTILE[name], most_bytes=8 * MIB, into=into)
    assert len(refused.value.detail) > 20
    outside = [path for path in tmp_path.rglob("*") if not path.is_relative_to(into) and path.is_file()]
    assert outside == []
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("name", SHADOWS)
def test_module_that_shadows_another_is_refused(name: str) -> None:
    contents = read_archive(archive(OK, (name, b"")), most_bytes=MIB)
    with pytest.raises(BadFile, match="rename it"):
        check_tops(contents.digests)


def test_valid_archive_is_unpacked_unchanged(tmp_path: Path) -> None:
    files = {
        "mine.py": b"import helper\n",
        "helper/__init__.py": b"",
        "helper/größe.py": b"a = 1\n",
        "helper/data/test.json": b"{}",
        "README.md": b"json.py",
        "mine-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\n",
        "mine-1.0.dist-info/RECORD": b"",
    }
    data = archive(("helper/", b""), *files.items())
    contents = read_archive(data, most_bytes=MIB, into=tmp_path)
    check_tops(contents.digests)
    assert contents.digests == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert contents.size_bytes == sum(map(len, files.values()))
    for name, content in files.items():
        assert (tmp_path / name).read_bytes() == content
        assert (tmp_path / name).stat().st_mode & 0o111 == 0


def test_size_limit_applies_to_the_unpacked_bytes(tmp_path: Path) -> None:
    data = archive(OK, ("data.bin", os.urandom(3000)))
    exactly = 3000 + len(OK[1])
    assert read_archive(data, most_bytes=exactly).size_bytes == exactly
    with pytest.raises(BadFile, match="size limit"):
        read_archive(data, most_bytes=exactly - 1)


parts = st.one_of(
    st.sampled_from(
        ["..", ".", "", "a", "A", "b.py", "con", "C:", "a\\b", "a\0b", " a", "a.", "\u202e", "~"]
    ),
    st.text(max_size=6),
)
names = st.lists(parts, min_size=1, max_size=4).map("/".join)


@examples(150)
@given(st.lists(names, max_size=4), st.sampled_from([0, 0o120777, 0o100644, 0o040755, 0o020666]))
def test_files_with_arbitrary_names_are_written_inside_and_listed(
    tmp_path_factory: pytest.TempPathFactory, members: list[str], mode: int
) -> None:
    root = tmp_path_factory.mktemp("names")
    into = root / "deep" / "er" / "into"
    into.mkdir(parents=True)
    data = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(data, "w") as packed:
        warnings.simplefilter("ignore")
        for name in ["mine.py", *members]:
            try:
                info = zipfile.ZipInfo(name)
                info.external_attr = mode << 16
                packed.writestr(info, b"x")
            except (ValueError, UnicodeEncodeError, IndexError):  # zipfile itself cannot write such names
                return
    try:
        contents = read_archive(data.getvalue(), most_bytes=MIB, into=into)
    except BadFile:
        contents = None
    written = {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}
    assert all(name.startswith("deep/er/into/") for name in written)
    if contents is not None:
        assert written == {f"deep/er/into/{name}" for name in contents.digests}


@examples(200)
@given(st.data())
def test_corrupted_archive_is_read_within_limits_or_refused(data: st.DataObject) -> None:
    raw = bytearray(making.archive(OK, ("a/data.json", b'{"a": 1}' * 20), ("a/x.py", b"x = 1\n")))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    try:
        contents = read_archive(bytes(raw), most_bytes=MIB)
    except BadFile:
        return
    assert contents.size_bytes <= MIB
    assert len(contents.digests) <= archives.MAX_FILES
