"""Requests to the service: its address and key, query parameters, pages, retries, and errors."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import count
from typing import Any, NamedTuple, TypedDict, TypeVar
from urllib.parse import quote

import httpx2

from tuner.client.bridge import Items
from tuner.domain.text import did_you_mean
from tuner.domain.time import RAY_START_S
from tuner.schemas.base import Answer, FieldProblem, Problem
from tuner.settings import Settings, is_loopback, visible


class MachineOptions(TypedDict, total=False):
    """The machine for which costs are computed. If no field is given, the recorded costs are returned."""

    market: str | None
    instance_type: str | None
    region: str | None


class BestQuery(MachineOptions, total=False):
    """Limits on training a configuration. The inherited fields name the machine. `max_duration` is in seconds, or text such as 90m."""

    max_cost_usd: float | None
    max_gpu_hours: float | None
    max_duration: str | float | None


# The query parameters or fields that a call accepts. Other names are refused before a request is sent.
BEST = frozenset(BestQuery.__annotations__)
MACHINE_OPTIONS = frozenset(MachineOptions.__annotations__)
PRICES = frozenset({"cloud", "region", "zone", "instance_type", "accelerator", "market"})
SPEND = frozenset({"since", "until", "timezone"})
ESTIMATE = frozenset({"run", "choices", "scaling", "compute_optimal", "recurring", "ownership", "serving"})
CHANGE = frozenset({"budget", "tags", "priority", "max_concurrent_trials"})
BUDGET = frozenset({"usd", "gpu_hours", "match", "period", "timezone", "parent", "alerts", "new_secret"})
QUOTA = frozenset({"usd", "gpu_hours", "period", "timezone", "concurrent_jobs", "concurrent_trials"})


def refuse_unknown(given: Mapping[str, object], known: Collection[str]) -> None:
    """Raise TypeError, which suggests the nearest known name, if a keyword argument is not known.

    Without this check, a misspelled filter would be ignored, and the answer would not be limited as the caller intended.
    """
    for name in given:
        if name not in known:
            fix = did_you_mean(name, known) or f"; the known ones are {', '.join(sorted(known))}"
            raise TypeError(f"unexpected keyword argument {name!r}{fix}")


A = TypeVar("A", bound=Answer)
T = TypeVar("T")
UNSENDABLE = "The request is not valid"  # the title of the error for a request that cannot be sent
PROBLEM = "urn:tuner:problem:"  # the prefix of the error code in the field `type` of an error response
# The error code for an answer that cannot come from this service. It may be the error page of a proxy, for example.
INVALID_ANSWER = "strange-answer"
TRIES = 4  # how often a request that is safe to repeat is sent at most
LONGEST_WAIT_S = 30.0  # a longer `Retry-After` is shortened to this
STARTING = "cluster-starting"  # the error code while the service starts its Ray cluster


class ApiError(Exception):
    """The service refused a request or does not answer.

    Attributes:
        status: The HTTP status, or 0 if the service does not answer or a download is not valid.
        code: The kind of problem, such as `not-found`. It is empty if the service does not name one.
        path: The path of the request, or an empty string if none was sent.
        errors: The fields of the request that are wrong.
        in_doubt: Whether the request may have been executed, because one of its tries got no response or status 503.
        retry_after_s: How many seconds the service asks to wait before the next try, at most LONGEST_WAIT_S. It is 0 if it does not ask.
    """

    def __init__(
        self, problem: Problem, *, path: str = "", in_doubt: bool = False, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(f"{problem.title}: {problem.detail}")
        self.status, self.title, self.detail = problem.status, problem.title, problem.detail
        self.code = problem.type.removeprefix(PROBLEM) if problem.type.startswith(PROBLEM) else ""
        self.errors: list[FieldProblem] = problem.errors
        self.path, self.in_doubt, self.retry_after_s = path, in_doubt, retry_after_s

    @classmethod
    def of(cls, response: httpx2.Response, *, in_doubt: bool = False) -> "ApiError":
        """Return the error that a response describes."""
        try:
            problem = Problem.model_validate(response.json())
        except ValueError:
            problem = _invalid_answer(response.status_code, response.text[:500])
        path = response.request.url.raw_path.decode().partition("?")[0]
        return cls(problem, path=path, in_doubt=in_doubt, retry_after_s=_retry_after_s(response))


class Address(NamedTuple):
    """The service's URL, and the headers that authenticate requests."""

    url: str
    headers: dict[str, str]


