"""Test large checkpoints in object storage: only changed chunks are stored again, and exactly the needed chunks
are kept.
"""

from pathlib import Path

import pytest
import torch

from tests.worker.object_storage import Bucket
from tuner.checkpoints import chunks
from tuner.checkpoints.checkpoints import CheckpointStore, Found
from tuner.training import checkpoint

TRIAL = "trial_00000"
CHUNK = 1 << 16


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", CHUNK)


@pytest.fixture
def store(bucket: Bucket) -> CheckpointStore:
    return CheckpointStore(bucket.url, "default", "job_1")


def save(store: CheckpointStore, folder: Path, step: int, *, attempt: int = 1) -> None:
    """Publish a checkpoint of five chunks, two of which differ at each step."""
    source = folder / f"staged-{step}-{attempt}"
    source.mkdir()
    same = [bytes([number]) * CHUNK for number in range(3)]
    (source / "state.pt").write_bytes(
        b"".join([*same, bytes([100 + step]) * CHUNK, bytes([200 + step]) * 100])
    )
    store.publish(TRIAL, attempt, step, source)


def restored(store: CheckpointStore, folder: Path, at_most: int = 99) -> int | None:
    found = store.newest_valid(TRIAL, folder / "here", at_most=at_most)
    if found is None:
        return None
    data = (found[1] / "state.pt").read_bytes()
    assert [data[number * CHUNK] for number in range(5)] == [0, 1, 2, 100 + found[0], 200 + found[0]]
    assert len(data) == 4 * CHUNK + 100
    return found[0]


def stored_since(bucket: Bucket) -> int:
    """Return the number of chunks uploaded since the last call."""
    sent = [asked for asked in bucket.proxy.asked if asked.startswith("PUT") and "/pieces-" in asked]
    bucket.proxy.asked[:] = []
    return len(sent)


def test_unchanged_chunks_are_not_stored_again(
    store: CheckpointStore, bucket: Bucket, tmp_path: Path
) -> None:
    sent = []
    for step in range(1, 6):
        save(store, tmp_path, step)
        sent.append(stored_since(bucket))
    assert sent == [5, 5, 2, 2, 2]
    assert restored(store, tmp_path) == 5


def test_damaged_chunk_invalidates_only_its_own_checkpoint(
    store: CheckpointStore, bucket: Bucket, tmp_path: Path
) -> None:
    for step in range(1, 5):
        save(store, tmp_path, step)
    manifest = store._manifest(TRIAL, Found(4, 1))
    folder, name = chunks.chunks_of(manifest["files"][0])[0]
    fs = bucket.fs
    path = f"{bucket.name}/checkpoints/default/job_1/{TRIAL}/{folder}/{name}"
    for harm in (lambda: fs.pipe_file(path, b"x" * CHUNK), lambda: fs.rm(path)):
        harm()
        assert restored(store, tmp_path) == 3


def test_chunk_is_removed_with_the_last_checkpoint_that_names_it(
    store: CheckpointStore, bucket: Bucket, tmp_path: Path
) -> None:
    for step in range(1, 8):
        save(store, tmp_path, step)
        store.prune(TRIAL, 1, newest=step, keep=2, protect=frozenset({min(step, 3)}))
        assert restored(store, tmp_path) == step
    # Steps 3, 6 and 7 are left: the chunks that all share, stored twice, and two chunks of each.
    assert len(bucket.chunks()) == 3 * 2 + 3 * 2
    assert restored(store, tmp_path, at_most=5) == 3
    save(store, tmp_path, 8, attempt=2)
    store.prune(TRIAL, 2, newest=8, keep=1)
    assert len(bucket.chunks()) == 5
    assert restored(store, tmp_path) == 8


def test_superseded_attempt_keeps_chunks_that_a_later_attempt_needs(
    store: CheckpointStore, bucket: Bucket, tmp_path: Path
) -> None:
    save(store, tmp_path, 1)
    later = CheckpointStore(bucket.url, "default", "job_1")
    save(later, tmp_path, 2, attempt=2)
    save(store, tmp_path, 3)
    store.prune(TRIAL, 1, newest=3, keep=1)
    assert restored(later, tmp_path, at_most=2) == 2


def test_chunks_of_a_checkpoint_hidden_by_a_stale_listing_are_kept(
    store: CheckpointStore, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        save(store, tmp_path, step)
    names = store._storage.names

    def lagging(*parts: str) -> list[str]:
        return [name for name in names(*parts) if name != Found(1, 1).name]

    monkeypatch.setattr(store._storage, "names", lagging)
    store.prune(TRIAL, 1, newest=2, keep=2, protect=frozenset({1}))
    monkeypatch.undo()
    assert restored(store, tmp_path, at_most=1) == 1


def test_manifest_that_names_chunks_outside_the_trial_is_rejected(
    store: CheckpointStore, bucket: Bucket, tmp_path: Path
) -> None:
    for step in (1, 2):
        save(store, tmp_path, step)
    fs = bucket.fs
    path = f"{bucket.name}/checkpoints/default/job_1/{TRIAL}/{Found(2, 1).name}/MANIFEST.json"
    said = fs.cat_file(path).replace(b"pieces-a1-1", b"../../other")
    fs.pipe_file(path, said)
    assert store.newest_valid(TRIAL, tmp_path / "here", at_most=9) is not None
    assert restored_step(store, tmp_path) == 1


def restored_step(store: CheckpointStore, folder: Path) -> int:
    found = store.newest_valid(TRIAL, folder / "there", at_most=9)
    assert found is not None
    return found[0]


def test_mostly_frozen_model_stores_few_new_chunks(
    store: CheckpointStore, bucket: Bucket, tmp_path: Path
) -> None:
    """Save as `SpotSafe` does, with step numbers of different lengths and random generators that have advanced."""
    body, head = torch.nn.Linear(512, 512), torch.nn.Linear(64, 64)
    parts = {"head": head, "body": body}
    sent = []
    for step in (1, 2, 300, 70_000, 80_000):
        torch.rand(3)
        with torch.no_grad():
            head.weight += 1
        folder = tmp_path / f"step-{step}"
        checkpoint.write(checkpoint.snapshot(parts, step=step), folder)
        store.publish(TRIAL, 1, step, folder)
        sent.append(stored_since(bucket))
    assert sent[0] >= 16
    assert sent[-1] <= 3, sent
    found = store.newest_valid(TRIAL, tmp_path / "here", at_most=10**6)
    assert found is not None
    other = {"head": torch.nn.Linear(64, 64), "body": torch.nn.Linear(512, 512)}
    assert checkpoint.restore(other, [found[1]]) == 80_000
    assert torch.equal(other["head"].weight, head.weight)
    assert torch.equal(other["body"].weight, body.weight)
    assert not [name for name in bucket.objects() if name.endswith("state.pt")]
