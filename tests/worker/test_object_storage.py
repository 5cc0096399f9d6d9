"""Test checkpoints in S3 with the real client over real HTTP, while requests fail in many ways."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.worker.driving import SECOND
from tests.worker.object_storage import SLOW_S, Bucket
from tuner.checkpoints import storage
from tuner.checkpoints.checkpoints import CheckpointMissing, CheckpointStore, Found
from tuner.worker import publishing

TRIAL = "trial_00000"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "WAITS_S", (0.01,) * 6)


def a_checkpoint(folder: Path, word: str = "weights") -> Path:
    source = folder / f"staged-{word}"
    (source / "shards").mkdir(parents=True)
    (source / "state.pt").write_bytes(word.encode() * 1000)
    (source / "shards/0.bin").write_bytes(word[::-1].encode() * 1000)
    return source


@pytest.fixture
def store(bucket: Bucket) -> CheckpointStore:
    return CheckpointStore(bucket.url, "default", "job_1")


def saved(store: CheckpointStore, folder: Path, *steps: int, attempt: int = 1) -> None:
    for step in steps:
        store.publish(TRIAL, attempt, step, a_checkpoint(folder, f"step-{step}-"))


def read_back(store: CheckpointStore, folder: Path, *, at_most: int, expected: Found | None = None) -> Any:
    found = store.newest_valid(TRIAL, folder / "here", at_most=at_most, expected=expected)
    if found is None:
        return None
    step, files = found
    assert (files / "state.pt").read_text() == f"step-{step}-" * 1000
    assert (files / "shards/0.bin").read_text() == f"step-{step}-"[::-1] * 1000
    return step


def test_stored_checkpoints_are_read_back(store: CheckpointStore, tmp_path: Path) -> None:
    saved(store, tmp_path, 1, 2, 10)
    assert [found.step for found in store.found(TRIAL)] == [10, 2, 1]
    assert read_back(store, tmp_path, at_most=10) == 10
    assert read_back(store, tmp_path, at_most=9) == 2
    assert read_back(store, tmp_path, at_most=0) is None


def test_manifest_is_uploaded_last(store: CheckpointStore, bucket: Bucket, tmp_path: Path) -> None:
    saved(store, tmp_path, 1)
    puts = [asked for asked in bucket.proxy.asked if asked.startswith("PUT") and "step_" in asked]
    assert ["MANIFEST.json" in asked for asked in puts] == [False, False, True]


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


def save(driver: Any, *, until: int, restore: int | None = None, by: int | None = None) -> None:
    driver.begin(until=until, restore=restore, restore_attempt=by, max_step=99)
    driver.until_state("waiting")
    driver.order("pause")
    assert driver.until_state("paused")["saved_step"] == until


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
    save(driver, until=1)
    for step, (harm, request, status) in enumerate(harms, start=2):
        method, part = request.split()
        bucket.proxy.fault(harm, method, part, times=2 if harm == "answer" else 1, status=status)
        save(driver, until=step, restore=step - 1, by=driver.attempt)
        assert driver.reports[-1]["metrics"]["acc"] == step, (harm, request)
        # An answer that is only slow may also take longer than the timeout, and is then requested again.
        assert all(fault.times == 0 for fault in bucket.proxy.faults), (harm, request)
    assert [report["step"] for report in driver.reports] == list(range(1, step + 1))


def test_storage_wait_is_billed_to_the_operation_it_delays(drive: Any, bucket: Bucket) -> None:
    driver = drive("counts", storage=bucket.url)
    save(driver, until=1)
    for method, part in (("PUT", "state.pt"), ("GET", "MANIFEST")):
        bucket.proxy.fault("slow", method, part)
    driver.begin(until=2, restore=1, restore_attempt=1)
    driver.until_state("waiting")
    driver.order("pause")
    meter = driver.until_state("paused")["meter"]
    assert meter["restore"] >= SLOW_S * SECOND
    assert meter["checkpoint"] >= SLOW_S * SECOND


LASTING: list[tuple[Any, int, str]] = [
    ("answer", 500, "trouble of its own"),
    ("answer", 403, "credentials"),
    ("answer", 507, "make room"),
    ("reset", 0, "network"),
]


def test_permanent_storage_failure_fails_attempt_with_advice(drive: Any, bucket: Bucket) -> None:
    driver = drive("counts", storage=bucket.url)
    save(driver, until=1)
    for harm, status, advice in LASTING:
        for method in ("PUT", "GET"):
            bucket.proxy.fault(harm, method, "step_", times=1000, status=status)
        driver.begin(until=2)
        driver.until_state("waiting")
        driver.order("pause")
        not_saved = driver.until_state("failed")["error"]
        assert not_saved["kind"] == "storage"
        assert advice in not_saved["message"]
        driver.begin(until=2, restore=1, restore_attempt=1)
        not_read = driver.until_state("failed")["error"]
        assert not_read["kind"] == "storage"
        assert advice in not_read["message"]
        bucket.proxy.heal()
    save(driver, until=2, restore=1, by=1)


def test_missing_bucket_error_says_to_create_it(drive: Any, bucket: Bucket) -> None:
    driver = drive("counts", storage="s3://nobodys/checkpoints")
    driver.begin(until=1)
    driver.until_state("waiting")
    driver.order("pause")
    assert "create the bucket" in driver.until_state("failed")["error"]["message"]


def test_training_continues_while_saves_fail(drive: Any, bucket: Bucket) -> None:
    bucket.proxy.fault("answer", "PUT", "step_", times=7, status=503)
    driver = drive("counts", storage=bucket.url)
    driver.begin(until=9, checkpoint_interval_ns=1)
    driver.until_state("waiting")
    assert len(driver.reports) == 9
    driver.order("pause")
    assert driver.until_state("paused")["saved_step"] == 9


def test_damaged_checkpoint_is_skipped_for_the_previous_one(
    store: CheckpointStore, bucket: Bucket, tmp_path: Path
) -> None:
    saved(store, tmp_path, 1, 2)
    damaged = f"{bucket.name}/checkpoints/default/job_1/{TRIAL}/step_00000002-a1/state.pt"
    bucket.fs.pipe_file(damaged, b"S" + bucket.fs.cat_file(damaged)[1:])
    assert read_back(store, tmp_path, at_most=2) == 1


def test_permanently_corrupted_checkpoint_is_skipped(drive: Any, bucket: Bucket) -> None:
    driver = drive("counts", storage=bucket.url)
    save(driver, until=2)
    save(driver, until=4, restore=2, by=1)
    bucket.proxy.fault("flip", "GET", "step_00000004-a2/state.pt", times=1000)
    driver.begin(until=5, restore=4, restore_attempt=2)
    assert driver.until_state("waiting")["from_step"] == 2
    assert [report["metrics"]["acc"] for report in driver.reports[4:]] == [3, 4, 5]


def test_unreadable_checkpoint_fails_the_attempt_and_is_not_skipped(drive: Any, bucket: Bucket) -> None:
    """Otherwise an older checkpoint would be used, and the newer one would be forgotten and removed."""
    driver = drive("counts", storage=bucket.url)
    save(driver, until=2)
    save(driver, until=4, restore=2, by=1)
    bucket.proxy.fault("answer", "GET", "step_00000004-a2/state.pt", times=1000, status=500)
    driver.begin(until=5, restore=4, restore_attempt=2)
    failed = driver.until_state("failed")
    assert failed["error"]["kind"] == "storage"
    assert failed["from_step"] is None
    bucket.proxy.faults.clear()
    driver.begin(until=5, restore=4, restore_attempt=2)
    assert driver.until_state("waiting")["from_step"] == 4


def test_checkpoint_with_a_missing_object_is_skipped(
    store: CheckpointStore, bucket: Bucket, tmp_path: Path
) -> None:
    saved(store, tmp_path, 1, 2)
    bucket.fs.rm(f"{bucket.name}/checkpoints/default/job_1/{TRIAL}/step_00000002-a1/shards/0.bin")
    assert read_back(store, tmp_path, at_most=2, expected=Found(2, 1)) == 1


def test_stale_listing_does_not_hide_a_known_checkpoint(
    store: CheckpointStore, bucket: Bucket, tmp_path: Path
) -> None:
    saved(store, tmp_path, 1, 2)
    bucket.proxy.fault("unlisted", "GET", "list-type", times=1000)
    assert store.found(TRIAL) == []
    assert read_back(store, tmp_path, at_most=2, expected=Found(2, 1)) == 2


def test_prune_with_a_stale_listing_keeps_the_newest_checkpoint(
    store: CheckpointStore, bucket: Bucket, tmp_path: Path
) -> None:
    saved(store, tmp_path, 1, 2)
    bucket.proxy.fault("unlisted", "GET", "list-type", times=1000)
    store.prune(TRIAL, 1, newest=2, keep=1)
    bucket.proxy.faults.clear()
    assert read_back(store, tmp_path, at_most=2) == 2


def test_trial_does_not_restart_if_all_checkpoints_are_missing(drive: Any, bucket: Bucket) -> None:
    driver = drive("counts", storage=bucket.url)
    driver.begin(until=6, restore=5, restore_attempt=1)
    failed = driver.until_state("failed")
    assert failed["error"]["kind"] == "storage"
    assert "mount it on every worker" in failed["error"]["message"]
    assert driver.reports == []


def test_older_checkpoint_is_used_if_the_newest_is_missing(
    drive: Any, store: CheckpointStore, bucket: Bucket
) -> None:
    driver = drive("counts", storage=bucket.url)
    save(driver, until=2)
    with pytest.raises(CheckpointMissing):
        store.newest_valid(TRIAL, Path("unused"), at_most=3, expected=Found(3, 1))
    driver.begin(until=3, restore=3, restore_attempt=1)
    driver.until_state("waiting")
    assert [report["metrics"]["acc"] for report in driver.reports] == [1, 2, 3]


DIES_UPLOADING = """
import sys
from pathlib import Path
from tuner.checkpoints import chunks
from tuner.checkpoints.checkpoints import CheckpointStore
url, folder = sys.argv[1:]
chunks.CHUNK_BYTES = 1 << 16
source = Path(folder)
source.mkdir()
with (source / "state.pt").open("wb") as file:
    file.write(b"weights" * (6 << 12))
    file.truncate(120 << 12)
