"""Fetch what an attempt starts from: a checkpoint of its trial, and the checkpoint of the job's teacher."""

import contextlib
import threading
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
from tuner.worker.scratch import wipe


class StorageFailed(Exception):
    """A checkpoint could not be read from storage after all retries."""


class Restorer:
    """Fetches what the attempts of one supervisor start from.

    Args:
        changed: The supervisor's lock and condition. The lock is not held while something is fetched.
        home: The supervisor's directory. The teacher's checkpoint is kept there.
    """

    def __init__(self, changed: threading.Condition, home: Path) -> None:
        self._changed, self._home = changed, home
        # the directory with the checkpoint of the job's teacher, once fetched
        self._teacher: Path | None = None

    def checkpoint(self, attempt: RunningAttempt, store: CheckpointStore) -> Path | None:
        """Fetch the checkpoint from which the attempt continues, and return its directory. Return None if it starts from scratch."""
        return _same_as_node_0(attempt, store) if attempt.node else self._newest(attempt, store)

    def _newest(self, attempt: RunningAttempt, store: CheckpointStore) -> Path | None:
        """Fetch the newest undamaged checkpoint up to the step that the driver ordered, and return its directory.

        A checkpoint from the middle of a later step is preferred. Return None if the attempt starts from scratch or no checkpoint is
        found.
        """
        if not attempt.order["restore_step"] and not attempt.may_have_part:
            return None
        with self._changed:
            attempt.watch.switch("restore")
        into = attempt.directory / "restore"
        part = restored_part(store, attempt, into)
        if part is not None:
            size = size_of(part.directory)
            with self._changed:
                attempt.watch.switch("setup")
                attempt.restored_from(part.step, carried_ns=part.trained_ns)
                attempt.use.restored(size * attempt.nodes)
                return part.directory
        checkpoint = restored(store, attempt, into) if attempt.order["restore_step"] else None
        older = older_than(checkpoint[0], store, attempt) if checkpoint is not None else frozenset()
        size = 0 if checkpoint is None else size_of(checkpoint[1])
        with self._changed:
            attempt.watch.switch("setup")
            if checkpoint is None:
                return None
            attempt.restored_from(checkpoint[0], older)
            attempt.use.restored(size * attempt.nodes)  # the other nodes download the same checkpoint
            return checkpoint[1]

    def give_teacher(self, attempt: RunningAttempt) -> None:
        """Give the attempt the checkpoint of the job's teacher, if the job has one. A worker fetches it only once.

        An attempt that was stopped may still be fetching when the next one begins. So each attempt fetches into a directory of its own,
        and the first complete one is kept.
        """
        teacher = attempt.order.get("teacher")
        if teacher is None or attempt.state is not None:
            return
        if self._teacher is None:
            with self._changed:
                attempt.watch.switch("restore")
            into = self._home / f"teacher-{attempt.trial}-a{attempt.number}"
            try:
                fetched = fetched_teacher(attempt, teacher, into)
                size = size_of(fetched)
                with self._changed:
                    attempt.watch.switch("setup")
                    attempt.use.restored(size)
                    self._teacher = self._teacher or fetched
            finally:
                if self._teacher is None or not self._teacher.is_relative_to(into):
                    wipe(into)
        attempt.teacher = {"path": str(self._teacher), "config": teacher["config"]}


def _same_as_node_0(attempt: RunningAttempt, store: CheckpointStore) -> Path | None:
    """Fetch the checkpoint from which node 0 continues, and return its directory. Return None if the attempt starts from scratch."""
    name = attempt.order["checkpoint"]
    if name is None:
        return None
    checkpoint = CheckpointId.named(name)
    attempt.restored_from(checkpoint.step)
    into = attempt.directory / "restore" / name
    return with_retries(attempt, store, lambda: store.fetch(attempt.trial, checkpoint, into))


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
