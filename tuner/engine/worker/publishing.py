"""Checkpoints on their way to shared storage: one after another, tried again where the storage falters."""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tuner.engine.checkpoints import CheckpointStore, Published
from tuner.engine.worker.attempt import Attempt

WAITS_S = (0.2, 0.8, 3.2, 12.8)
T = TypeVar("T")


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


def tried(attempt: Attempt, work: Callable[[], T]) -> T:
    """What `work` gives, tried again while the attempt is paid for. Raises what the storage raised last."""
    for wait_s in WAITS_S:
        try:
            return work()
        except Exception:  # each kind of storage has errors of its own
            if attempt.state == "stopped" or attempt.left_ns() <= 0:
                raise
            time.sleep(wait_s)
    return work()


def publish(
    store: CheckpointStore, attempt: Attempt, step: int, path: Path, protect: frozenset[int]
) -> tuple[Published | None, str]:
    """The durable checkpoint, older ones pruned; or None, and what the storage said last."""
    try:
        published = tried(attempt, lambda: store.publish(attempt.trial, attempt.number, step, path))
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    with contextlib.suppress(Exception):  # what is not removed now is with the next one
        keep = attempt.order["keep"]
        store.prune(attempt.trial, attempt.number, newest=step, keep=keep, protect=protect)
    return published, ""
