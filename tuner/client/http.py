"""Requests to the service: its address and key, query parameters, pages, retries, and errors."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, TypedDict, TypeVar
from urllib.parse import quote

import httpx2

from tuner.client.steps import Item, Send, Series, Sleep, Steps
from tuner.schemas.base import Answer, FieldProblem, Problem
from tuner.settings import Settings


class Elsewhere(TypedDict, total=False):
    """The machine to compute costs for. If none is given, the recorded costs are returned."""

    market: str | None
    instance_type: str | None
    region: str | None


class BestQuery(Elsewhere, total=False):
    """Limits on training a configuration."""

    max_cost_usd: float | None
    max_gpu_hours: float | None
    max_duration: str | float | None


# The query parameters and fields that each call knows. Other names are refused before a request is sent.
BEST = frozenset(BestQuery.__annotations__)
ELSEWHERE = frozenset(Elsewhere.__annotations__)
PRICES = frozenset({"cloud", "region", "zone", "instance_type", "accelerator", "market"})
SPEND = frozenset({"since", "until", "timezone"})
ESTIMATE = frozenset({"run", "choices", "scaling", "compute_optimal", "recurring", "ownership"})
CHANGE = frozenset({"budget", "tags", "priority"})
BUDGET = frozenset({"usd", "gpu_hours", "match", "period", "timezone", "parent", "alerts", "new_secret"})
QUOTA = frozenset({"usd", "gpu_hours", "period", "timezone", "concurrent_jobs", "concurrent_trials"})


def refuse_unknown(given: Mapping[str, object], known: Collection[str]) -> None:
    """Raise TypeError, which suggests the nearest known name, if a keyword argument is not known.

    Without this check, a misspelled filter would be ignored, and the answer would not be limited as the caller intended.
    """
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            fix = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(known))}"
            raise TypeError(f"unexpected keyword argument {name!r}{fix}")


def pages(
    url: str,
    kind: type[Answer],
    path: str,
    query: dict[str, Any],
    *,
    page: int,
    made: Callable[[Any], Any] = lambda item: item,
    limit: int | None = None,
) -> Series[Any]:
    """Yield the items of all pages. Each page is fetched when its first item is needed.

    Args:
        url: The service's URL, for error messages.
        kind: The type of a page, with `items` and `next_cursor`.
        path: The path of the listing.
        query: Query parameters, without cursor and limit.
        page: The number of items per page.
        made: Converts each item.
        limit: Yield at most this many items.
    """
    cursor, left = None, limit
    while left is None or left > 0:
        asked = {**query, "cursor": cursor, "limit": min(page, left or page)}
        found: Any = yield from ask(url, kind, "GET", path, query=asked)
        for item in found.items:
            yield Item(made(item))
        cursor = found.next_cursor
        left = None if left is None else left - len(found.items)
        if cursor is None:
            return


A = TypeVar("A", bound=Answer)
TRIES = 4  # of a request that may be repeated
LONGEST_WAIT_S = 30.0  # limit for `Retry-After`


class ApiError(Exception):
    """The service refused a request or does not answer.

    Attributes:
        status: The HTTP status, or 0 if the service does not answer or a download is not valid.
        errors: The fields of the request that are wrong.
        in_doubt: Whether the request may have been executed, because one of its tries got no response or status 503.
    """

    def __init__(self, problem: Problem, *, in_doubt: bool = False) -> None:
        super().__init__(f"{problem.title}: {problem.detail}")
        self.status, self.title, self.detail = problem.status, problem.title, problem.detail
        self.errors: list[FieldProblem] = problem.errors
        self.in_doubt = in_doubt


@dataclass(frozen=True, slots=True)
class Address:
    """The service's URL, and the headers that authenticate requests."""

    url: str
    headers: dict[str, str]


def address(url: str | None, api_key: str | None, project: str | None = None) -> Address:
    """Return the service's address. Arguments that are None are taken from the environment.

    The URL is TUNER_URL, the key is TUNER_API_KEY or the content of $TUNER_HOME/api_key, and the project is TUNER_PROJECT.
    """
    settings = Settings.from_env()
    key = api_key or settings.given_api_key or _kept_key(settings)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if project or settings.project:
        headers["Tuner-Project"] = project or settings.project
    return Address((url or settings.url).rstrip("/"), headers)


