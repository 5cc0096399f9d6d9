"""Test reading any range of a checkpoint as one tar file, from a folder and from object storage."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.checkpoints import TRIAL, Checkpoints
from tests.worker.object_storage import Bucket
from tuner.checkpoints.checkpoints import CheckpointArchive, CheckpointDamaged, CheckpointId
from tuner.checkpoints.chunks import CHUNK_BYTES

FILES = {"state.pt": b"abc" * 1000, "empty": b"", "folder/größe.bin": bytes(range(256)) * 2}
PLACE = CheckpointId(7, 2)


def published(url: str, work: Path, files: dict[str, bytes]) -> Checkpoints:
    checkpoints = Checkpoints(url, work, lambda _: files)
    checkpoints.publish(PLACE.step, attempt=PLACE.attempt)
    return checkpoints


def whole(archive: CheckpointArchive) -> bytes:
    return b"".join(archive.read(0, archive.size))


def contents(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> CheckpointArchive:
    folder = tmp_path_factory.mktemp("archive")
    return published(str(folder / "storage"), folder, FILES).store.archive(TRIAL, PLACE)


def test_the_tar_file_has_all_files_and_the_manifest(archive: CheckpointArchive) -> None:
    files = contents(whole(archive))
    manifest = json.loads(files.pop("MANIFEST.json"))
    assert files == FILES
    assert {file["path"]: file["sha256"] for file in manifest["files"]} == {
        name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()
    }


@given(st.data())
def test_any_range_equals_that_part_of_the_archive(archive: CheckpointArchive, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, archive.size))
    stop = data.draw(st.integers(start, archive.size))
    assert b"".join(archive.read(start, stop)) == whole(archive)[start:stop]


def test_chunked_file_is_reassembled_in_the_archive(bucket: Bucket, tmp_path: Path) -> None:
    large = b"".join(bytes([number]) * (1 << 20) for number in range(20)) + b"the end"
    archive = published(bucket.url, tmp_path, {"large": large, "small": b"x"}).store.archive(TRIAL, PLACE)
    assert contents(whole(archive))["large"] == large
    start = 512 + CHUNK_BYTES - 3
    assert b"".join(archive.read(start, start + 6)) == large[CHUNK_BYTES - 3 : CHUNK_BYTES + 3]


@pytest.mark.parametrize(("data", "reason"), [(b"short", "has 5 bytes, not 3000"), (None, "is missing")])
def test_a_damaged_checkpoint_is_refused_before_anything_is_sent(
    tmp_path: Path, data: bytes | None, reason: str
) -> None:
    checkpoints = published(str(tmp_path / "storage"), tmp_path, FILES)
    file = Path(checkpoints.path(PLACE, "state.pt"))
    if data is None:
        file.unlink()
    else:
        file.write_bytes(data)
    with pytest.raises(CheckpointDamaged, match=reason):
        checkpoints.store.archive(TRIAL, PLACE)