def address(url: str | None, api_key: str | None, project: str | None = None) -> Address:
    """Return the service's address. Arguments that are None are taken from the environment.

    The URL is TUNER_URL, the key is TUNER_API_KEY or the content of $TUNER_HOME/api_key, and the project is TUNER_PROJECT.

    Raises:
        ApiError: With status 422 if the key or the project cannot be sent in a header.
        ValueError: A setting in the environment has an invalid value.
    """
    settings = Settings.from_env()
    key, source = api_key or settings.given_api_key or "", "api_key"
    if not key:
        source = str(settings.api_key_path)
        with suppress(OSError):
            key = settings.api_key_path.read_text(errors="replace").strip()
    project = project or settings.project
    try:
        visible(source, key)
        visible("project", project)
    except ValueError as error:
        raise ApiError(Problem(title=UNSENDABLE, status=422, detail=str(error))) from error
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if project:
        headers["Tuner-Project"] = project
    return Address((url or settings.url).rstrip("/"), headers)


def direct(url: str) -> dict[str, None]:
    """Return the `mounts` with which an HTTP client uses no proxy, if the URL's host is the loopback interface. Otherwise return {}.

    HTTP_PROXY is for other machines: its proxy would get the key, and cannot reach the loopback interface of this machine.
    """
    schemes = ("http://", "https://", "all://") if is_loopback(httpx2.URL(url).host) else ()
    return dict.fromkeys(schemes)


def quoted(name: str) -> str:
    """Quote a name as one segment of a path. `.` and `..` are quoted too, because URL normalization would resolve them to another route.

    Raises:
        ApiError: With status 422 if the name is empty, which would address another route.
    """
    if not name:
        detail = "the id or name of a job or of another object is empty"
        raise ApiError(Problem(title="A name is missing", status=422, detail=detail))
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


class Http(ABC):
    """The connection of a client to the service. Subclasses send requests, sleep and read streams."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    async def request(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Send a request, and return the response even if its status is an error. Options are those of `httpx2.Client.request`."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def stream(self, path: str, **options: Any) -> AbstractAsyncContextManager[httpx2.Response]:
        """Send a GET request. For an error status, the response's body is already read. Otherwise, read it with `lines` or `chunks`."""

    @abstractmethod
    def lines(self, response: httpx2.Response) -> AsyncIterator[str]: ...

    @abstractmethod
    def chunks(self, response: httpx2.Response) -> AsyncIterator[bytes]: ...

    async def ask(self, kind: type[A], method: str, path: str, **options: Any) -> A:
        """Send a request, and return the answer parsed as `kind`. Options are those of `exchange`.

        Raises:
            ApiError: The service refused, does not answer, or sent an answer that is not a valid `kind`.
        """
        response = await self.exchange(method, path, **options)
        try:
            return kind.model_validate(response.json())
        except ValueError as error:
            detail = (
                f"{self.url}{path} returned an answer that is not from this service: {response.text[:200]}"
            )
            raise ApiError(_invalid_answer(response.status_code, detail), path=path) from error

    async def pages(
        self,
        kind: type[Answer],
        path: str,
        query: dict[str, Any] | None = None,
        *,
        page: int = 100,
        made: Callable[[Any], Any] = lambda item: item,
        limit: int | None = None,
    ) -> Items[Any]:
        """Yield the items of all pages. Each page is fetched when its first item is needed.

        Args:
            kind: The type of a page, with `items` and `next_cursor`.
            path: The path of the listing.
            query: Query parameters, without cursor and limit.
            page: The number of items per page.
            made: Converts each item.
            limit: Yield at most this many items.
        """
        cursor, left = None, limit
        while left is None or left > 0:
            params = {**(query or {}), "cursor": cursor, "limit": min(page, left or page)}
            answer: Any = await self.ask(kind, "GET", path, query=params)
            for item in answer.items:
                yield made(item)
            cursor = answer.next_cursor
            left = None if left is None else left - len(answer.items)
            if cursor is None:
                return

    async def exchange(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeat: bool = False,
        limit_s: float | None = None,
    ) -> httpx2.Response:
        """Send a request, and return the successful response.

        A request that is safe to repeat is sent up to TRIES times: it is sent again after a connection error and after the statuses 429
        and 503. The waits are 0.25 s, 0.5 s and so on, or the response's `Retry-After` if that is longer. While the service starts its
        Ray cluster, the request is repeated for RAY_START_S instead.

        Args:
            method: The HTTP method.
            path: The path, without the service's URL.
            query: Query parameters. Those that are None are omitted.
            body: The JSON body, or the bytes of a zip file.
            headers: Headers in addition to those of the client.
            repeat: Whether the request is safe to repeat. GET always is.
            limit_s: Try only once, and wait at most this many seconds. None means retries and the client's own time limit.

        Raises:
            ApiError: The last try failed, the service refused with another status, or the request cannot be sent (status 422).
        """
        repeat = (repeat or method == "GET") and limit_s is None
        options: dict[str, Any] = {} if limit_s is None else {"timeout": limit_s}
        options["params"] = {name: value for name, value in (query or {}).items() if value is not None}
        in_doubt, waited_s = False, 0.0
        for attempt in count(1):
            wait_s = 0.25 * 2 ** min(attempt - 1, TRIES)
            is_last = not repeat or attempt >= TRIES
            try:
                response = await self.request(method, path, **options, **_content(body, headers))
            except (TypeError, ValueError, httpx2.LocalProtocolError) as error:
                raise _unsendable(method, path, error) from None
            except httpx2.HTTPError as error:
                in_doubt = in_doubt or not isinstance(error, httpx2.ConnectError)
                if is_last:
                    raise unreachable(self.url, error, in_doubt=in_doubt) from error
            else:
                if response.is_success:
                    return response
                refusal = ApiError.of(response, in_doubt=in_doubt)
                if refusal.code == STARTING:
                    is_last = not repeat or waited_s >= RAY_START_S
                if response.status_code not in (429, 503) or is_last:
                    raise refusal
                in_doubt = in_doubt or response.status_code == 503
                wait_s = max(wait_s, refusal.retry_after_s)
            await self.sleep(wait_s)
            waited_s += wait_s
        raise AssertionError("the last try neither returned a response nor raised an error")


