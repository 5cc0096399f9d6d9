"""Effects, and the two ways to perform them. They allow each call to be written once for both clients.

A call is a generator. It yields effects (send a request, sleep, read a line of a stream), receives the result of each,
and returns the answer. `Blocking` performs the effects directly, and `Awaiting` awaits them. The code of a call does not
know which one runs it.

The descriptors at the end turn such a generator function into a method. On a `Blocking` object, the method returns the
answer. On an `Awaiting` object, it returns a coroutine. `@call` is for a single answer, `@job_call` for an answer that is
a `Job` or `AsyncJob`, and `@series` and `@job_series` are for iterators. There are four descriptors, so that type
checkers know the result type for each client.
"""

import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    overload,
)

import httpx2

if TYPE_CHECKING:
    from tuner.client.job import AsyncJob, Job


R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request. The result is the response, whatever its status."""

    method: str
    path: str
    query: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    content: str | bytes | None = None
    timeout_s: float | None = None

    def options(self) -> dict[str, Any]:
        found = {"params": self.query, "headers": self.headers, "content": self.content}
        return found if self.timeout_s is None else {**found, "timeout": self.timeout_s}


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a stream, and close the previous one. The result is the response. Its body has been read only if it is an error."""

    path: str
    headers: dict[str, str]
    answer_s: float  #: The time limit for the headers.
    line_s: float  #: The time limit for each line that follows.

    def timeout(self, whole: httpx2.Timeout) -> httpx2.Timeout:
        return httpx2.Timeout(connect=whole.connect, write=whole.write, pool=whole.pool, read=self.answer_s)

    def begun(self, answer: httpx2.Response) -> None:
        """Change the read timeout from that of the headers to that of a line. The transport reads it when the body begins."""
        answer.request.extensions["timeout"]["read"] = self.line_s


@dataclass(frozen=True, slots=True)
class ReadLine:
    """Read a line. The result is the next line of the stream, or None at its end."""


class Sink(Protocol):
    """Receives the body of a successful response."""

    def begin(self, answer: httpx2.Response) -> None:
        """Prepare for the body. Called when the headers have arrived."""

    def write(self, chunk: bytes) -> object: ...


@dataclass(frozen=True, slots=True)
class Fetch:
    """Send a GET request. The result is the response. If it is a success, its body is written to the sink in chunks."""

    path: str
    query: dict[str, Any]
    headers: dict[str, str]
    sink: Sink


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """A value that a series yields to its caller. Everything else that it yields is an effect to perform."""

    value: T