CheckpointStore(url, "default", "job_1").publish("trial_00000", 1, 3, source)
"""


def test_killed_upload_keeps_old_checkpoint_and_its_chunks_are_pruned(
    store: CheckpointStore, bucket: Bucket, tmp_path: Path
) -> None:
    saved(store, tmp_path, 2)
    bucket.proxy.fault("hang", "PUT", "MANIFEST")
    command = [sys.executable, "-c", DIES_UPLOADING, bucket.url, str(tmp_path / "large")]
    uploader = subprocess.Popen(command, env={**os.environ, **bucket.environment})
    try:
        assert bucket.proxy.asks(
            "PUT /" + bucket.name + "/checkpoints/default/job_1/trial_00000/step_00000003-a1/MANIFEST"
        )
    finally:
        uploader.kill()
        uploader.wait()
    assert 0 < len(bucket.chunks()) < 7, "those that hold the same are stored once"
    assert read_back(store, tmp_path, at_most=3) == 2
    store.prune(TRIAL, 0, newest=2, keep=2)
    assert bucket.chunks(), "they may be those of a later attempt"
    saved(store, tmp_path, 3, attempt=2)
    store.prune(TRIAL, 2, newest=3, keep=2)
    assert bucket.chunks() == []
    assert read_back(store, tmp_path, at_most=3) == 3


def test_newest_durable_checkpoint_survives_storage_failure_at_any_request(
    store: CheckpointStore, bucket: Bucket, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Three checkpoints are saved and older ones removed. The storage fails before the first request, then before
    the second, and so on. The gate lets it fail before every fifth request only.
    """
    proxy, durable, requests, before = bucket.proxy, 0, 0, 0
    while durable < 3:
        durable, proxy.dies_after = 0, requests
        proxy.asked.clear()
        with contextlib.suppress(Exception):  # any kind of exception that the client raises
            for step in (1, 2, 3):
                saved(store, tmp_path / str(requests), step, attempt=1 + requests)
                durable = step
                store.prune(TRIAL, 1 + requests, newest=step, keep=1)
        proxy.dies_after = None
        found = read_back(store, tmp_path, at_most=3) or 0
        assert found >= (durable or before)
        requests, before = requests + (1 if pytestconfig.option.all else 5), found
    assert requests > 20
    store.prune(TRIAL, requests, newest=3, keep=1)
    assert {name.split("/")[3].partition("-")[0] for name in bucket.objects()} == {"step_00000003"}