class BlockingHttp(Http):
    """The connection of a `Client`. Its coroutines block, and never suspend."""

    def __init__(self, url: str, http: httpx2.Client) -> None:
        super().__init__(url)
        self._http = http

    async def request(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return self._http.request(method, path, **options)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def close(self) -> None:
        self._http.close()

    @asynccontextmanager
    async def stream(self, path: str, **options: Any) -> AsyncIterator[httpx2.Response]:
        with self._http.stream("GET", path, **options) as response:
            if not response.is_success:
                response.read()
            yield response

    def lines(self, response: httpx2.Response) -> AsyncIterator[str]:
        return _each(response.iter_lines())

    def chunks(self, response: httpx2.Response) -> AsyncIterator[bytes]:
        return _each(response.iter_bytes())


class AsyncHttp(Http):
    """The connection of an `AsyncClient`."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        super().__init__(url)
        self._http = http

    async def request(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return await self._http.request(method, path, **options)

    async def sleep(self, seconds: float) -> None:
        import asyncio  # takes 30 ms, and the blocking client does not need it

        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self._http.aclose()

    @asynccontextmanager
    async def stream(self, path: str, **options: Any) -> AsyncIterator[httpx2.Response]:
        async with self._http.stream("GET", path, **options) as response:
            if not response.is_success:
                await response.aread()
            yield response

    def lines(self, response: httpx2.Response) -> AsyncIterator[str]:
        return response.aiter_lines()

    def chunks(self, response: httpx2.Response) -> AsyncIterator[bytes]:
        return response.aiter_bytes()


async def _each(items: Iterable[T]) -> AsyncIterator[T]:
    for item in items:
        yield item


def _content(body: Mapping[str, Any] | bytes | None, headers: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the arguments of `Http.request` that send a body and headers.

    A NaN in `body` is sent, although JSON does not allow it: the service refuses the request and names the field.
    """
    if body is None:
        return {"headers": headers}
    is_zip = isinstance(body, bytes)
    kind = "application/zip" if is_zip else "application/json"
    return {
        "content": body if is_zip else json.dumps(body),
        "headers": {**(headers or {}), "Content-Type": kind},
    }


def _unsendable(method: str, path: str, error: Exception) -> ApiError:
    """Return the error for a request that cannot be sent.

    It does not contain the text of a LocalProtocolError, which may show the value of a header, and so the API key. Raise it `from None`,
    because a traceback shows the text of the cause.
    """
    is_protocol = isinstance(error, httpx2.LocalProtocolError)
    detail = f"the headers or the body of {method} {path} do not follow HTTP" if is_protocol else str(error)
    return ApiError(Problem(title=UNSENDABLE, status=422, detail=detail), path=path)


def _retry_after_s(response: httpx2.Response) -> float:
    """Return the seconds in `Retry-After`, at most LONGEST_WAIT_S. Return 0 if the header is missing or a date."""
    wait = response.headers.get("Retry-After", "")
    return min(float(wait), LONGEST_WAIT_S) if wait.isdecimal() else 0.0


def _invalid_answer(status: int, detail: str) -> Problem:
    return Problem(
        type=f"{PROBLEM}{INVALID_ANSWER}",
        title="The service sent an invalid answer",
        status=status,
        detail=detail,
    )


def unreachable(url: str, error: Exception, *, in_doubt: bool = False) -> ApiError:
    """Return an error which says that the service at `url` does not answer. Its cause is `error`."""
    detail = f"{url}: {error or type(error).__name__}; start the service with `tuner serve`, or set TUNER_URL"
    problem = Problem(title="The service does not answer", status=0, detail=detail)
    api_error = ApiError(problem, in_doubt=in_doubt)
    api_error.__cause__ = error
    return api_error
