"""Measurements of the training helpers, sent with each report: the time spent waiting for data, and the training setup.

They are stored in globals, because a process trains one configuration at a time. This module needs only the standard library.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_LOADER = {
    "num_workers": "loader_workers",
    "prefetch_factor": "prefetch_factor",
    "batch_size": "batch_size",
    "pin_memory": "pin_memory",
}
_facts: dict[str, Any] = {}
_waited_ns: list[int] = []


def note(**facts: str | int) -> None:
    """Record facts about the training setup, such as `batch_size=64`. A newer value of a fact replaces the older one."""
    _facts.update(facts)


def measurements() -> dict[str, Any]:
    """Return the measurements so far, by name: `data_wait_ns` if batches were timed, and `facts` if `note` has recorded any."""
    measured: dict[str, Any] = {"facts": dict(_facts)} if _facts else {}
    return {**measured, "data_wait_ns": _waited_ns[0]} if _waited_ns else measured


def forget() -> None:
    """Clear all measurements."""
    _facts.clear()
    _waited_ns.clear()


class TimedBatches(Generic[T]):
    """Wrap an iterable of batches, and measure how long training waits for each batch."""

    def __init__(self, batches: Iterable[T]) -> None:
        self._batches = batches
        shown = {ours: getattr(batches, theirs, None) for theirs, ours in _LOADER.items()}
        note(**{name: value for name, value in shown.items() if isinstance(value, int)})

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        began = time.monotonic_ns()
        for batch in self._batches:
            _add(time.monotonic_ns() - began)
            yield batch
            began = time.monotonic_ns()
        _add(time.monotonic_ns() - began)


def _add(ns: int) -> None:
    _waited_ns[:] = [sum(_waited_ns) + ns]
