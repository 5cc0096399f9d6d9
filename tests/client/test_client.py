"""The Python client, sync and async: repeats safe requests, reports errors, and resumes a broken stream."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from tests.client.both import Both, both
from tuner.client import TRIES, ApiError, Event
from tuner.client.follow import FIRST_ANSWER_S, EventReader
from tuner.domain.time import RAY_START_S

PROBLEM = {
    "type": "urn:tuner:problem:invalid",
    "title": "The request is not valid",
    "status": 422,
    "detail": "/name: too long",
    "errors": [{"pointer": "/name", "detail": "too long"}],
}
Answer = Callable[[httpx2.Request], httpx2.Response]


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the list of the client's sleeps in seconds, none of which is real."""
    sleeps: list[float] = []

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)

    monkeypatch.setattr("time.sleep", sleeps.append)
    monkeypatch.setattr("asyncio.sleep", sleep)
    return sleeps


@pytest.fixture(params=["answers", "is awaited"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with both clients."""
    monkeypatch.setattr(Server, "is_awaited", request.param == "is awaited")


class Server:
    """A fake server that gives the next of its answers to each request. An exception is raised."""

    is_awaited = False

    def __init__(self, *answers: httpx2.Response | Exception) -> None:
        self.requests: list[httpx2.Request] = []
        self._answers = list(answers)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer.stream, Broken):
            return answer
        return httpx2.Response(answer.status_code, headers=answer.headers, content=answer.content)

    def client(self, *address: str) -> Both:
        return both(
            *(address or ("http://tuner", "key")),
            transport=httpx2.MockTransport(self),
            is_awaited=self.is_awaited,
        )


def problem(status: int, **changes: Any) -> httpx2.Response:
    return httpx2.Response(status, json={**PROBLEM, "status": status, **changes})


TRAINABLES: dict[str, list[object]] = {"items": []}
SILENCE = httpx2.ConnectError("refused")
SAFE: dict[str, Callable[[Both], object]] = {
    "trainables": lambda client: client.trainables(),
    "job": lambda client: client.job("job_1"),
    "bill": lambda client: client.bill("job_1"),
    "report": lambda client: client.report("job_1"),
    "submit": lambda client: client.submit({}),
    "pause": lambda client: client.pause("job_1"),
    "resume": lambda client: client.resume("job_1"),
    "cancel": lambda client: client.cancel("job_1"),
    "patch": lambda client: client.patch("job_1", priority=1),
    "enqueue": lambda client: client.enqueue("job_1", {"lr": 0.1}),
    "stop_trial": lambda client: client.stop_trial("job_1", "trial_00001"),
}


@pytest.mark.parametrize("trouble", [problem(503), problem(429), SILENCE], ids=["503", "429", "silence"])
def test_safe_call_is_repeated_with_growing_pauses(
    trouble: httpx2.Response | Exception, slept: list[float]
) -> None:
    server = Server(trouble, trouble, httpx2.Response(200, json=TRAINABLES))
    assert server.client().trainables().items == []
    assert len(server.requests) == 3
    assert slept == sorted(slept)
    assert len(slept) == 2


@pytest.mark.parametrize("call", SAFE)
@pytest.mark.parametrize("trouble", [problem(503), SILENCE], ids=["503", "silence"])
def test_retries_stop_after_the_maximum_number_of_tries(
    call: str, trouble: httpx2.Response | Exception
) -> None:
    server = Server(trouble)
    with pytest.raises(ApiError) as caught:
        SAFE[call](server.client())
    assert len(server.requests) == TRIES
    assert caught.value.status == (503 if isinstance(trouble, httpx2.Response) else 0)


@pytest.mark.parametrize("starts", [True, False])
def test_safe_call_waits_for_a_cluster_that_starts_slowly(starts: bool, slept: list[float]) -> None:
    starting = problem(503, type="urn:tuner:problem:cluster-starting")
    server = Server(*([starting] * 50), httpx2.Response(200, json=TRAINABLES) if starts else starting)
    if starts:
        assert server.client().trainables().items == []
    else:
        with pytest.raises(ApiError):
            server.client().trainables()
        assert RAY_START_S <= sum(slept) < RAY_START_S + 5


@pytest.mark.parametrize(
    "name", ["..", ".", "../../budgets/team", "a/b", "%2e%2e", "a?b#c", "\\\\host\\share", "a\x00b"]
)
def test_user_given_name_stays_one_path_segment(name: str) -> None:
    server = Server(problem(404))
    client = server.client()
    for call in (client.job, client.cancel, client.budget, lambda segment: client.trial("job_1", segment)):
        with pytest.raises(ApiError):
            call(name)
    paths = [request.url.raw_path.decode() for request in server.requests]
    assert [path.count("/") for path in paths] == [3, 4, 3, 5]
    assert not any(part in (".", "..") for path in paths for part in path.split("/"))
    assert not any(set("?#\\") & set(path) for path in paths)


def test_empty_name_is_refused_before_a_request_is_sent() -> None:
    server = Server()
    with pytest.raises(ApiError, match="is empty"):
        server.client().bill("")
    assert server.requests == []


@pytest.mark.parametrize("status", [400, 401, 404, 409, 413, 422, 500, 502])
def test_other_errors_are_not_retried(status: int) -> None:
    server = Server(problem(status))
    with pytest.raises(ApiError):
        server.client().trainables()
    assert len(server.requests) == 1


def test_idempotency_key_is_shared_by_retries_and_differs_between_submissions() -> None:
    server = Server(SILENCE)
    for options in ({}, {}, {"idempotency_key": "mine"}):
        with pytest.raises(ApiError):
            server.client().submit({}, **options)
    keys = [request.headers["Idempotency-Key"] for request in server.requests]
    first, second, third = (set(keys[at : at + TRIES]) for at in range(0, 3 * TRIES, TRIES))
    assert len(first) == len(second) == 1
    assert first != second
    assert third == {"mine"}
    assert server.requests[0].headers["Authorization"] == "Bearer key"


def test_problem_document_becomes_error_with_all_fields() -> None:
    with pytest.raises(ApiError) as caught:
        Server(problem(422)).client().trainables()
    error = caught.value
    assert (error.status, error.title, error.detail) == (422, PROBLEM["title"], PROBLEM["detail"])
    assert [(field.pointer, field.detail) for field in error.errors] == [("/name", "too long")]
    assert str(error) == "The request is not valid: /name: too long"
    assert (error.code, error.path) == ("invalid", "/v1/trainables")


@pytest.mark.parametrize("status", [200, 502])
@pytest.mark.parametrize("content", [b"<html>gateway</html>", b"", b"[]", b'{"a": 1}'])
def test_response_of_another_server_raises_api_error(status: int, content: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        Server(httpx2.Response(status, content=content)).client().trainables()
    assert (caught.value.status, caught.value.code) == (status, "strange-answer")
    assert caught.value.title


def test_unreachable_service_is_named_in_the_error() -> None:
    with pytest.raises(ApiError) as caught:
        Server(SILENCE).client().trainables()
    assert caught.value.status == 0
    assert "http://tuner" in caught.value.detail
    assert "tuner serve" in caught.value.detail


def test_nan_is_sent_so_that_the_service_can_refuse_the_field() -> None:
    server = Server(problem(422))
    with pytest.raises(ApiError) as caught:
        server.client().submit({"budget": {"usd": float("nan")}})
    assert caught.value.status == 422
    assert server.requests[0].content == b'{"budget": {"usd": NaN}}'


def test_values_without_json_form_are_refused_before_sending() -> None:
    with pytest.raises(ApiError):
        Server(problem(422)).client().submit({"constants": {"names": {"a", "b"}}})


def test_unknown_fields_of_a_newer_service_are_kept() -> None:
    server = Server(httpx2.Response(200, json={"items": [], "news": 1}))
    assert server.client().trainables().model_dump() == {"items": [], "truncated": False, "news": 1}


def test_listing_follows_all_pages() -> None:
    pages: list[dict[str, object]] = [{"items": [], "next_cursor": cursor} for cursor in ("a", "b", None)]
    server = Server(*(httpx2.Response(200, json=page) for page in pages))
    assert list(server.client().jobs(state="queued")) == []
    assert [request.url.params.get("cursor") for request in server.requests] == [None, "a", "b"]
    assert {request.url.params["state"] for request in server.requests} == {"queued"}


# Events


def frame(number: int | None, **data: Any) -> bytes:
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: report\ndata: " + json.dumps(data).encode() + b"\n\n"


ENDED = b'event: job\ndata: {"state": "succeeded"}\n\n'


class Broken(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """Parts of a stream, followed by a broken connection or the end."""

    def __init__(self, *parts: bytes, breaks: bool) -> None:
        self._parts, self._breaks = parts, breaks

    def __iter__(self) -> Iterator[bytes]:
        yield from self._parts
        if self._breaks:
            raise httpx2.ReadError("the connection broke")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part


def test_broken_event_stream_resumes_after_the_last_complete_event() -> None:
    server = Server(
        httpx2.Response(200, stream=Broken(frame(3, n=1), frame(None, n=2), b"id: 9\ndata: {", breaks=True)),
        SILENCE,
        httpx2.Response(200, stream=Broken(frame(5, n=3), breaks=False)),
        problem(502),
        httpx2.Response(200, stream=Broken(ENDED, breaks=False)),
    )
    events = list(server.client().events("job_1"))
    assert [event.data.get("n") for event in events] == [1, 2, 3, None]
    event_ids = [request.headers.get("Last-Event-ID") for request in server.requests]
    assert event_ids == [None, "3", "3", "5", "5"], "an end that is not the job's is a break"


def test_events_after_the_end_of_a_job_are_read_and_breaks_are_reported() -> None:
    server = Server(
        httpx2.Response(200, stream=Broken(frame(3, n=1), ENDED, breaks=True)),
        SILENCE,
        httpx2.Response(200, stream=Broken(ENDED, frame(5, n=2), breaks=False)),
    )
    connections: list[bool] = []
    events = list(server.client().events("job_1", on_connection=connections.append))
    assert [event.data.get("n") for event in events] == [1, None, None, 2]
    assert connections == [True, False, False, True]


def test_events_start_after_the_given_id() -> None:
    server = Server(httpx2.Response(200, stream=Broken(ENDED, breaks=False)))
    assert len(list(server.client().events("job_1", after=7))) == 1
    assert server.requests[0].headers["Last-Event-ID"] == "7"


@pytest.mark.parametrize(("answer", "status"), [(problem(404), 404), (SILENCE, 0)], ids=["404", "silence"])
def test_events_of_an_unknown_job_or_an_unreachable_service_raise_an_error(
    answer: httpx2.Response | Exception, status: int, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.client.follow.time", SimpleNamespace(monotonic=lambda: sum(slept)))
    with pytest.raises(ApiError) as caught:
        list(Server(answer).client().events("job_1"))
    assert caught.value.status == status
    assert sum(slept) <= (0 if status else FIRST_ANSWER_S + 1)


@pytest.mark.parametrize(
    ("trouble", "pause_s"),
    [(httpx2.Response(429, headers={"Retry-After": "7"}), 7), (problem(503), 0.5), (SILENCE, 0.5)],
    ids=["429", "503", "silence"],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_events_continue_after_an_overload_or_a_restart(
    trouble: httpx2.Response | Exception, pause_s: float, is_first: bool, slept: list[float]
) -> None:
    before = [] if is_first else [httpx2.Response(200, stream=Broken(frame(3, n=1), breaks=True))]
    server = Server(*before, trouble, httpx2.Response(200, stream=Broken(ENDED, breaks=False)))
    assert list(server.client().events("job_1"))[-1].data == {"state": "succeeded"}
    assert slept[-1] == pause_s


def test_event_frames_are_parsed_as_the_standard_defines() -> None:
    lines = [
        "retry: 1000",
        "",
        ": alive",
        "",
        "id: 4",
        "event: job",
        'data: {"a":',
        "data: 1}",
        "",
        "data: {}",
    ]
    reader = EventReader()
    assert [event for line in lines if (event := reader.add_line(line))] == [Event("job", {"a": 1}, 4)]


# Settings


def test_url_and_key_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_URL", "http://elsewhere:1/")
    monkeypatch.setenv("TUNER_API_KEY", "secret")
    server = Server(httpx2.Response(200, json=TRAINABLES))
    client = server.client("", "")
    client.trainables()
    assert str(server.requests[0].url) == "http://elsewhere:1/v1/trainables"
    assert server.requests[0].headers["Authorization"] == "Bearer secret"
    client.close()


def test_key_is_read_from_the_file_of_the_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    (tmp_path / "api_key").write_text("kept\n")
    server = Server(httpx2.Response(200, json=TRAINABLES))
    server.client("", "").trainables()
    assert server.requests[0].headers["Authorization"] == "Bearer kept"


@pytest.mark.parametrize("origin", ["argument", "file"])
def test_key_that_a_header_cannot_hold_is_refused_without_printing_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, origin: str
) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    (tmp_path / "api_key").write_text("secret\nkey")
    server = Server(httpx2.Response(200, json=TRAINABLES))
    with pytest.raises(ApiError) as caught:
        server.client("http://tuner", "secret\nkey" if origin == "argument" else "")
    assert caught.value.status == 422
    assert caught.value.detail.startswith("api_key " if origin == "argument" else str(tmp_path / "api_key"))
    assert "secret" not in str(caught.value)


def test_request_that_does_not_follow_http_is_not_repeated_and_shows_no_header() -> None:
    server = Server(httpx2.LocalProtocolError("Illegal header value b'Bearer secret'"))
    with pytest.raises(ApiError) as caught:
        server.client().trainables()
    assert (caught.value.status, len(server.requests)) == (422, 1)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("answer", "ready"), [(200, True), (503, False), (None, False)])
def test_readiness_check_raises_no_error(answer: int | None, ready: bool) -> None:
    server = Server(SILENCE if answer is None else httpx2.Response(answer, json={}))
    assert server.client().is_ready() is ready


@pytest.mark.parametrize(
    ("method", "words", "fix"),
    [
        ("best", {"max_cost": 5}, "did you mean 'max_cost_usd'"),
        ("pareto", {"max_cost_usd": 5}, "the known ones are instance_type, market, region"),
        ("patch", {"tag": {}}, "did you mean 'tags'"),
    ],
)
def test_unknown_keyword_argument_raises_type_error(method: str, words: dict[str, Any], fix: str) -> None:
    server = Server(httpx2.Response(500))
    with pytest.raises(TypeError, match=fix):
        getattr(server.client(), method)("job_1", **words)
    assert server.requests == []