Effect: TypeAlias = Send | Sleep | Connect | ReadLine | Fetch
Steps: TypeAlias = Generator[Effect, Any, R]
Series: TypeAlias = Generator[Effect | Item[T], Any, None]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of an effect, or the exception that it raised."""

    value: Any = None
    error: Exception | None = None

    def into(self, steps: Generator[S, Any, Any]) -> S:
        """Pass the result to the generator, or raise the exception in it. Return the next effect that it yields."""
        return steps.send(self.value) if self.error is None else steps.throw(self.error)


def collected(series: Series[T]) -> Steps[list[T]]:
    """Return all items of the series as a list."""
    found, outcome = list[T](), _Outcome()
    while True:
        try:
            effect = outcome.into(series)
        except StopIteration:
            return found
        outcome = _Outcome()
        if isinstance(effect, Item):
            found.append(effect.value)
            continue
        try:
            outcome = _Outcome((yield effect))
        except Exception as error:
            outcome = _Outcome(error=error)


class _Line:
    """Performs the effects of one call, and keeps the stream that the call reads, if any."""

    def __init__(self, http: httpx2.Client) -> None:
        self._http, self._open = http, ExitStack()
        self._lines: Iterator[str] = iter(())

    def perform(self, effect: Effect) -> _Outcome:
        try:
            return _Outcome(self._done(effect))
        except Exception as error:
            return _Outcome(error=error)

    def close(self) -> None:
        self._open.close()

    def _done(self, effect: Effect) -> Any:
        match effect:
            case Send():
                return self._http.request(effect.method, effect.path, **effect.options())
            case Sleep():
                return time.sleep(effect.seconds)
            case Connect():
                return self._connected(effect)
            case ReadLine():
                return next(self._lines, None)
            case Fetch(path, query, headers, sink):
                with self._http.stream("GET", path, params=query, headers=headers) as answer:
                    if not answer.is_success:
                        answer.read()
                        return answer
                    sink.begin(answer)
                    for chunk in answer.iter_bytes():
                        sink.write(chunk)
                    return answer

    def _connected(self, effect: Connect) -> httpx2.Response:
        self._open.close()
        timeout = effect.timeout(self._http.timeout)
        stream = self._http.stream("GET", effect.path, headers=effect.headers, timeout=timeout)
        answer = self._open.enter_context(stream)
        effect.begun(answer)
        if not answer.is_success:
            answer.read()
        self._lines = answer.iter_lines()
        return answer


class _AsyncLine:
    """The same as `_Line`, awaited."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http, self._open = http, AsyncExitStack()
        self._lines: AsyncIterator[str]

    async def perform(self, effect: Effect) -> _Outcome:
        try:
            return _Outcome(await self._done(effect))
        except Exception as error:
            return _Outcome(error=error)

    async def close(self) -> None:
        await self._open.aclose()

    async def _done(self, effect: Effect) -> Any:
        match effect:
            case Send():
                return await self._http.request(effect.method, effect.path, **effect.options())
            case Sleep():
                from asyncio import sleep

                return await sleep(effect.seconds)
            case Connect():
                return await self._connected(effect)
            case ReadLine():
                return await anext(self._lines, None)
            case Fetch(path, query, headers, sink):
                async with self._http.stream("GET", path, params=query, headers=headers) as answer:
                    if not answer.is_success:
                        await answer.aread()
                        return answer
                    sink.begin(answer)
                    async for chunk in answer.aiter_bytes():
                        sink.write(chunk)
                    return answer

    async def _connected(self, effect: Connect) -> httpx2.Response:
        await self._open.aclose()
        timeout = effect.timeout(self._http.timeout)
        stream = self._http.stream("GET", effect.path, headers=effect.headers, timeout=timeout)
        answer = await self._open.enter_async_context(stream)
        effect.begun(answer)
        if not answer.is_success:
            await answer.aread()
        self._lines = answer.aiter_lines()
        return answer


class Blocking:
    """Runs calls to their end before returning. The base of `Client` and `Job`."""

    _http: httpx2.Client

    def _run(self, steps: Steps[R]) -> R:
        line, outcome = _Line(self._http), _Outcome()
        while True:
            try:
                effect = outcome.into(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            outcome = line.perform(effect)

    def _iterate(self, steps: Series[T]) -> Iterator[T]:
        line, outcome = _Line(self._http), _Outcome()
        try:
            while True:
                try:
                    effect = outcome.into(steps)
                except StopIteration:
                    return
                if isinstance(effect, Item):
                    outcome = _Outcome()
                    yield effect.value
                else:
                    outcome = line.perform(effect)
        finally:
            line.close()


class Awaiting:
    """Runs calls as coroutines. The base of `AsyncClient` and `AsyncJob`."""

    _http: httpx2.AsyncClient

    async def _run(self, steps: Steps[R]) -> R:
        line, outcome = _AsyncLine(self._http), _Outcome()
        while True:
            try:
                effect = outcome.into(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            outcome = await line.perform(effect)

    async def _iterate(self, steps: Series[T]) -> AsyncIterator[T]:
        line, outcome = _AsyncLine(self._http), _Outcome()
        try:
            while True:
                try:
                    effect = outcome.into(steps)
                except StopIteration:
                    return
                if isinstance(effect, Item):
                    outcome = _Outcome()
                    yield effect.value
                else:
                    outcome = await line.perform(effect)
        finally:
            await line.close()


P = ParamSpec("P")
F = TypeVar("F")


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
