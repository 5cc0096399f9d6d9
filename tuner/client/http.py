"""Requests to the service: its address and key, what is tried again, and what went wrong."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import httpx2

from tuner.schemas.base import Answer
from tuner.schemas.problem import FieldProblem, Problem
from tuner.settings import Settings

A = TypeVar("A", bound=Answer)
TRIES = 4


class ApiError(Exception):
    """The service refused, or does not answer (`status` 0). `errors` point at the fields that are wrong. `in_doubt`: it was tried
    more than once, and an earlier try, whose answer was lost, may have done what was asked."""

    def __init__(self, problem: Problem, *, in_doubt: bool = False) -> None:
        super().__init__(f"{problem.title}: {problem.detail}")
        self.status, self.title, self.detail = problem.status, problem.title, problem.detail
        self.errors: list[FieldProblem] = problem.errors
        self.in_doubt = in_doubt


class Http:
    """Asks the service. What is safe to repeat is tried again for some seconds when it does not answer."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = 90.0,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        settings = Settings.from_env()
        self.url = (url or settings.url).rstrip("/")
        key = api_key or settings.given_api_key or _kept_key(settings)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            self._http = httpx2.Client(
                base_url=self.url, headers=headers, timeout=timeout_s, transport=transport
            )
        except httpx2.InvalidURL as error:
            raise silent(self.url, error) from error

    def close(self) -> None:
        self._http.close()

    def _ask(
        self,
        kind: type[A],
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        repeat: bool = False,
    ) -> A:
        tries = TRIES if repeat or method == "GET" else 1
        answer = self._request(method, path, query=query, body=body, headers=headers, tries=tries)
        try:
            return kind.model_validate(answer.json())
        except ValueError as error:
            detail = f"{self.url}{path} is no answer of this service: {answer.text[:200]}"
            problem = Problem(
                title="The service answered strangely", status=answer.status_code, detail=detail
            )
            raise ApiError(problem) from error

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        tries: int = 1,
    ) -> httpx2.Response:
        params = {name: value for name, value in (query or {}).items() if value is not None}
        answer, in_doubt = self._send(
            lambda: self._http.request(method, path, params=params, **_content(body, headers or {})),
            tries=tries,
        )
        if not answer.is_success:
            raise ApiError(problem_of(answer), in_doubt=in_doubt)
        return answer

    def _send(self, send: Callable[[], httpx2.Response], *, tries: int) -> tuple[httpx2.Response, bool]:
        """With whether an earlier try may have done it."""
        in_doubt = False
        for attempt in range(tries):
            try:
                answer = send()
                if answer.status_code != 503 or attempt == tries - 1:
                    return answer, in_doubt
                in_doubt = True
            except (TypeError, ValueError) as error:
                raise ApiError(
                    Problem(title="The request is not valid", status=422, detail=str(error))
                ) from error
            except httpx2.HTTPError as error:
                in_doubt = in_doubt or not isinstance(error, httpx2.ConnectError)
                if attempt == tries - 1:
                    raise silent(self.url, error, in_doubt=in_doubt) from error
            time.sleep(0.25 * 2**attempt)
        raise AssertionError("the last try answers or raises")


def _content(body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> dict[str, Any]:
    """A NaN is sent as it is: the service says which field it is that may have none."""
    if body is None:
        return {"headers": dict(headers)}
    return {"headers": {**headers, "Content-Type": "application/json"}, "content": json.dumps(body)}


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
