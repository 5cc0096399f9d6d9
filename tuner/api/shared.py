"""Answers that many ask for at the same time, made once.

An answer serves as long as its job has not changed, and while the job changes, for as long as keeps the work below a twentieth of one
core, whoever asks: one that took 5 ms serves for a tenth of a second, and none for longer than two.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fastapi import Request, Response

from tuner.schemas.base import Answer
from tuner.service import answers
from tuner.service.wiring import Service

SHARE = 20.0
OLDEST_S = 2.0
KEPT = 32
A = TypeVar("A", bound=Answer)
T = TypeVar("T")


@dataclass(slots=True)
class _Kept(Generic[T]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    version: Hashable = None
    value: T | None = None
    fresh_until: float = 0.0


class Shared(Generic[T]):
    """Used by many threads. The `KEPT` that were asked for last are kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, _Kept[T]] = OrderedDict()

    def get(self, key: Hashable, version: Hashable, make: Callable[[], T]) -> T:
        """What `make` gave for this key, at this version or moments before. Who asks meanwhile waits for who makes it."""
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        with kept.lock:
            if kept.value is not None and (version == kept.version or time.monotonic() < kept.fresh_until):
                return kept.value
            began = time.monotonic()
            kept.value, kept.version = make(), version
            now = time.monotonic()
            kept.fresh_until = now + min(OLDEST_S, SHARE * (now - began))
            return kept.value


def answer(request: Request, service: Service, name: str, job: str, make: Callable[[], A]) -> Response:
    """What `make` says of a job, as JSON: for all who ask for it by this name. Raises NotFound."""
    version = answers.version(service, job)
    key = (service.database, name, job, version.state)
    shared: Shared[bytes] = request.app.state.shared
    text = shared.get(key, version, lambda: make().model_dump_json().encode())
    return Response(text, media_type="application/json")
