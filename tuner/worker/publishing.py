"""Store checkpoints and artifacts in shared storage. Failed storage operations are retried."""

import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tuner.checkpoints.artifacts import ArtifactsFull, TrialArtifacts
from tuner.checkpoints.checkpoints import CheckpointStore, CheckpointUnfit, Published
from tuner.checkpoints.storage import explained
from tuner.training.artifacts import (
    MAX_TRIAL_BYTES,
    MAX_TRIAL_FILES,
    ArtifactRefused,
    check_room,
    folder_of,
    read_bounded,
)
from tuner.worker import endings
from tuner.worker.attempt import RunningAttempt
from tuner.worker.background import Publisher, background
from tuner.worker.orders import BeginOrder, FailureFields

WAITS_S = (0.2, 0.8, 3.2, 12.8, 25.6, 51.2)  # before each retry
# no retry begins after this time; a try that has begun may last until its requests time out
RETRY_S = 120.0
FEW = 3  # retries of an error that is probably permanent; few, because the worker costs money meanwhile
SAVE_GRACE_S = 30.0  # how long an attempt that has ended waits for its uploads, if its lease lasts that long
JITTER = 0.5  # random part of each wait, so that workers that failed together do not retry together
T = TypeVar("T")
log = logging.getLogger("tuner.worker")


class Uploads:
    """Stores the checkpoints and artifacts of the attempts of one supervisor, in threads of its own.

    Args:
        changed: The supervisor's lock and condition. The lock is not held while something is stored.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._store: CheckpointStore | None = None
        self._checkpoints = Publisher()
        # Artifacts have a publisher of their own: a checkpoint must not wait while the storage of an artifact hangs or is retried.
        self._artifacts = Publisher()

    def open(self, order: BeginOrder) -> CheckpointStore:
        """Open the storage of the attempt that `order` begins. The first call also connects to the storage, in another thread."""
        is_new = self._store is None
        self._store = CheckpointStore(order["storage"], order["project"], order["job"])
        if is_new:
            background("storage", self._store.connect)
        return self._store

    def submit_checkpoint(self, attempt: RunningAttempt, step: int, path: Path, part: int) -> None:
        """Store the checkpoint in the folder `path` once earlier ones are stored. Never wait. The arguments are those of `publish`."""
        self._checkpoints.submit(self._store_checkpoint, attempt, step, path, part)

    def submit_artifacts(
        self,
        attempt: RunningAttempt,
        step: int,
        names: Sequence[str],
        stored: Callable[[RunningAttempt, str], None],
    ) -> None:
        """Store the artifacts of a report once earlier ones are stored. Never wait. Call it under the lock.

        If the storage fails or is slow, and earlier artifacts are not stored yet, drop these (see `RunningAttempt.drops_artifacts`).

        Args:
            attempt: The attempt that reported them.
            step: The step of the report.
            names: Their names.
            stored: Called under the lock at the end, with the attempt and the reason why they were refused, or an empty text.
        """
        if attempt.drops_artifacts and attempt.unstored:
            log.warning(
                "%s: artifacts of step %d are dropped: earlier ones are not stored yet", attempt.trial, step
            )
            assert attempt.staging is not None
            background("artifacts", remove_staged, attempt.staging, step)
            return
        attempt.unstored += 1
        self._artifacts.submit(self._store_artifacts, attempt, step, names, stored)

    def _store_checkpoint(self, attempt: RunningAttempt, step: int, path: Path, part: int) -> None:
        """Store a checkpoint. Runs in the publisher's thread. A checkpoint is durable once its manifest is stored."""
        assert self._store is not None
        with self._changed:
            protect = attempt.protected(step, part)
        published, failure = publish(self._store, attempt, step, path, protect, part)
        with self._changed:
            attempt.states.publisher_finished()
            attempt.not_stored = failure
            if published is not None:
                attempt.made_durable(published)
            if not part:
                attempt.best_steps.save_ended(step)
            if attempt.state is None and attempt.states.closed_by((step, part)):
                if failure is not None:
                    attempt.close_unsaved(failure)
                else:
                    attempt.close()
            attempt.close_if_best_is_saved()
            self._changed.notify_all()

    def _store_artifacts(
        self,
        attempt: RunningAttempt,
        step: int,
        names: Sequence[str],
        stored: Callable[[RunningAttempt, str], None],
    ) -> None:
        """Store the artifacts of a report. Runs in the thread of the publisher for artifacts."""
        assert self._store is not None
        stored_bytes, refusal = store_artifacts(self._store, attempt, step, names)
        with self._changed:
            attempt.unstored -= 1
            # Once the child has waited too long, it does not wait again before everything is stored.
            still_slow = attempt.drops_artifacts and attempt.unstored > 0
            attempt.drops_artifacts = stored_bytes is None or still_slow
            if stored_bytes is not None:
                attempt.use.artifacts(stored_bytes)
            stored(attempt, refusal)
            self._changed.notify_all()

    def settle(self, attempt: RunningAttempt) -> None:
        """Wait for the uploads of an attempt that has ended.

        Wait until its lease ends, but at most `SAVE_GRACE_S`. If the attempt was stopped, wait only `EXIT_GRACE_S`. After a preemption
        notice, wait only `EXIT_GRACE_S` for artifacts.
        """
        paid_s = 0.0 if attempt.state == "stopped" else attempt.left_ns() / 1e9
        grace_s = max(endings.EXIT_GRACE_S, min(paid_s, SAVE_GRACE_S))
        deadline = time.monotonic() + grace_s
        self._checkpoints.settle(grace_s)
        # Wait for artifacts only within the rest of that time, because waiting twice would take longer than the lease pays for.
        rest_s = max(0.0, deadline - time.monotonic())
        self._artifacts.settle(rest_s if attempt.notice is None else min(rest_s, endings.EXIT_GRACE_S))


