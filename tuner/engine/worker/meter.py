"""The time of an attempt by kind of cost, on the monotonic clock. Time beyond the lease is not counted."""

import time


class Stopwatch:
    """Measure time by kind. A later reading never shows less of a kind than an earlier one.

    Not thread-safe: the supervisor's lock guards it.
    """

    def __init__(self, kind: str, began_ns: int) -> None:
        self._kind, self._since = kind, began_ns
        self._ns: dict[str, int] = {}
        self._shown: dict[str, int] = {}
        self._shown_at = began_ns

    @property
    def kind(self) -> str:
        """The kind of the time that passes now."""
        return self._kind

    def switch(self, kind: str, at_ns: int | None = None) -> None:
        """Count the time from `at_ns` on as `kind`. None means now.

        An instant before the last switch or reading is moved to that one. An instant in the future is moved to now.
        """
        now = time.monotonic_ns()
        at = max(self._since, self._shown_at, now if at_ns is None else min(at_ns, now))
        self._ns[self._kind] = self._ns.get(self._kind, 0) + at - self._since
        self._kind, self._since = kind, at

    def reading(self, lease_ns: int, at_ns: int | None = None) -> dict[str, int]:
        """Return nanoseconds by kind until `at_ns`, or until now if that is None or in the future. Time beyond the lease is not
        counted."""
        now = time.monotonic_ns()
        at = max(self._since, self._shown_at, now if at_ns is None else min(at_ns, now))
        shown = dict(self._ns)
        shown[self._kind] = shown.get(self._kind, 0) + at - self._since
        over = sum(shown.values()) - lease_ns
        for kind in [self._kind, *shown]:
            cut = min(max(0, over), shown[kind] - self._shown.get(kind, 0))
            shown[kind], over = shown[kind] - cut, over - cut
        self._shown, self._shown_at = shown, at
        return {kind: ns for kind, ns in shown.items() if ns}

    def of(self, kind: str) -> int:
        """Return the nanoseconds of one kind so far, including time beyond the lease."""
        running = max(0, time.monotonic_ns() - self._since) if kind == self._kind else 0
        return self._ns.get(kind, 0) + running

    def total_ns(self) -> int:
        return sum(self._ns.values()) + max(0, time.monotonic_ns() - self._since)
