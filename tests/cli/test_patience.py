"""A client that takes too long to send a request is disconnected, and no other client is."""

import asyncio
import threading
from contextlib import suppress

import pytest
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from tuner.cli import http_server
from tuner.cli.http_server import GracefulServer, TimeoutProtocol

WHOLE = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nabcd"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return
        body, more = body + message["body"], message["more_body"]
    await asyncio.sleep(3 * http_server.ARRIVE_S)  # a response may take any time
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": body})


async def at_once(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"abcd"})


async def served(client: bytes, *, trickle: bytes = b"") -> bytes:
    """Return what the server sends until it closes the connection, while bytes trickle in."""
    config, state = uvicorn.Config(echo, ws="none", timeout_keep_alive=600, lifespan="off"), ServerState()
    config.load()
    server = await asyncio.get_running_loop().create_server(
        lambda: TimeoutProtocol(config, state, {}), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(client)

    async def drip() -> None:
        with suppress(ConnectionError):
            for byte in trickle * 10_000:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.02)

    dripping, got = asyncio.create_task(drip()), b""
    with suppress(ConnectionError):
        async with asyncio.timeout(60):
            while part := await reader.read(4096):
                got += part
    dripping.cancel()
    writer.close()
    server.close()
    return got


@pytest.mark.parametrize(
    ("sent", "trickle"),
    [
        (b"", b""),
        (b"GET / HT", b""),
        (b"GET / HTTP/1.1\r\nX: ", b"x"),
        (WHOLE[:-2], b""),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", b"x"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
)
def test_client_that_sends_no_complete_request_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, trickle: bytes
) -> None:
    monkeypatch.setattr(http_server, "ARRIVE_S", 0.2)
    assert b"200 OK" not in asyncio.run(served(sent, trickle=trickle))


def test_complete_requests_are_answered_in_turn_even_if_responses_are_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server closes the connection when no further request comes."""
    monkeypatch.setattr(http_server, "ARRIVE_S", 0.2)
    assert asyncio.run(served(WHOLE * 2)).count(b"abcd") == 2


def test_endless_headers_are_refused_with_431() -> None:
    endless = b"GET / HTTP/1.1\r\n" + b"X: %b\r\n" % (b"x" * 1000) * 200
    assert b"431 Request Header Fields Too Large" in asyncio.run(served(endless))
    assert b"431 Request Header Fields Too Large" in asyncio.run(served(WHOLE + endless))


def test_request_received_before_the_keep_alive_timeout_fires_is_answered() -> None:
    async def tried() -> bytes:
        config = uvicorn.Config(at_once, ws="none", timeout_keep_alive=1, lifespan="off")
        config.load()
        state = ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: TimeoutProtocol(config, state, {}), "127.0.0.1", 0
        )
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(WHOLE)
        got = await reader.readuntil(b"abcd")
        writer.write(WHOLE)
        (connection,) = state.connections
        assert isinstance(connection, TimeoutProtocol)
        connection.timeout_keep_alive_handler()  # its bytes have not been read yet
        async with asyncio.timeout(60):
            got += await reader.readuntil(b"abcd")
        writer.close()
        server.close()
        return got

    assert uvloop.run(tried()).count(b"200 OK") == 2


async def scopes_of(*requests: bytes) -> list[Scope]:
    """Return the scopes in which an app receives requests from this machine."""
    scopes = list[Scope]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await at_once(scope, receive, send)

    config = GracefulServer(app, shutting_down=threading.Event(), end_streams=lambda: None, drain_s=0).config
    config.load()
    server = await asyncio.get_running_loop().create_server(
        lambda: TimeoutProtocol(config, ServerState(), {}), "127.0.0.1", 0
    )
    for request in requests:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(request)
        async with asyncio.timeout(60):
            await reader.readuntil(b"abcd")
        writer.close()
    server.close()
    return scopes


def test_proxy_on_this_machine_names_the_scheme_and_no_client_chooses_its_address() -> None:
    forwarded = b"GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 10.9.9.9\r\nX-Forwarded-Proto: https\r\n\r\n"
    direct = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    scopes = uvloop.run(scopes_of(forwarded, direct))
    assert [scope["client"][0] for scope in scopes] == ["127.0.0.1"] * 2
    assert [scope["scheme"] for scope in scopes] == ["https", "http"]


def test_request_timeout_is_at_most_thirty_seconds() -> None:
    assert http_server.ARRIVE_S <= 30
