"""Limits of a request: exceeding one returns a problem that names it, and requests within all limits are answered."""

import asyncio
import math
from dataclasses import replace
from functools import partial
from typing import Any

import anyio.to_thread
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests import fakes
from tests.fakes import KEY, FakeService
from tuner.api import app, limits
from tuner.api.limits import (
    MAX_HEADER_BYTES,
    MAX_TARGET_BYTES,
    Buckets,
    Clients,
    ConcurrencyLimit,
    RateLimit,
)
from tuner.schemas.base import MAX_DEPTH

service, client = fakes.fixtures("module")


def check_problem(answer: httpx2.Response, status: int, *parts: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    for part in parts:
        assert part in problem["detail"]


def nested(depth: int) -> Any:
    document: Any = 1
    for n in range(depth):
        document = [document] if n % 2 else {"a": document}
    return document


def test_nesting_depth_of_a_body_is_limited(client: TestClient) -> None:
    deep = fakes.body(constants={"a": nested(MAX_DEPTH - 1)})
    answer = client.post("/v1/jobs", json=deep)
    check_problem(answer, 422, "deeper than 32 levels")
    assert [error["pointer"] for error in answer.json()["errors"]] == [""]
    brackets = {"a": "[]{}" * 100, "b": nested(MAX_DEPTH - 2)}
    assert client.post("/v1/jobs", json=fakes.body(constants=brackets)).status_code == 201


def test_body_with_two_length_headers_closes_the_connection(client: TestClient) -> None:
    refused = client.post(
        "/v1/jobs", content=b"{}", headers={"Transfer-Encoding": "chunked", "Content-Length": "2"}
    )
    check_problem(refused, 400, "Content-Length or Transfer-Encoding")
    assert refused.headers["Connection"] == "close"


def test_path_query_and_headers_are_limited(client: TestClient) -> None:
    check_problem(client.get(f"/v1/jobs?cursor={'x' * MAX_TARGET_BYTES}"), 414, f"{MAX_TARGET_BYTES} bytes")
    check_problem(client.get(f"/v1/jobs/{'x' * MAX_TARGET_BYTES}"), 414, f"{MAX_TARGET_BYTES} bytes")
    check_problem(
        client.get("/v1/jobs", headers={"X-A": "x" * MAX_HEADER_BYTES}), 431, f"{MAX_HEADER_BYTES} bytes"
    )
    check_problem(client.get("/v1/jobs", headers={f"X-{n}": "x" for n in range(101)}), 431, "100 headers")
    assert client.get(f"/v1/jobs/{'x' * (MAX_TARGET_BYTES - 100)}").status_code == 404
    assert client.get("/v1/jobs", headers={"X-A": "x" * (MAX_HEADER_BYTES - 1000)}).status_code == 200


def test_slow_body_times_out(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_S", 0.05)
    parts: list[Message] = [{"type": "http.request", "body": b'{"na', "more_body": True}]
    sent: list[Message] = []

    async def receive() -> Message:
        if parts:
            return parts.pop()
        await asyncio.sleep(600)
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/jobs",
        "raw_path": b"/v1/jobs",
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {KEY}".encode()), (b"content-type", b"application/json")],
        "client": ("10.0.0.1", 1),
        "root_path": "",
        "http_version": "1.1",
        "scheme": "http",
        "server": ("x", 80),
    }
    asyncio.run(fakes.SharedApp(service)(scope, receive, send))
    assert sent[0]["status"] == 408
    assert b"the body was not complete after" in sent[1]["body"]


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


@given(
    rate=st.integers(1, 50),
    pauses=st.lists(st.sampled_from([0.0, 0.001, 0.1, 1.0, 5.0]), min_size=1, max_size=300),
)
def test_requests_never_exceed_burst_and_rate(rate: int, pauses: list[float]) -> None:
    clock = Clock()
    buckets, taken = Buckets(rate, clock), list[float]()
    for pause in pauses:
        clock.at += pause
        wait_s = buckets.take("a")
        if wait_s == 0:
            taken.append(clock.at)
        else:
            assert 0 < wait_s <= 1 / rate + 1e-9
        assert all(
            index - first + 1 <= 2 * rate + math.floor((at - taken[first]) * rate + 1e-6) + 1
            for index, at in list(enumerate(taken))[-1:]
            for first in range(len(taken))
        )


def test_rate_limit_returns_the_wait_for_each_client_separately() -> None:
    clock = Clock()
    buckets = Buckets(10, clock)
    assert [buckets.take("a") for _ in range(20)] == [0.0] * 20
    assert buckets.take("a") == pytest.approx(0.1)
    assert buckets.take("b") == 0, "others are not kept waiting"
    clock.at += 0.1
    assert [buckets.take("a") == 0 for _ in range(2)] == [True, False]
    clock.at += 3600
    assert [buckets.take("a") == 0 for _ in range(21)] == [True] * 20 + [False]


def test_number_of_remembered_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REMEMBERED", 3)
    buckets = Buckets(1, Clock())
    for name in "abcdefg":
        buckets.take(name)
    assert list(buckets._until) == ["e", "f", "g"]


def test_each_key_has_its_own_rate_limit(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "RateLimit", partial(RateLimit, now=Clock()))
    slow = replace(service, settings=replace(service.settings, rate_limit=2))
    client = fakes.client_of(slow, own=True)
    keyless = {"Authorization": "Bearer wrong"}
    assert [client.get("/v1/jobs").status_code for _ in range(4)] == [200] * 4
    refused = client.get("/v1/jobs")
    check_problem(refused, 429, "2 requests a second", "TUNER_RATE_LIMIT")
    assert refused.headers["Retry-After"] == "1"
    assert [client.get("/v1/jobs", headers=keyless).status_code for _ in range(4)] == [401] * 4
    check_problem(client.get("/v1/jobs", headers=keyless), 429)
    check_problem(client.get("/", headers={"Authorization": ""}), 429)
    for path in ("/healthz", "/readyz", "/metrics"):
        assert [client.get(path).status_code for _ in range(8)] == [200] * 8


def test_liveness_is_answered_while_all_threads_wait(service: FakeService) -> None:
    """They wait for a database that does not answer, for example."""

    async def tried() -> int:
        threads = anyio.to_thread.current_default_thread_limiter()
        threads.total_tokens = 1
        threads.acquire_on_behalf_of_nowait(object())
        transport = httpx2.ASGITransport(fakes.app_of(service))
        async with asyncio.timeout(20), httpx2.AsyncClient(transport=transport) as client:
            return (await client.get("http://tuner/healthz")).status_code

    assert asyncio.run(tried()) == 200


async def open_stream(
    app: ASGIApp, job: str, ends: asyncio.Event
) -> tuple[asyncio.Task[None], list[Message]]:
    """Request a job's events, and return the request's task and the answer once its first part was sent. `ends` closes the connection."""
    answered, begun, received = list[Message](), asyncio.Event(), list[Message]()

    async def send(message: Message) -> None:
        answered.append(message)
        if message["type"] == "http.response.body":
            begun.set()

    async def receive() -> Message:
        if not received:
            received.append({"type": "http.request"})
            return received[0]
        await ends.wait()
        return {"type": "http.disconnect"}

    headers = [(b"authorization", f"Bearer {KEY}".encode())]
    path = f"/v1/jobs/{job}/events"
    scope = {
        **{"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""},
        **{"headers": headers, "client": ("10.0.0.1", 1), "root_path": "", "http_version": "1.1"},
        **{"scheme": "http", "server": ("x", 80)},
    }
    task = asyncio.create_task(app(scope, receive, send))  # type: ignore[arg-type]
    async with asyncio.timeout(240):
        await begun.wait()
    return task, answered


@pytest.mark.parametrize(("of_client", "of_all", "status"), [(2, 1000, 429), (200, 2, 503)])
def test_open_event_streams_are_limited(
    service: FakeService,
    client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    of_client: int,
    of_all: int,
    status: int,
) -> None:
    monkeypatch.setattr(limits, "MOST_STREAMS_OF_CLIENT", of_client)
    monkeypatch.setattr(limits, "MOST_STREAMS", of_all)
    job = fakes.submit(client)

    async def tried() -> None:
        app, ends = fakes.app_of(service), asyncio.Event()
        opened = [await open_stream(app, job, ends) for _ in range(2)]
        assert [answered[0]["status"] for _, answered in opened] == [200, 200]
        task, answered = await open_stream(app, job, ends)
        assert answered[0]["status"] == status
        await task
        assert dict(answered[0]["headers"])[b"retry-after"] == b"2"
        ends.set()
        await asyncio.gather(*(task for task, _ in opened))
        task, answered = await open_stream(app, job, ends)
        assert answered[0]["status"] == 200, "closed streams do not count"
        await task

    asyncio.run(tried())


async def room(
    app: ASGIApp,
    path: str = "/v1/jobs",
    *,
    client: str = "10.0.0.1",
    key: str | None = None,
    body: asyncio.Event | None = None,
) -> tuple[asyncio.Task[None], list[Message]]:
    """Start a request, run it until it first waits, and return its task and the response so far.

    If `body` is given, the request has a body, which arrives when the event is set.
    """
    answered = list[Message]()

    async def send(message: Message) -> None:
        answered.append(message)

    async def receive() -> Message:
        if body is not None:
            await body.wait()
        return {"type": "http.request"}

    headers = [] if body is None else [(b"content-length", b"2")]
    if key is not None:
        headers.append((b"authorization", f"Bearer {key}".encode()))
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "client": (client, 1)}
    task = asyncio.create_task(app(scope, receive, send))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    return task, answered


def test_overload_is_refused_with_503_and_streams_hold_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_WAITING", 2)

    async def tried() -> None:
        begins, ends = asyncio.Event(), asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == "/v1/breaks":
                raise ValueError("breaks")
            await begins.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await ends.wait()

        door = ConcurrencyLimit(app, clients=Clients("key"))
        tasks = [(await room(door))[0] for _ in range(2)]
        refused, answered = await room(door)
        await refused
        assert answered[0]["status"] == 503
        assert dict(answered[0]["headers"])[b"retry-after"] == b"2"
        tasks.append((await room(door, "/healthz"))[0])
        begins.set()
        for _ in range(3):
            await asyncio.sleep(0)
        for _ in range(3):  # a failed request does not keep its slot either
            broken, _ = await room(door, "/v1/breaks")
            with pytest.raises(ValueError, match="breaks"):
                await broken
        begins.clear()
        for _ in range(2):
            task, answered = await room(door)
            tasks.append(task)
            assert answered == []
        begins.set()
        ends.set()
        await asyncio.gather(*tasks)

    asyncio.run(tried())


async def answer_late(scope: Scope, receive: Receive, send: Send, *, ends: asyncio.Event) -> None:
    """Answer a request when its body is complete and `ends` is set. A request for `/v1/ignores` is answered without reading its body."""
    if scope["path"] != "/v1/ignores":
        await receive()
    await ends.wait()
    await send({"type": "http.response.start", "status": 200, "headers": []})


def limited(ends: asyncio.Event) -> ASGIApp:
    """Return an application with limits, which answers late. Starlette turns the exceptions of a refused request into answers.

    The service's own key is `key`, and the users' keys `first` and `second` are known.
    """
    app = ExceptionMiddleware(partial(answer_late, ends=ends))
    return ConcurrencyLimit(app, clients=Clients("key", {"first", "second"}))


async def check_refused(request: tuple[asyncio.Task[None], list[Message]], status: int) -> None:
    task, answered = request
    async with asyncio.timeout(60):
        await task
    assert answered[0]["status"] == status
    assert dict(answered[0]["headers"])[b"retry-after"] == b"2"


def test_requests_without_their_bodies_do_not_make_the_service_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_WAITING", 4)
    monkeypatch.setattr(limits, "MOST_ARRIVING_OF_CLIENT", 3)

    async def tried() -> None:
        ends, body = asyncio.Event(), asyncio.Event()
        door = limited(ends)
        arriving = [await room(door, body=body) for _ in range(3)]
        await check_refused(await room(door, body=body), 429)
        other, others_answer = await room(door, client="10.0.0.2")
        assert others_answer == [], "the request of another client is let through"
        body.set()
        await asyncio.sleep(0)
        await check_refused(await room(door), 503)  # requests with complete bodies count as waiting
        ends.set()
        await asyncio.gather(other, *(task for task, _ in arriving))
        for _ in range(4):
            task, answered = await room(door, body=body)
            await task
            assert answered[0]["status"] == 200, "the slots are free again"

    asyncio.run(tried())


def test_arriving_bodies_of_all_clients_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each body takes memory, and a caller may have many addresses."""
    monkeypatch.setattr(limits, "MOST_ARRIVING", 2)

    async def tried() -> None:
        ends, body = asyncio.Event(), asyncio.Event()
        door = limited(ends)
        arriving = [await room(door, client=f"10.0.0.{n}", body=body) for n in range(2)]
        await check_refused(await room(door, client="10.0.0.2", body=body), 503)
        bodyless, _ = await room(door, client="10.0.0.3")
        ends.set()
        await bodyless
        body.set()
        await asyncio.gather(*(task for task, _ in arriving))
        task, answered = await room(door, client="10.0.0.2", body=body)
        await task
        assert answered[0]["status"] == 200, "the slots are free again"

    asyncio.run(tried())


@pytest.mark.parametrize("key", ["key", "first"])
def test_bodies_of_clients_without_a_key_do_not_refuse_those_with_a_key(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr(limits, "MOST_ARRIVING", 2)

    async def tried() -> None:
        ends, body = asyncio.Event(), asyncio.Event()
        door = limited(ends)
        keyless = [await room(door, client=f"10.0.0.{n}", body=body) for n in range(2)]
        await check_refused(await room(door, key="guessed", client="10.0.0.2", body=body), 503)
        with_key = [await room(door, key=each, body=body) for each in (key, "second")]
        assert [answered for _, answered in with_key] == [[], []], "their bodies are received"
        await check_refused(await room(door, key=key, body=body), 503)  # all keys together have a limit, too
        body.set()
        ends.set()
        await asyncio.gather(*(task for task, _ in (*keyless, *with_key)))
        assert [answered[0]["status"] for _, answered in (*keyless, *with_key)] == [200] * 4

    asyncio.run(tried())


def test_bodies_that_complete_together_do_not_exceed_the_limit_of_waiting_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MOST_WAITING", 2)

    async def tried() -> None:
        ends, body = asyncio.Event(), asyncio.Event()
        door = limited(ends)
        requests = [await room(door, body=body) for _ in range(3)]
        body.set()
        await check_refused(requests.pop(), 503)
        ends.set()
        await asyncio.gather(*(task for task, _ in requests))
        assert [answered[0]["status"] for _, answered in requests] == [200, 200]

    asyncio.run(tried())


def test_requests_whose_bodies_are_not_read_count_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routes without a request body, such as those that pause a job, read none."""
    monkeypatch.setattr(limits, "MOST_WAITING", 3)
    monkeypatch.setattr(limits, "MOST_ARRIVING_OF_CLIENT", 2)

    async def tried() -> None:
        ends, body = asyncio.Event(), asyncio.Event()
        door = limited(ends)
        requests = [await room(door, "/v1/ignores", body=body) for _ in range(3)]
        assert [answered for _, answered in requests] == [[], [], []]
        await check_refused(await room(door, "/v1/ignores", body=body), 503)
        ends.set()
        await asyncio.gather(*(task for task, _ in requests))

    asyncio.run(tried())


def test_refused_body_is_answered_with_the_limit(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, status in (("MOST_ARRIVING", 503), ("MOST_ARRIVING_OF_CLIENT", 429)):
        with monkeypatch.context() as patched:
            patched.setattr(limits, limit, 0)
            refused = client.post("/v1/jobs", json=fakes.body())
        check_problem(refused, status, "incomplete bodies", "retry in 2 s")
        assert refused.headers["Retry-After"] == "2"
