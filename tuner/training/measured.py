"""What our helpers see of a training, told with each report: how long it waited for data, and how it is set up.

Of this process, which trains one configuration. The standard library alone.
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
    """The newest counts."""
    _facts.update(facts)


def taken() -> dict[str, Any]:
    """So far: `data_wait_ns` where batches were timed, and `facts`."""
    found: dict[str, Any] = {"facts": dict(_facts)} if _facts else {}
    return {**found, "data_wait_ns": _waited_ns[0]} if _waited_ns else found


def forget() -> None:
    """As in a process that has just begun."""
    _facts.clear()
    _waited_ns.clear()


class Timed(Generic[T]):
    """The same batches; how long each is waited for is measured."""

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
