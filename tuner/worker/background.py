"""Run functions in daemon threads, which do not keep the process alive if a function hangs."""

import threading
from collections.abc import Callable


def background(name: str, work: Callable[..., None], *args: object, **more: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=args, kwargs=more, name=name, daemon=True)
    thread.start()
    return thread


class Publisher:
    """Runs submitted functions one after the other.

    Each function runs in a daemon thread, so that a function that hangs does not keep the process alive.
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
        """Wait up to `timeout_s` for the submitted functions to finish.

        Unfinished functions continue. Functions that are submitted later do not wait for them.
        """
        last, self._last = self._last, None
        if last is not None:
            last.join(timeout_s)
