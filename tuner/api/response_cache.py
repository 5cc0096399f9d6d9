"""A cache for answers that many clients request at the same time.

A cached answer is used until its data changes. If the data keeps changing, the answer is still used for 20 times the time that it took to
make, so that making it takes at most a twentieth of one core, for any number of clients. For example, an answer that took 5 ms is used for
a tenth of a second. An outdated answer is used for at most two seconds.
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
from tuner.service.bootstrap import Service

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


class AnswerCache(Generic[T]):
    """Thread-safe cache of the most recently used values.

    It holds at most `KEPT` values, and `MOST_BYTES` bytes as counted by `size_of`. An outdated value is returned for at most `oldest_s`
    seconds.
    """

    def __init__(self, size_of: Callable[[T], int] = lambda _: 0, *, oldest_s: float = OLDEST_S) -> None:
        self._lock, self._size_of, self._bytes = threading.Lock(), size_of, 0
        self._oldest_s = oldest_s
        self._kept: OrderedDict[Hashable, _Kept[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, version: Hashable, make: Callable[[], T]) -> T:
        """Return the cached value of `key` if it has this `version` or is still fresh. Otherwise call `make`, and cache and return its result.

        A value is fresh for SHARE times the time that `make` took, at most `oldest_s` seconds. If several threads ask for the same key, one makes
        the value and the others wait for it.
        """
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
            kept.fresh_until = now + min(self._oldest_s, SHARE * (now - began))
            self._weigh(key, kept, self._size_of(kept.value))
            return kept.value

    def _forget(self, key: Hashable, kept: _Kept[T]) -> None:
        """Remove a key whose value could not be made. If it stayed, requests for many objects that do not exist would displace cached values."""
        with self._lock:
            if self._kept.get(key) is kept:
                self._bytes -= self._kept.pop(key).size

    def _weigh(self, key: Hashable, kept: _Kept[T], size: int) -> None:
        """Record the size of a value. Then remove the least recently used values until the cache is within its limits.

        The limits are `KEPT` values and `MOST_BYTES` bytes. A single value stays even if it has more bytes.
        """
        with self._lock:
            if self._kept.get(key) is kept:
                self._bytes += size - kept.size
                kept.size = size
            while len(self._kept) > KEPT or (self._bytes > MOST_BYTES and len(self._kept) > 1):
                self._bytes -= self._kept.popitem(last=False)[1].size


def answer(
    request: Request,
    service: Service,
    name: Hashable,
    job: str,
    make: Callable[[], A],
    *,
    once_ended: bool = False,
) -> Response:
    """Return the answer that `make` returns for a job, as JSON, from the cache if possible.

    `name` distinguishes the cached answers of one job. The answer may be up to two seconds old. If `once_ended` is true, the answer is always
    current, and is cached only if the job has ended. Raise NotFound if the job does not exist.
    """
    version = answers.version(service, job)

    def text() -> bytes:
        return make().model_dump_json().encode()

    if once_ended and version.state not in FINAL:
        return as_json(text())
    cache: AnswerCache[bytes] = request.app.state.responses
    key = (service.project, name, job, version if once_ended else version.state)
    return as_json(cache.get(key, version, text))


def as_json(text: bytes) -> Response:
    """Return a response whose body is JSON text that was already encoded from a pydantic model.

    A route that returns the model itself is slower, because FastAPI validates the model again.
    """
    return Response(text, media_type="application/json")
