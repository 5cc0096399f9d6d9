"""Store checkpoints in shared storage, one after the other, and restore them. Failed storage operations are retried."""

import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from tuner.checkpoints.checkpoints import CheckpointId, CheckpointStore, Published
from tuner.checkpoints.storage import explained
from tuner.worker.attempt import RunningAttempt

WAITS_S = (0.2, 0.8, 3.2, 12.8, 25.6, 51.2)
PATIENCE_S = (
    120.0  # no retry begins after this time; a try that has begun may last until its requests time out
)
FEW = 3  # retries of an error that is probably permanent; few, because the worker costs money meanwhile
JITTER = 0.5  # random part of each wait, so that workers that failed together do not retry together
T = TypeVar("T")
log = logging.getLogger("tuner.worker")


def background(name: str, work: Callable[..., None], *args: object, **more: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=args, kwargs=more, name=name, daemon=True)
    thread.start()
    return thread


class Publisher:
    """Run submitted functions one after the other in daemon threads, so that a hanging function does not keep
    the process alive.
    """

    def __init__(self) -> None:
        self._last: threading.Thread | None = None

    def submit(self, work: Callable[..., None], *args: object) -> None:
        before = self._last

        def run() -> None:
            if before is not None:
                before.join()
            work(*args)

        self._last = background("publisher", run)

    def settle(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for the submitted functions. Unfinished ones continue, but later ones do not wait for them."""
        last, self._last = self._last, None
        if last is not None:
            last.join(timeout_s)


class StorageFailed(Exception):
    """A checkpoint could not be read from storage after all retries."""


def with_retries(
    attempt: RunningAttempt,
    store: CheckpointStore,
    work: Callable[[], T],
    *,
    wanted: Callable[[], bool] = lambda: True,
) -> T:
    """Call `work` and return its result. Retry if it raises.

    Stop retrying if `wanted` returns False, the attempt was stopped, its lease ended, `PATIENCE_S` passed, all waits of `WAITS_S` are
    used, or the error is probably permanent and `FEW` retries were made. Then raise the last error of the storage.
    """
    began = time.monotonic()
    for number, wait_s in enumerate(WAITS_S):
        tried_at = time.monotonic()
        try:
            return work()
        except Exception as error:  # each kind of storage has errors of its own
            is_futile = number >= FEW and store.is_lasting(error)
            impatient = is_futile or time.monotonic() - began > PATIENCE_S
            if impatient or not wanted() or attempt.state == "stopped" or attempt.left_ns() <= 0:
                raise
            log.warning("%s: the storage failed, retrying: %s", attempt.trial, explained(error))
            wait_s *= random.uniform(1 - JITTER, 1 + JITTER)
            attempt.add_outage(int((time.monotonic() - tried_at + wait_s) * 1e9))
            time.sleep(wait_s)
    return work()


def publish(
    store: CheckpointStore, attempt: RunningAttempt, step: int, path: Path, protect: frozenset[int]
) -> tuple[Published | None, str]:
    """Store the checkpoint of `step` from the folder `path`, then delete older checkpoints.

    Args:
        store: The storage.
        attempt: The attempt that wrote the checkpoint.
        step: The step of the checkpoint.
        path: The folder that user code wrote.
        protect: Steps whose checkpoints must not be deleted.

    Returns:
        The stored checkpoint and an empty text, or None and the reason why it was not stored.
    """
    unsafe = unsafe_reason(path, attempt.staging)
    if unsafe:
        log.warning("%s: step %d was not saved: %s", attempt.trial, step, unsafe)
        return None, unsafe

    def newest() -> bool:
        best = attempt.best is not None and attempt.best[1] == step
        return best or attempt.saved_step <= step

    try:
        published = with_retries(
            attempt, store, lambda: store.publish(attempt.trial, attempt.number, step, path), wanted=newest
        )
    except Exception as error:
        log.warning("%s: step %d was not saved: %s", attempt.trial, step, explained(error))
        return None, explained(error)
    with contextlib.suppress(
        Exception
    ):  # a checkpoint that is not deleted now is deleted after the next save
        keep = attempt.order["keep"]
        newest_step = max(step, attempt.durable)
        store.prune(attempt.trial, attempt.number, newest=newest_step, keep=keep, protect=protect)
    return published, ""


def unsafe_reason(path: Path, staging: Path | None) -> str:
    """Return why a checkpoint is unsafe to store, or an empty text if it is safe.

    The checkpoint must be inside the staging directory and must not have links that leave it. The supervisor reads and deletes the
    folder, and it may have access to files that user code may not read.
    """
    own = Path(os.path.realpath(path))
    if staging is not None and Path(os.path.realpath(staging)) not in own.parents:
        return f"{path} is not in the directory for checkpoints, {staging}: write it there"
    for file in path.rglob("*"):
        if file.is_symlink() and own not in Path(os.path.realpath(file)).parents:
            return f"{file.relative_to(path)} is a link out of the checkpoint: copy the file into it"
    return ""


def restored(store: CheckpointStore, attempt: RunningAttempt, into: Path) -> tuple[int, Path] | None:
    """Fetch the newest undamaged checkpoint up to the step that the driver recorded as durable.

    Returns:
        Its step and the folder with its files, or None if all checkpoints are damaged.

    Raises:
        StorageFailed: A checkpoint could not be read, so it is unknown whether it is damaged. Also if the expected checkpoint is
            missing and there is no other, which means that the storage has changed.
    """
    step, number = attempt.order["restore_step"], attempt.order.get("restore_attempt")
    expected = CheckpointId(step, number) if number is not None else None
    newest = partial(store.newest_valid, attempt.trial, into, at_most=step, expected=expected)
    try:
        return with_retries(attempt, store, newest)
    except Exception as error:
        checkpoint = None
        with contextlib.suppress(Exception):
            checkpoint = newest(last_try=True)
        if checkpoint is None:
            raise StorageFailed(f"its checkpoint could not be read: {explained(error)}") from error
        return checkpoint


def older_than(step: int, store: CheckpointStore, attempt: RunningAttempt) -> frozenset[int]:
    """Return the steps of the trial's checkpoints before `step`, if the driver ordered to continue from
    another step.

    Return an empty set if the driver ordered `step`, or if the storage cannot be read.
    """
    if step == attempt.order["restore_step"]:
        return frozenset()
    with contextlib.suppress(Exception):  # each kind of storage has errors of its own
        return frozenset(checkpoint.step for checkpoint in store.ids(attempt.trial) if checkpoint.step < step)
    return frozenset()
