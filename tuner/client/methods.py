"""Descriptors that turn one generator function into a method that blocks or is awaited, depending on the object's class.

The body is a generator of steps. On a `Blocking` object, the method returns the answer. On an `Awaiting` object, it returns a coroutine.
`@call` is for a single answer, `@job_call` for an answer that is a `Job` or `AsyncJob`, and `@series` and `@job_series` are for iterators.
There are four descriptors, so that type checkers know the result type for each client.
"""

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from tuner.client.steps import Awaiting, Blocking, Series, Steps

if TYPE_CHECKING:
    from tuner.client.job import AsyncJob, Job

P = ParamSpec("P")
F = TypeVar("F")
R = TypeVar("R")
T = TypeVar("T")


class Method(Generic[P, F]):
    """Base of the descriptors. `steps` is the generator function, which other calls use directly with `yield from`."""

    def __init__(self, body: Callable[Concatenate[Any, P], F]) -> None:
        self.steps = body
        self.__doc__ = body.__doc__

    def _bound(self, run: Callable[[F], Any], owner: Any) -> Any:
        @functools.wraps(self.steps)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return run(self.steps(owner, *args, **kwargs))

        return method


class Call(Method[P, Steps[R]]):
    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: Blocking, kind: type) -> Callable[P, R]: ...
    @overload
    def __get__(self, owner: Awaiting, kind: type) -> Callable[P, Coroutine[Any, Any, R]]: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        return self if owner is None else self._bound(owner._run, owner)


class JobCall(Method[P, Steps[Any]]):
    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: Blocking, kind: type) -> "Callable[P, Job]": ...
    @overload
    def __get__(self, owner: Awaiting, kind: type) -> "Callable[P, Coroutine[Any, Any, AsyncJob]]": ...
    def __get__(self, owner: Any, kind: type) -> Any:
        return self if owner is None else self._bound(owner._run, owner)


class Many(Method[P, Series[T]]):
    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: Blocking, kind: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, owner: Awaiting, kind: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        return self if owner is None else self._bound(owner._iterate, owner)


class ManyJobs(Method[P, Series[Any]]):
    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: Blocking, kind: type) -> "Callable[P, Iterator[Job]]": ...
    @overload
    def __get__(self, owner: Awaiting, kind: type) -> "Callable[P, AsyncIterator[AsyncJob]]": ...
    def __get__(self, owner: Any, kind: type) -> Any:
        return self if owner is None else self._bound(owner._iterate, owner)


def call(body: Callable[Concatenate[Any, P], Steps[R]]) -> Call[P, R]:
    return Call(body)


def job_call(body: Callable[Concatenate[Any, P], Steps[Any]]) -> JobCall[P]:
    return JobCall(body)


def series(body: Callable[Concatenate[Any, P], Series[T]]) -> Many[P, T]:
    return Many(body)


def job_series(body: Callable[Concatenate[Any, P], Series[Any]]) -> ManyJobs[P]:
    return ManyJobs(body)
