"""Test checkpoints in S3 with the real client over real HTTP, while requests fail in many ways."""

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.worker.object_storage import Bucket
from tuner.checkpoints import storage
from tuner.checkpoints.artifacts import TrialArtifacts
from tuner.checkpoints.checkpoints import CheckpointId, CheckpointMissing, CheckpointStore, remove_trial_files
from tuner.checkpoints.chunks import CHUNK_BYTES
from tuner.checkpoints.storage import Storage
from tuner.service.bootstrap import build
from tuner.settings import Settings
from tuner.training.datasets import DatasetCache
from tuner.worker import publishing


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "WAITS_S", (0.01,) * 6)


HARMS = [
    ("answer", "PUT state.pt", 500),
    ("answer", "PUT state.pt", 503),
    ("answer", "PUT state.pt", 403),
    ("answer", "PUT MANIFEST", 507),
    ("reset", "PUT state.pt", 0),
    ("reset", "PUT MANIFEST", 0),
    ("slow", "PUT state.pt", 0),
    ("shorten", "PUT state.pt", 0),
    ("shorten", "PUT MANIFEST", 0),
    ("cut", "GET state.pt", 0),
    ("cut", "GET MANIFEST", 0),
    ("flip", "GET state.pt", 0),
    ("reset", "GET MANIFEST", 0),
    ("answer", "GET state.pt", 500),
    ("answer", "GET list-type", 503),
    ("answer", "GET MANIFEST", 403),
]
HANGS = [("hang", "PUT state.pt", 0), ("hang", "GET state.pt", 0)]


@pytest.mark.parametrize(("harms", "read_timeout_s"), [(HARMS, 240), (HANGS, 2)], ids=["answers", "hangs"])
def test_temporary_storage_faults_only_delay_a_trial(
    drive: Any,
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
    harms: list[tuple[Any, str, int]],
    read_timeout_s: float,
) -> None:
    """One trial meets each harm in an attempt of its own, while it restores or saves."""
    monkeypatch.setattr(storage, "S3_TIMEOUTS", {**storage.S3_TIMEOUTS, "read_timeout": read_timeout_s})
    driver = drive("counts", storage=bucket.url)
    driver.save_at(1)
    for step, (harm, request, status) in enumerate(harms, start=2):
        method, part = request.split()
        bucket.proxy.fault(harm, method, part, times=2 if harm == "answer" else 1, status=status)
        driver.save_at(step, restore=step - 1, restore_attempt=driver.attempt, max_step=99)
        assert driver.reports[-1]["metrics"]["acc"] == step, (harm, request)
        # An answer that is only slow may also take longer than the timeout, and is then requested again.
        assert all(fault.times == 0 for fault in bucket.proxy.faults), (harm, request)
    assert [report["step"] for report in driver.reports] == list(range(1, step + 1))


LASTING: list[tuple[Any, int, str]] = [
    ("answer", 500, "out of order"),
    ("answer", 403, "credentials"),
    ("answer", 507, "free space"),
    ("reset", 0, "network"),
]


def test_permanent_storage_failure_fails_attempt_with_advice(drive: Any, bucket: Bucket) -> None:
    driver = drive("counts", storage=bucket.url)
    driver.save_at(1)
    for harm, status, advice in LASTING:
        for method in ("PUT", "GET"):
            bucket.proxy.fault(harm, method, "step_", times=1000, status=status)
        driver.run_to(2)
        not_saved = driver.end("pause", "failed")["error"]
        assert not_saved["kind"] == "storage"
        assert advice in not_saved["message"]
        driver.begin(target_step=2, restore=1, restore_attempt=1)
        not_read = driver.until_state("failed")["error"]
        assert not_read["kind"] == "storage"
        assert advice in not_read["message"]
        bucket.proxy.heal()
    driver.save_at(2, restore=1, restore_attempt=1)


def test_missing_bucket_error_says_to_create_it(drive: Any, bucket: Bucket) -> None:
    driver = drive("counts", storage="s3://nobodys/checkpoints")
    driver.run_to(1)
    assert "create the bucket" in driver.end("pause", "failed")["error"]["message"]


def test_training_continues_while_saves_fail(drive: Any, bucket: Bucket) -> None:
    bucket.proxy.fault("answer", "PUT", "step_", times=7, status=503)
    driver = drive("counts", storage=bucket.url)
    driver.save_at(9, checkpoint_interval_ns=1)
    assert len(driver.reports) == 9


