"""Fetch what an attempt starts from: a checkpoint of its trial, and the checkpoint of the job's teacher."""

import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tuner.checkpoints.checkpoints import (
    MANIFEST,
    CheckpointDamaged,
    CheckpointId,
    CheckpointMissing,
    CheckpointStore,
    PartOfStep,
)
from tuner.checkpoints.storage import explained
from tuner.domain.errors import BadFile
from tuner.worker.attempt import RunningAttempt
from tuner.worker.publishing import with_retries


class StorageFailed(Exception):
    """A checkpoint could not be read from storage after all retries."""


def restored_part(store: CheckpointStore, attempt: RunningAttempt, into: Path) -> PartOfStep | None:
    """Fetch the newest checkpoint from the middle of a step. Return None if there is none, or if the storage fails.

    Errors of the storage are ignored here, because without this checkpoint the trial only repeats a part of the step. If the storage
    still fails afterwards, restoring the checkpoint of a finished step raises the error.
    """
    if not attempt.may_have_part:
        return None
    with contextlib.suppress(Exception):  # each kind of storage has errors of its own
        first = attempt.order["restore_step"] or 0
        last = max(first, attempt.order["reported_step"])
        newest = partial(
            store.newest_part, attempt.trial, into, attempt=attempt.number, first=first, last=last
        )
        return with_retries(attempt, store, newest)
    return None


def restored(store: CheckpointStore, attempt: RunningAttempt, into: Path) -> tuple[int, Path] | None:
    """Fetch the newest undamaged checkpoint up to the step that the driver recorded as durable.

    Returns:
        The step of the checkpoint and the folder with its files, or None if all checkpoints are damaged.

    Raises:
        StorageFailed: A checkpoint could not be read, so it is unknown whether it is damaged. This is also raised if the expected
            checkpoint is missing and no other exists, because then the storage itself may have been replaced.
    """
    step, number = attempt.order["restore_step"] or 0, attempt.order.get("restore_attempt")
    expected = CheckpointId(step, number) if number is not None else None
    newest = partial(store.newest_valid, attempt.trial, into, at_most=step, expected=expected)
    try:
        return with_retries(attempt, store, newest)
    except Exception as error:
        checkpoint = None
        with contextlib.suppress(Exception):
            checkpoint = newest(last_try=True)
        if checkpoint is None:
            raise StorageFailed(f"the trial's checkpoint could not be read: {explained(error)}") from error
        return checkpoint


def fetched_teacher(attempt: RunningAttempt, teacher: Mapping[str, Any], into: Path) -> Path:
    """Fetch the checkpoint of the job's teacher, and return its directory. `teacher` is the one of `BeginOrder`.

    Raises:
        BadFile: The checkpoint is missing or damaged, so another attempt could not read it either.
        StorageFailed: The checkpoint could not be read after all retries.
    """
    store = CheckpointStore(teacher["storage"], teacher["project"], teacher["job"])
    checkpoint = CheckpointId(teacher["step"], teacher["attempt"])

    def fetch() -> Path | BadFile:
        try:
            return store.fetch(teacher["trial"], checkpoint, into)
        except (CheckpointDamaged, CheckpointMissing) as error:
            return BadFile(
                f"the checkpoint of the job's teacher, {teacher['trial']} of {teacher['job']}, cannot be used: {error}"
            )

    try:
        directory = with_retries(attempt, store, fetch)
    except Exception as error:
        raise StorageFailed(
            f"the checkpoint of the job's teacher could not be read: {explained(error)}"
        ) from error
    if isinstance(directory, BadFile):
        raise directory
    return directory


def size_of(checkpoint: Path) -> int:
    """Return the size of a checkpoint's files in bytes, without its manifest."""
    files = (file for file in checkpoint.rglob("*") if file.is_file() and file != checkpoint / MANIFEST)
    return sum(file.stat().st_size for file in files)


def older_than(step: int, store: CheckpointStore, attempt: RunningAttempt) -> frozenset[int]:
    """Return the steps of the trial's checkpoints that are older than `step`, the step of the restored checkpoint.

    These steps are needed only if newer checkpoints are damaged. So return an empty set if the driver ordered to restore `step`. Also
    return an empty set if the storage cannot be read.
    """
    if step == attempt.order["restore_step"]:
        return frozenset()
    with contextlib.suppress(Exception):  # each kind of storage has errors of its own
        return frozenset(checkpoint.step for checkpoint in store.ids(attempt.trial) if checkpoint.step < step)
    return frozenset()
