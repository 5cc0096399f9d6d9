"""Checkpoints on their way to shared storage: one after another, tried again where the storage falters."""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tuner.engine.checkpoints import CheckpointStore, Published
from tuner.engine.worker.attempt import Attempt

TRIES = 5  # over 17 s


def background(name: str, work: Callable[..., None], *args: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=args, name=name, daemon=True)
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


def publish(
    store: CheckpointStore, attempt: Attempt, step: int, path: Path, protect: frozenset[int]
) -> tuple[Published | None, str]:
    """The durable checkpoint, older ones pruned; or None, and what the storage said last."""
    problem = ""
    for tried in range(TRIES):
        try:
            published = store.publish(attempt.trial, attempt.number, step, path)
        except Exception as error:  # each kind of storage has errors of its own
            problem = f"{type(error).__name__}: {error}"
            if tried + 1 == TRIES or attempt.state == "stopped" or attempt.left_ns() <= 0:
                break
            time.sleep(0.2 * 4**tried)
            continue
        with contextlib.suppress(Exception):  # what is not removed now is with the next one
            store.prune(attempt.trial, newest=step, keep=attempt.order["keep"], protect=protect)
        return published, ""
    return None, problem
