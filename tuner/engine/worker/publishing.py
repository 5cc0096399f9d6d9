"""A checkpoint on its way to shared storage, tried again where the storage falters."""

import contextlib
import time
from pathlib import Path

from tuner.engine.checkpoints import CheckpointStore, Published
from tuner.engine.worker.attempt import Attempt

TRIES = 3


def publish(
    store: CheckpointStore, attempt: Attempt, step: int, path: Path, protect: frozenset[int]
) -> tuple[Published | None, str]:
    """The durable checkpoint, older ones pruned; or None, and what the storage said last."""
    problem = ""
    for tried in range(TRIES):
        try:
            published = store.publish(attempt.trial, attempt.number, step, path)
        except OSError as error:
            problem = f"{type(error).__name__}: {error}"
            time.sleep(0.2 * 4**tried)
            continue
        with contextlib.suppress(OSError):  # what is not removed now is with the next one
            store.prune(attempt.trial, keep=attempt.order["keep"], protect=protect)
        return published, ""
    return None, problem
