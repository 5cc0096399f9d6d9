"""Offer each call of the client both to blocking and to asynchronous code. The call is written once, as a coroutine function.

`AsyncClient` returns the coroutine of a call, and its user awaits it. `Client` runs the same coroutine to its end. It sends requests with
`BlockingHttp`, whose coroutines block instead of suspending, so a single `send(None)` completes any call. No event loop and no thread is
needed, and interrupts and tracebacks are those of plain blocking code.
"""

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeAlias, TypeVar, overload

from tuner.schemas.answers import TrialDetail
from tuner.schemas.job import JobFacts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tuner.client.job import AsyncJob, Job
    from tuner.client.trial import AsyncTrial, Trial

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Items: TypeAlias = AsyncGenerator[T, None]


class Blocking:
    """Base of `Client`, `Job` and `Trial`, whose calls return when they are complete."""


class Awaiting:
    """Base of `AsyncClient`, `AsyncJob` and `AsyncTrial`, whose calls are awaited."""


def run(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never suspends, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("a call of the blocking client awaited something that needs an event loop")


def iterate(items: Items[T]) -> Iterator[T]:
    """Yield the items of an asynchronous generator that never suspends."""
    try:
        while True:
            try:
                item = run(items.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        run(items.aclose())


class _Method:
    """Base of the decorators `call` and `series`, which turn a function into a method.

    The method blocks in subclasses of `Blocking` and is awaited in subclasses of `Awaiting`. In any other class, such as `Calls`, looking up
    the method returns the decorator object. The object's attribute `body` is the undecorated function, which other calls can await, for
    example `Calls.submit.body`.
    """

    body: Any
    _blocking: Callable[..., Any]

    def _get(self, owner: object, kind: type) -> Any:
        if not issubclass(kind, Blocking | Awaiting):
            return self
        function = self._blocking if issubclass(kind, Blocking) else self.body
        return function if owner is None else MethodType(function, owner)


class call(_Method, Generic[P, R]):
    """Turn a coroutine function into a call that returns one answer, for use as a decorator.

    If the function is annotated to return `JobFacts`, type checkers see a `Job` on a blocking client and an `AsyncJob` on an asynchronous
    one. Likewise, `TrialDetail` becomes `Trial` and `AsyncTrial`.
    """

    body: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]

    def __init__(self, body: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> None:
        @functools.wraps(body)
        def blocking(owner: Any, *args: P.args, **kwargs: P.kwargs) -> R:
            return run(body(owner, *args, **kwargs))

        self.body, self._blocking = body, blocking

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self: "call[P, JobFacts]", owner: Blocking, kind: type) -> "Callable[P, Job]": ...
    @overload
    def __get__(
        self: "call[P, JobFacts]", owner: Awaiting, kind: type
    ) -> "Callable[P, Coroutine[Any, Any, AsyncJob]]": ...
    @overload
    def __get__(self: "call[P, TrialDetail]", owner: Blocking, kind: type) -> "Callable[P, Trial]": ...
    @overload
    def __get__(
        self: "call[P, TrialDetail]", owner: Awaiting, kind: type
    ) -> "Callable[P, Coroutine[Any, Any, AsyncTrial]]": ...
    @overload
    def __get__(self, owner: Blocking, kind: type) -> Callable[P, R]: ...
    @overload
    def __get__(self, owner: Awaiting, kind: type) -> Callable[P, Coroutine[Any, Any, R]]: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        return self._get(owner, kind)


class series(_Method, Generic[P, T]):
    """Turn an asynchronous generator function into a call that returns an iterator, for use as a decorator."""

    body: Callable[Concatenate[Any, P], Items[T]]

    def __init__(self, body: Callable[Concatenate[Any, P], Items[T]]) -> None:
        @functools.wraps(body)
        def blocking(owner: Any, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            return iterate(body(owner, *args, **kwargs))

        self.body, self._blocking = body, blocking

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self: "series[P, JobFacts]", owner: Blocking, kind: type) -> "Callable[P, Iterator[Job]]": ...
    @overload
    def __get__(
        self: "series[P, JobFacts]", owner: Awaiting, kind: type
    ) -> "Callable[P, AsyncIterator[AsyncJob]]": ...
    @overload
    def __get__(self, owner: Blocking, kind: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, owner: Awaiting, kind: type) -> "Callable[P, AsyncIterator[T]]": ...
    def __get__(self, owner: Any, kind: type) -> Any:
        return self._get(owner, kind)