def ask(
    url: str,
    kind: type[A],
    method: str,
    path: str,
    *,
    query: Mapping[str, Any] | None = None,
    body: Mapping[str, Any] | None = None,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    repeat: bool = False,
    limit_s: float | None = None,
) -> Steps[A]:
    """Send a request, and return the answer parsed as `kind`.

    Args:
        url: The service's URL, for error messages.
        kind: The type of the answer.
        method: The HTTP method.
        path: The path, without the service's URL.
        query: Query parameters. Those that are None are omitted.
        body: The JSON body.
        data: A zip file to send in place of `body`.
        headers: Headers in addition to those of the client.
        repeat: Whether the request is safe to repeat. GET always is. Such requests are retried for some seconds if the service does
            not answer.
        limit_s: Try only once, and wait at most this many seconds.

    Raises:
        ApiError: The service refused, does not answer, or sent an answer that is not a valid `kind`.
    """
    tries = TRIES if (repeat or method == "GET") and limit_s is None else 1
    send = request(method, path, query=query, body=body, headers=headers, timeout_s=limit_s)
    if data is not None:
        send = replace(send, content=data, headers={**send.headers, "Content-Type": "application/zip"})
    answer = yield from exchange(url, send, tries=tries)
    try:
        return kind.model_validate(answer.json())
    except ValueError as error:
        detail = f"{url}{path} is no answer of this service: {answer.text[:200]}"
        problem = Problem(title="The service answered strangely", status=answer.status_code, detail=detail)
        raise ApiError(problem) from error


def quoted(name: str) -> str:
    """Quote a name as one segment of a path. `.` and `..` are quoted too, because URL normalization would resolve them to another route."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def request(
    method: str,
    path: str,
    *,
    query: Mapping[str, Any] | None = None,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> Send:
    """Build a request with a JSON body. NaN is sent unchanged, so that the service's error can name the field."""
    params = {name: value for name, value in (query or {}).items() if value is not None}
    if body is None:
        return Send(method, path, params, dict(headers or {}), timeout_s=timeout_s)
    try:
        content = json.dumps(body)
    except (TypeError, ValueError) as error:
        raise _not_valid(error) from error
    typed = {**(headers or {}), "Content-Type": "application/json"}
    return Send(method, path, params, typed, content, timeout_s)


def exchange(url: str, send: Send, *, tries: int = 1) -> Steps[httpx2.Response]:
    """Send a request up to `tries` times, and return the successful response.

    Connection errors and the statuses 429 and 503 are retried. The waits are 0.25 s, 0.5 s and so on, or the response's `Retry-After`
    if that is longer.

    Raises:
        ApiError: The last try failed, the service refused with another status, or the request cannot be sent (status 422).
    """
    in_doubt = False
    for attempt in range(tries):
        wait_s = 0.25 * 2**attempt
        try:
            answer: httpx2.Response = yield send
        except (TypeError, ValueError) as error:
            raise _not_valid(error) from error
        except httpx2.HTTPError as error:
            in_doubt = in_doubt or not isinstance(error, httpx2.ConnectError)
            if attempt == tries - 1:
                raise silent(url, error, in_doubt=in_doubt) from error
        else:
            if answer.is_success:
                return answer
            if answer.status_code not in (429, 503) or attempt == tries - 1:
                raise ApiError(problem_of(answer), in_doubt=in_doubt)
            in_doubt = in_doubt or answer.status_code == 503
            wait_s = max(wait_s, _retry_after_s(answer))
        yield Sleep(wait_s)
    raise AssertionError("the last try answers or raises")


def _retry_after_s(answer: httpx2.Response) -> float:
    """Return the seconds in `Retry-After`, at most LONGEST_WAIT_S. Return 0 if the header is missing or a date."""
    wait = answer.headers.get("Retry-After", "")
    return min(float(wait), LONGEST_WAIT_S) if wait.isdecimal() else 0.0


def _not_valid(error: Exception) -> ApiError:
    return ApiError(Problem(title="The request is not valid", status=422, detail=str(error)))


def _kept_key(settings: Settings) -> str | None:
    try:
        return settings.api_key_path.read_text().strip()
    except OSError:
        return None


def problem_of(answer: httpx2.Response) -> Problem:
    try:
        return Problem.model_validate(answer.json())
    except ValueError:
        return Problem(
            title="The service answered strangely", status=answer.status_code, detail=answer.text[:500]
        )


def silent(url: str, error: Exception, *, in_doubt: bool = False) -> ApiError:
    detail = f"{url}: {error or type(error).__name__}; start it with `tuner serve`, or set TUNER_URL"
    return ApiError(Problem(title="The service does not answer", status=0, detail=detail), in_doubt=in_doubt)