def with_retries(
    attempt: RunningAttempt,
    store: CheckpointStore,
    work: Callable[[], T],
    *,
    wanted: Callable[[], bool] = lambda: True,
) -> T:
    """Call `work` and return its result. Retry if it raises.

    Raise the last error if all retries have failed, `RETRY_S` has passed, the attempt was stopped, its lease has ended, or `wanted`
    returns False. A mistake of user code is raised at once, and an error that is probably permanent is raised after `FEW` retries.
    """
    began = time.monotonic()
    for number, wait_s in enumerate(WAITS_S):
        tried_at = time.monotonic()
        try:
            return work()
        except CheckpointUnfit:
            raise
        except Exception as error:  # each kind of storage has errors of its own
            is_futile = number >= FEW and store.is_lasting(error)
            gives_up = is_futile or time.monotonic() - began > RETRY_S
            if gives_up or not wanted() or attempt.state == "stopped" or attempt.left_ns() <= 0:
                raise
            log.warning("%s: the storage failed, retrying: %s", attempt.trial, explained(error))
            wait_s *= random.uniform(1 - JITTER, 1 + JITTER)
            attempt.times.add_outage(int((time.monotonic() - tried_at + wait_s) * 1e9))
            time.sleep(wait_s)
    return work()


def publish(
    store: CheckpointStore,
    attempt: RunningAttempt,
    step: int,
    path: Path,
    protect: frozenset[int],
    part: int = 0,
) -> tuple[Published | None, FailureFields | None]:
    """Store the checkpoint of `step` from the folder `path`, then delete older checkpoints.

    Args:
        store: The storage.
        attempt: The attempt that wrote the checkpoint.
        step: The step of the checkpoint.
        path: The folder that user code wrote.
        protect: Steps whose checkpoints must not be deleted.
        part: The number of the checkpoint, if it is from the middle of the step after `step`, else 0.

    Returns:
        The stored checkpoint and None, or None and the failure if it was not stored.
    """

    def newest() -> bool:
        best = attempt.best_steps.best
        is_best = best is not None and best[1] == step
        return (is_best and not part) or attempt.states.written <= (step, part)

    def write() -> Published:
        part_ns = attempt.states.parts[part - 1][1] if part else 0
        return store.publish(attempt.trial, attempt.number, step, path, part=part, part_ns=part_ns)

    try:
        # This check can raise too, because user code may name any path and may change the folder meanwhile.
        if unsafe := unsafe_reason(path, attempt.staging):
            raise CheckpointUnfit(unsafe)
        published = with_retries(attempt, store, write, wanted=newest)
    except CheckpointUnfit as unfit:
        log.warning("%s: step %d was not saved: %s", attempt.trial, step, unfit)
        return None, endings.not_written(f"the checkpoint of step {step} cannot be stored: {unfit}")
    except Exception as error:
        log.warning("%s: step %d was not saved: %s", attempt.trial, step, explained(error))
        return None, endings.not_stored(step, explained(error))
    newest_step, keep = max(step, attempt.states.durable), attempt.order["keep"]
    try:
        store.prune(attempt.trial, attempt.number, newest=newest_step, keep=keep, protect=protect)
    except Exception as error:  # a checkpoint that is not deleted now is deleted after the next save
        log.warning("%s: older checkpoints could not be deleted: %s", attempt.trial, explained(error))
    return published, None


