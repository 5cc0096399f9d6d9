"""Answers that many ask for at the same time, made once.

An answer serves as long as what it tells of has not changed, and while that changes, for as long as keeps the work below a twentieth of
one core, whoever asks: one that took 5 ms serves for a tenth of a second, and none for longer than two.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fastapi import Request, Response

from tuner.domain.job import FINAL
from tuner.schemas.base import Answer
from tuner.service import answers
from tuner.service.wiring import Service

SHARE = 20.0
OLDEST_S = 2.0
KEPT = 4000
MOST_BYTES = 64 << 20
A = TypeVar("A", bound=Answer)
T = TypeVar("T")


@dataclass(slots=True)
class _Kept(Generic[T]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    version: Hashable = None
    value: T | None = None
    fresh_until: float = 0.0
    size: int = 0


class Shared(Generic[T]):
    """Used by many threads. Those that were asked for last are kept: `KEPT` of them, and `MOST_BYTES` by what `size_of` says."""

    def __init__(self, size_of: Callable[[T], int] = lambda _: 0) -> None:
        self._lock, self._size_of, self._bytes = threading.Lock(), size_of, 0
        self._kept: OrderedDict[Hashable, _Kept[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, version: Hashable, make: Callable[[], T]) -> T:
        """What `make` gave for this key, at this version or moments before. Who asks meanwhile waits for who makes it."""
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
        with kept.lock:
            if kept.value is not None and (version == kept.version or time.monotonic() < kept.fresh_until):
                return kept.value
            began = time.monotonic()
            try:
                kept.value, kept.version = make(), version
            except BaseException:
                self._forget(key, kept)
                raise
            now = time.monotonic()
            kept.fresh_until = now + min(OLDEST_S, SHARE * (now - began))
            self._weigh(key, kept, self._size_of(kept.value))
            return kept.value

    def _forget(self, key: Hashable, kept: _Kept[T]) -> None:
        """What cannot be made is not to take the room of others, under however many names it is asked for."""
        with self._lock:
            if self._kept.get(key) is kept:
                self._bytes -= self._kept.pop(key).size

    def _weigh(self, key: Hashable, kept: _Kept[T], size: int) -> None:
        """Gives up what was asked for longest ago, until the rest has room."""
        with self._lock:
            if self._kept.get(key) is kept:
                self._bytes += size - kept.size
                kept.size = size
            while len(self._kept) > KEPT or (self._bytes > MOST_BYTES and len(self._kept) > 1):
                self._bytes -= self._kept.popitem(last=False)[1].size


def answer(request: Request, service: Service, name: Hashable, job: str, make: Callable[[], A]) -> Response:
    """What `make` says of a job, as JSON: for all who ask for it by this name. Raises NotFound."""
    version = answers.version(service, job)
    key = (service.database, service.project, name, job, version.state)
    shared: Shared[bytes] = request.app.state.shared
    return as_json(shared.get(key, version, lambda: make().model_dump_json().encode()))


def answer_once_ended(
    request: Request, service: Service, name: Hashable, job: str, make: Callable[[], A]
) -> Response:
    """As `answer` of a job that has ended; of one that may still change, what `make` says at this moment. Raises NotFound."""
    version = answers.version(service, job)
    if version.state not in FINAL:
        return as_json(make().model_dump_json().encode())
    key = (service.database, service.project, name, job, version)
    shared: Shared[bytes] = request.app.state.shared
    return as_json(shared.get(key, None, lambda: make().model_dump_json().encode()))


def as_json(text: bytes) -> Response:
    """Of a shape's own text: FastAPI would look through all of it again, in another thread."""
    return Response(text, media_type="application/json")
