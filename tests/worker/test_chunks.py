"""Test large checkpoints in object storage: only changed chunks are stored again, and exactly the needed chunks
are kept.
"""

from pathlib import Path

import pytest

from tests.worker.checkpoints import TRIAL, Checkpoints
from tests.worker.object_storage import Bucket
from tuner.checkpoints import chunks
from tuner.checkpoints.checkpoints import MANIFEST, CheckpointId

CHUNK = 1 << 16


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", CHUNK)


def five_chunks(step: int) -> dict[str, bytes]:
    """Return a file of five chunks, two of which differ at each step."""
    same = [bytes([number]) * CHUNK for number in range(3)]
    return {"state.pt": b"".join([*same, bytes([100 + step]) * CHUNK, bytes([200 + step]) * 100])}


@pytest.fixture
def checkpoints(bucket: Bucket, tmp_path: Path) -> Checkpoints:
    return Checkpoints(bucket.url, tmp_path, five_chunks)


def stored_since(bucket: Bucket) -> int:
    """Return the number of chunks uploaded since the last call."""
    sent = [asked for asked in bucket.proxy.asked if asked.startswith("PUT") and "/pieces-" in asked]
    bucket.proxy.asked[:] = []
    return len(sent)


def test_unchanged_chunks_are_not_stored_again(checkpoints: Checkpoints, bucket: Bucket) -> None:
    sent = []
    for step in range(1, 6):
        checkpoints.publish(step)
        sent.append(stored_since(bucket))
    assert sent == [5, 5, 2, 2, 2]
    assert checkpoints.newest() == 5


def test_damaged_chunk_invalidates_only_its_own_checkpoint(checkpoints: Checkpoints) -> None:
    checkpoints.publish(1, 2, 3, 4)
    manifest = checkpoints.store._manifest(TRIAL, CheckpointId(4, 1))
    path = "/".join((checkpoints.root, *chunks.chunks_of(manifest["files"][0])[0]))
    checkpoints.fs.pipe_file(path, b"x" * CHUNK)
    assert checkpoints.newest() == 3
    checkpoints.fs.rm(path)
    assert checkpoints.newest() == 3


def test_chunk_is_removed_with_the_last_checkpoint_that_names_it(
    checkpoints: Checkpoints, bucket: Bucket
) -> None:
    for step in range(1, 8):
        checkpoints.publish(step)
        checkpoints.store.prune(TRIAL, 1, newest=step, keep=2, protect=frozenset({min(step, 3)}))
        assert checkpoints.newest() == step
    # Steps 3, 6 and 7 are left: the chunks that all share, stored twice, and two chunks of each.
    assert len(bucket.chunks()) == 3 * 2 + 3 * 2
    assert checkpoints.newest(5) == 3
    checkpoints.publish(8, attempt=2)
    checkpoints.store.prune(TRIAL, 2, newest=8, keep=1)
    assert len(bucket.chunks()) == 5
    assert checkpoints.newest() == 8


def test_superseded_attempt_keeps_chunks_that_a_later_attempt_needs(
    checkpoints: Checkpoints, bucket: Bucket, tmp_path: Path
) -> None:
    checkpoints.publish(1)
    later = Checkpoints(bucket.url, tmp_path, five_chunks)
    later.publish(2, attempt=2)
    checkpoints.publish(3)
    checkpoints.store.prune(TRIAL, 1, newest=3, keep=1)
    assert later.newest(2) == 2


def test_chunks_of_a_checkpoint_hidden_by_a_stale_listing_are_kept(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.publish(1, 2)
    storage = checkpoints.store._storage
    names = storage.names

    def lagging(*parts: str) -> list[str]:
        return [name for name in names(*parts) if name != CheckpointId(1, 1).name]

    monkeypatch.setattr(storage, "names", lagging)
    checkpoints.store.prune(TRIAL, 1, newest=2, keep=2, protect=frozenset({1}))
    monkeypatch.undo()
    assert checkpoints.newest(1) == 1


def test_manifest_that_names_chunks_outside_the_trial_is_rejected(checkpoints: Checkpoints) -> None:
    checkpoints.publish(1, 2)
    checkpoints.change(
        CheckpointId(2, 1), MANIFEST, lambda data: data.replace(b"pieces-a1-1", b"../../other")
    )
    assert checkpoints.newest() == 1


def test_mostly_frozen_model_stores_few_new_chunks(
    checkpoints: Checkpoints, bucket: Bucket, tmp_path: Path
) -> None:
    """Save as `SpotSafe` does, with step numbers of different lengths and random generators that have advanced."""
    import torch  # takes seconds

    from tuner.training import checkpoint

    body, head = torch.nn.Linear(512, 512), torch.nn.Linear(64, 64)
    parts = {"head": head, "body": body}
    sent = []
    for step in (1, 2, 300, 70_000, 80_000):
        torch.rand(3)
        with torch.no_grad():
            head.weight += 1
        folder = tmp_path / f"step-{step}"
        checkpoint.write(checkpoint.snapshot(parts, step=step), folder)
        checkpoints.store.publish(TRIAL, 1, step, folder)
        sent.append(stored_since(bucket))
    assert sent[0] >= 16
    assert sent[-1] <= 3, sent
    newest = checkpoints.store.newest_valid(TRIAL, tmp_path / "here", at_most=10**6)
    assert newest is not None
    other = {"head": torch.nn.Linear(64, 64), "body": torch.nn.Linear(512, 512)}
    assert checkpoint.restore(other, [newest[1]]) == 80_000
    assert torch.equal(other["head"].weight, head.weight)
    assert torch.equal(other["body"].weight, body.weight)
    assert not [name for name in bucket.objects() if name.endswith("state.pt")]