def store_artifacts(
    store: CheckpointStore, attempt: RunningAttempt, step: int, names: Sequence[str]
) -> tuple[int | None, str]:
    """Store the files that the child staged with the report of `step`.

    An error of the storage is logged, and the trial continues without these artifacts.

    Returns:
        Two values. The first is the size of all artifacts of this attempt in bytes, or None if nothing was stored. The second is the
        reason why the files were refused, or an empty text if they were not refused.
    """
    order = attempt.order
    artifacts = TrialArtifacts(order["storage"], order["project"], order["job"], attempt.trial)
    limits = {"max_files": MAX_TRIAL_FILES, "max_bytes": MAX_TRIAL_BYTES}

    def add() -> tuple[int | None, str]:
        try:
            stored = artifacts.add(attempt.number, step, files, at_ns=time.time_ns(), **limits)
        except ArtifactsFull as full:
            return None, str(full)
        own = f"a{attempt.number}-"
        return sum(
            artifact.size_bytes for artifact in stored.values() if artifact.stored_as.startswith(own)
        ), ""

    assert attempt.staging is not None
    try:
        files = staged_artifacts(attempt.staging, step, names)
        attempt.reported_bytes += sum(map(len, files.values()))
        # check the size again, because user code may evade the child's own check
        check_room(attempt.reported_bytes, order.get("artifact_room"))
        return with_retries(attempt, store, add)
    except ArtifactRefused as refused:
        return None, str(refused)
    except Exception as error:
        log.warning("%s: artifacts of step %d were not stored: %s", attempt.trial, step, explained(error))
        return None, ""


def staged_artifacts(staging: Path, step: int, names: Sequence[str]) -> dict[str, bytes]:
    """Read the files that the child staged with the report of a step, remove them, and return their contents by name.

    The supervisor may have access to files that user code may not read, so links are not followed, neither to a file nor to the
    directory.

    Raises:
        ArtifactRefused: A file is missing, is a link, or is too large.
    """
    folder = folder_of(staging, step)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        if os.path.realpath(folder) != os.path.join(os.path.realpath(staging), folder.name):
            raise ArtifactRefused(
                "the directory for the step's artifacts is a link; do not replace the directory by a link"
            )
        within = os.open(folder, flags | os.O_DIRECTORY)
        try:
            return {name: _read_within(within, name, flags) for name in names}
        finally:
            os.close(within)
    except OSError as error:
        raise ArtifactRefused(
            f"a reported artifact cannot be read as a file in the directory for artifacts: {error.strerror}; report files, not links"
        ) from error
    finally:
        remove_staged(staging, step)


def remove_staged(staging: Path, step: int) -> None:
    """Remove the files that the child staged with the report of a step."""
    shutil.rmtree(folder_of(staging, step), ignore_errors=True)  # a link is left alone


def _read_within(folder: int, name: str, flags: int) -> bytes:
    handle = os.open(name, flags | os.O_NONBLOCK, dir_fd=folder)
    try:
        return read_bounded(handle, name)
    finally:
        os.close(handle)


def unsafe_reason(path: Path, staging: Path | None) -> str:
    """Return why a checkpoint is unsafe to store, or an empty text if it is safe.

    The checkpoint must be inside the staging directory and must not have links that leave it. The supervisor reads and deletes the
    folder, and it may have access to files that user code may not read.
    """
    own = Path(os.path.realpath(path))
    if staging is not None and Path(os.path.realpath(staging)) not in own.parents:
        return f"{path} is not in the directory for checkpoints, {staging}: write the checkpoint there"
    for file in path.rglob("*"):
        if file.is_symlink() and own not in Path(os.path.realpath(file)).parents:
            return f"{file.relative_to(path)} is a link to a file outside the checkpoint: copy the file into the checkpoint"
    return ""