def test_permanently_corrupted_checkpoint_is_skipped(drive: Any, bucket: Bucket) -> None:
    driver = drive("counts", storage=bucket.url)
    driver.save_at(2)
    driver.save_at(4, restore=2, restore_attempt=1)
    bucket.proxy.fault("flip", "GET", "step_00000004-a2/state.pt", times=1000)
    assert driver.run_to(5, restore=4, restore_attempt=2)["from_step"] == 2
    assert [report["metrics"]["acc"] for report in driver.reports[4:]] == [3, 4, 5]


def test_unreadable_checkpoint_fails_the_attempt_and_is_not_skipped(drive: Any, bucket: Bucket) -> None:
    """Otherwise an older checkpoint would be used, and the newer one would be forgotten and removed."""
    driver = drive("counts", storage=bucket.url)
    driver.save_at(2)
    driver.save_at(4, restore=2, restore_attempt=1)
    bucket.proxy.fault("answer", "GET", "step_00000004-a2/state.pt", times=1000, status=500)
    driver.begin(target_step=5, restore=4, restore_attempt=2)
    failed = driver.until_state("failed")
    assert failed["error"]["kind"] == "storage"
    assert failed["from_step"] is None
    bucket.proxy.faults.clear()
    assert driver.run_to(5, restore=4, restore_attempt=2)["from_step"] == 4


def test_older_checkpoint_is_used_if_the_newest_is_missing(drive: Any, bucket: Bucket) -> None:
    driver = drive("counts", storage=bucket.url)
    driver.save_at(2)
    with pytest.raises(CheckpointMissing):
        CheckpointStore(bucket.url, "default", "job_1").newest_valid(
            "trial_00000", Path("unused"), at_most=3, expected=CheckpointId(3, 1)
        )
    driver.run_to(3, restore=3, restore_attempt=1)
    assert [report["metrics"]["acc"] for report in driver.reports] == [1, 2, 3]


def test_files_of_earlier_attempts_are_measured_and_removed(bucket: Bucket, tmp_path: Path) -> None:
    """Chunks and artifacts are removed too. Files of a later attempt, and logs, are kept."""
    trial = ("default", "job_1", "trial_00000")
    for attempt in (1, 2):
        store = CheckpointStore(bucket.url, *trial[:2])
        source = tmp_path / f"a{attempt}"
        source.mkdir()
        (source / "large").write_bytes(bytes([attempt]) * (CHUNK_BYTES + 1))
        (source / "small").write_bytes(b"small")
        store.publish(trial[2], attempt, attempt, source)
        if attempt == 1:
            part = tmp_path / "part"
            part.mkdir()
            (part / "small").write_bytes(b"part")
            store.publish(trial[2], 1, 1, part, part=1, part_ns=5)
            TrialArtifacts(bucket.url, *trial).add(1, 1, {"a": b"a"}, at_ns=0, max_files=9, max_bytes=99)
    object_storage = Storage(bucket.url)
    object_storage.put_file(b"log", *trial, "logs", "a1.log")
    size = sum(bucket.fs.info(f"{bucket.name}/checkpoints/{name}")["size"] for name in bucket.objects())
    assert object_storage.used_bytes(*trial[:2]) == size > 2 * CHUNK_BYTES
    assert object_storage.used_bytes("default", "job_2") == 0
    remove_trial_files(object_storage, 1, *trial)
    left = {name.removeprefix("/".join(trial) + "/") for name in bucket.objects()}
    assert {name.partition("/")[0] for name in left} == {"step_00000002-a2", "pieces-a2-0", "logs"}
    assert store.fetch(trial[2], CheckpointId(2, 2), tmp_path / "fetched").is_dir()
    remove_trial_files(object_storage, 2, *trial)
    remove_trial_files(object_storage, 2, *trial)
    assert bucket.objects() == ["/".join((*trial, "logs", "a1.log"))]


