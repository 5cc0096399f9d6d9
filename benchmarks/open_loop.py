"""Send requests at planned moments over persistent HTTP/1.1 connections.

The client is small, so that it measures the server rather than itself.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle
from random import Random
from typing import Protocol

TIMEOUT_S = 60.0


class Request(Protocol):
    @property
    def route(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def key(self) -> str:
        """The Idempotency-Key; empty for none."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of a request. `seconds` counts from the moment it was due. `body` is the body of an error."""

    route: str
    seconds: float
    status: int
    body: bytes = b""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Client:
    """An HTTP client with one connection per request under way, to several servers in turn."""

    def __init__(self, host: str, ports: Sequence[int], credentials: str) -> None:
        self._host, self._ports = host, cycle(ports)
        self._headers = f"Host: {host}\r\nAuthorization: {credentials}\r\n"
        self._idle: dict[int, list[Connection]] = {port: [] for port in ports}

    async def ask(self, method: str, path: str, body: bytes = b"", key: str = "") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\n{self._headers}"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        if key:
            head += f"Idempotency-Key: {key}\r\n"
        port = next(self._ports)
        reader, writer = made = await self._connection(port)
        try:
            writer.write(head.encode() + b"\r\n" + body)
            status, headers = await _head(reader)
            response_body = await _body(reader, headers)
        except BaseException:
            writer.close()
            raise
        if headers.get(b"connection") == b"close":
            writer.close()
        else:
            self._idle[port].append(made)
        return status, response_body

    async def get(self, path: str) -> bytes:
        status, body = await self.ask("GET", path)
        assert status == 200, (status, body[:500])
        return body

    async def _connection(self, port: int) -> Connection:
        """Return an idle connection that the server has not closed, or a new one."""
        while self._idle[port]:
            reader, writer = connection = self._idle[port].pop()
            if not reader.at_eof():
                return connection
            writer.close()
        return await asyncio.open_connection(self._host, port, limit=1 << 20)

    def close(self) -> None:
        for _, writer in chain.from_iterable(self._idle.values()):
            writer.close()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[bytes, bytes]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    pairs = (line.partition(b":") for line in lines if line)
    return int(first.split(b" ")[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: dict[bytes, bytes]) -> bytes:
    if headers.get(b"transfer-encoding") != b"chunked":
        return await reader.readexactly(int(headers.get(b"content-length", b"0")))
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(parts)


async def planned(client: Client, requests: Iterator[Request], rate: float, seconds: float) -> list[Answered]:
    """Send the requests due within `seconds`, and return the results when all were answered."""
    chance, due, answers = Random(2), time.perf_counter() + 0.1, list[Answered]()
    over = due + seconds
    async with asyncio.TaskGroup() as group:
        while (due := due + chance.expovariate(rate)) < over:
            wait_s = due - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            group.create_task(_one(client, next(requests), due, answers))
    return answers


async def _one(client: Client, request: Request, due: float, answers: list[Answered]) -> None:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            status, body = await client.ask(request.method, request.path, request.body, request.key)
    except (OSError, EOFError, TimeoutError) as error:
        status, body = 0, repr(error).encode()
    took = time.perf_counter() - due
    answers.append(Answered(request.route, took, status, b"" if 200 <= status < 300 else body))
