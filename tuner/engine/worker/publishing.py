"""Checkpoints on their way to shared storage: one after another, tried again where the storage falters."""

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

from tuner.engine.checkpoints import CheckpointStore, Found, Published
from tuner.engine.storage_words import explained
from tuner.engine.worker.attempt import Attempt

WAITS_S = (0.2, 0.8, 3.2, 12.8, 25.6, 51.2)
PATIENCE_S = 120.0  # nothing is tried again after that; one try may take as long as its requests' timeouts
FEW = 3  # waits for what will stay as it is: the worker is paid meanwhile
JITTER = 0.5  # of a wait, up and down: workers that failed together should not come back together
T = TypeVar("T")
log = logging.getLogger("tuner.worker")


def background(name: str, work: Callable[..., None], *args: object, **more: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=args, kwargs=more, name=name, daemon=True)
    thread.start()
    return thread


class Publisher:
    """Does one thing after another, in threads of which a hanging one keeps no process alive."""

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
        """Waits for what was submitted. What is not done by then goes on, and nothing later waits for it."""
        last, self._last = self._last, None
        if last is not None:
            last.join(timeout_s)


class StorageFailed(Exception):
    """The storage did not give what was saved, after all patience."""


def tried(
    attempt: Attempt,
    store: CheckpointStore,
    work: Callable[[], T],
    *,
    wanted: Callable[[], bool] = lambda: True,
) -> T:
    """What `work` gives, tried again while it is wanted and paid for, and patience lasts. Raises what the storage raised last."""
    began = time.monotonic()
    for number, wait_s in enumerate(WAITS_S):
        tried_at = time.monotonic()
        try:
            return work()
        except Exception as error:  # each kind of storage has errors of its own
            in_vain = number >= FEW and store.stays_so(error)
            impatient = in_vain or time.monotonic() - began > PATIENCE_S
            if impatient or not wanted() or attempt.state == "stopped" or attempt.left_ns() <= 0:
                raise
            log.warning("%s: the storage failed, and is tried again: %s", attempt.trial, explained(error))
            wait_s *= random.uniform(1 - JITTER, 1 + JITTER)
            attempt.outage(int((time.monotonic() - tried_at + wait_s) * 1e9))
            time.sleep(wait_s)
    return work()


def publish(
    store: CheckpointStore, attempt: Attempt, step: int, path: Path, protect: frozenset[int]
) -> tuple[Published | None, str]:
    """The durable checkpoint, older ones pruned; or None, and what the storage said last, or why this is none to be stored."""
    astray = leads_astray(path, attempt.staging)
    if astray:
        log.warning("%s: step %d was not saved: %s", attempt.trial, step, astray)
        return None, astray

    def newest() -> bool:
        best = attempt.best is not None and attempt.best[1] == step
        return best or attempt.saved_step <= step

    try:
        published = tried(
            attempt, store, lambda: store.publish(attempt.trial, attempt.number, step, path), wanted=newest
        )
    except Exception as error:
        log.warning("%s: step %d was not saved: %s", attempt.trial, step, explained(error))
        return None, explained(error)
    with contextlib.suppress(Exception):  # what is not removed now is with the next one
        keep = attempt.order["keep"]
        newest_step = max(step, attempt.durable)
        store.prune(attempt.trial, attempt.number, newest=newest_step, keep=keep, protect=protect)
    return published, ""


def leads_astray(path: Path, staging: Path | None) -> str:
    """Why what user code calls a checkpoint is none of its own, or "". What it names is read, and removed, by its supervisor, which may
    read what user code may not."""
    own = Path(os.path.realpath(path))
    if staging is not None and Path(os.path.realpath(staging)) not in own.parents:
        return f"{path} is not in the directory for checkpoints, {staging}: write it there"
    for file in path.rglob("*"):
        if file.is_symlink() and own not in Path(os.path.realpath(file)).parents:
            return f"{file.relative_to(path)} is a link out of the checkpoint: copy the file into it"
    return ""


def restored(store: CheckpointStore, attempt: Attempt, into: Path) -> tuple[int, Path] | None:
    """Step and files of the newest whole checkpoint up to the step that the driver knows to be durable. None where every one
    is damaged. Raises StorageFailed where one is not given, of which nobody can say that it is damaged, and where that of this step
    is gone and no other there: this is not the storage that it was."""
    step, number = attempt.order["restore_step"], attempt.order.get("restore_attempt")
    expected = Found(step, number) if number is not None else None
    newest = partial(store.newest_valid, attempt.trial, into, at_most=step, expected=expected)
    try:
        return tried(attempt, store, newest)
    except Exception as error:
        found = None
        with contextlib.suppress(Exception):
            found = newest(last_try=True)
        if found is None:
            raise StorageFailed(f"its checkpoint could not be read: {explained(error)}") from error
        return found


def older_than(step: int, store: CheckpointStore, attempt: Attempt) -> frozenset[int]:
    """The steps of the trial's checkpoints before this one, where it is not the one that was asked for; as far as can be seen."""
    if step == attempt.order["restore_step"]:
        return frozenset()
    with contextlib.suppress(Exception):  # each kind of storage has errors of its own
        return frozenset(found.step for found in store.found(attempt.trial) if found.step < step)
    return frozenset()