def test_folder_of_a_bucket_is_read_as_a_dataset(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TUNER_READ_LOG", str(log))
    bucket.fs.pipe({f"{bucket.name}/set/a.txt": b"a", f"{bucket.name}/set/deeper/b.txt": bytes(1 << 20)})
    cache = DatasetCache.from_env(os.environ)
    folder = cache.get(f"s3://{bucket.name}/set", {})
    assert (folder / "a.txt").read_text() == "a"
    assert (folder / "deeper/b.txt").stat().st_size == 1 << 20
    assert cache.get(f"s3://{bucket.name}/set", {}) == folder
    bucket.fs.pipe(f"{bucket.name}/set/a.txt", b"changed")
    assert (cache.get(f"s3://{bucket.name}/set", {}) / "a.txt").read_text() == "changed"
    lines = [line.split() for line in log.read_text().splitlines()]
    assert sum(int(line[1]) for line in lines) == 2 * (1 << 20) + 8
    assert cache.get(f"s3://{bucket.name}/set/a.txt", {}).name == "a.txt"


def test_checkpoints_have_the_class_and_the_tags_of_the_settings(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_STORAGE_CLASS", "STANDARD_IA")
    monkeypatch.setenv("TUNER_STORAGE_TAGS", "kind=checkpoint, team=a b")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.pt").write_bytes(b"x")
    store = Storage(bucket.url)
    store.put_directory(tmp_path / "saved", ("MANIFEST", b"last"), "job")
    store.put_files({"chunk": b"part"}, "job")
    store.put_file(b"line", "job", "log")
    for name in ("state.pt", "MANIFEST", "chunk"):
        assert store._fs.info(store.path("job", name))["StorageClass"] == "STANDARD_IA"
        assert store._fs.get_tags(store.path("job", name)) == {"kind": "checkpoint", "team": "a b"}
    assert store._fs.get_tags(store.path("job", "log")) == {}


@pytest.mark.parametrize(
    ("url", "name", "value", "message"),
    [
        ("s3://bucket", "TUNER_STORAGE_CLASS", "GLACIER", "is not one of STANDARD"),
        ("abfs://container", "TUNER_STORAGE_CLASS", "STANDARD_IA", "is not one of Hot"),
        ("gs://bucket", "TUNER_STORAGE_CLASS", "Cool", "is not one of STANDARD, NEARLINE"),
        ("/folder", "TUNER_STORAGE_TAGS", "a=b", "works with s3://, gs:// and abfs:// only"),
        ("s3://bucket", "TUNER_STORAGE_TAGS", "team", "is not a tag"),
        ("s3://bucket", "TUNER_STORAGE_TAGS", ",".join(f"{n}=" for n in range(11)), "lists 11 tags"),
    ],
)
def test_class_or_tag_that_the_storage_lacks_is_refused(
    url: str, name: str, value: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        storage.upload_options(url, {name: value})
    assert name in str(refused.value)


def test_service_with_tags_that_its_storage_lacks_is_refused_and_workers_use_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_STORAGE_TAGS", "kind=checkpoint")
    with pytest.raises(ValueError, match="TUNER_STORAGE_TAGS works with s3"):
        build(Settings.from_env({"TUNER_HOME": str(tmp_path), "TUNER_STORAGE_TAGS": "kind=checkpoint"}))
    Storage(str(tmp_path)).put_file(b"x", "folder", "file")  # as in the restore self-test


def test_azure_and_google_are_given_their_own_names_of_class_and_tags() -> None:
    def options(url: str, wanted: str) -> dict[str, Any]:
        return storage.upload_options(url, {"TUNER_STORAGE_CLASS": wanted, "TUNER_STORAGE_TAGS": "a=b"})

    assert options("abfs://container/x", "Cool") == {"standard_blob_tier": "Cool", "tags": {"a": "b"}}
    google = {"fixed_key_metadata": {"storage_class": "NEARLINE"}, "metadata": {"a": "b"}}
    assert options("gs://bucket/x", "NEARLINE") == google
    assert storage.upload_options("gs://bucket/x", {}) == {}


def test_gcsfs_uploads_the_class_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    table: dict[str, str] = {}
    monkeypatch.setenv("TUNER_STORAGE_CLASS", "NEARLINE")
    monkeypatch.setitem(sys.modules, "gcsfs", ModuleType("gcsfs"))
    monkeypatch.setitem(sys.modules, "gcsfs.core", SimpleNamespace(SUPPORTED_FIXED_KEY_METADATA=table))  # type: ignore[arg-type]
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda *_, **__: (SimpleNamespace(protocol="gs"), "bucket"))
    Storage("gs://bucket")
    assert table == {"storage_class": "storageClass"}
