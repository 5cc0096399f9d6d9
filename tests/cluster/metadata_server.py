"""A cloud's metadata service on 127.0.0.1 over real HTTP, which can be made to fail in many ways.

    with MetadataServer(Aws()) as server:
        server.cloud.interrupt()
        server.fail("instance-action", status(500), times=2)

Run as a program, `python -m tests.cluster.metadata_server aws|gcp|azure` prints its URL and gives a notice for
each line that it reads. Use it to try out a watcher manually.
"""

import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, urlsplit

from tests.cluster.metadata_clouds import Aws, Azure, Cloud, Gcp, Reply, Request

CloudT = TypeVar("CloudT", bound=Cloud)
HOLD_S = 300.0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Listener"

    def answer(self) -> None:
        url = urlsplit(self.path)
        request = Request(
            self.command,
            url.path,
            dict(parse_qsl(url.query)),
            {name.lower(): value for name, value in self.headers.items()},
            self.rfile.read(int(self.headers.get("Content-Length", 0))),
        )
        self.server.owner.serve(self, request)

    do_GET = do_PUT = do_POST = answer

    def send(self, reply: Reply, *, body: bytes | None = None) -> None:
        """Send the reply. `body` overrides the bytes that follow the headers, so that they can contradict the
        headers.
        """
        self.send_response_only(reply.status)
        self.send_header("Date", self.date_time_string())
        for name, value in {**reply.headers, "Content-Length": str(len(reply.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body if body is None else body)

    def log_message(self, *_: Any) -> None: ...


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    owner: "MetadataServer[Any]"

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that have disconnected, which some tests do on purpose."""


Failure = Callable[["MetadataServer[Any]", Handler, Callable[[], Reply]], None]


def status(code: int) -> Failure:
    return says(b"<html>an error</html>", status=code)


def says(body: bytes, *, status: int = 200) -> Failure:
    """Answer with this body and the headers of the true answer."""
    return lambda _, handler, truth: handler.send(Reply(status, body, truth().headers))


def redirects(to: str) -> Failure:
    return lambda _, handler, truth: handler.send(Reply(302, b"", {**truth().headers, "Location": to}))


def half_a_body(_: "MetadataServer[Any]", handler: Handler, truth: Callable[[], Reply]) -> None:
    reply = truth()
    handler.send(reply, body=reply.body[: len(reply.body) // 2])
    handler.close_connection = True


def no_answer(_: "MetadataServer[Any]", handler: Handler, truth: Callable[[], Reply]) -> None:
    handler.close_connection = True


def hangs(server: "MetadataServer[Any]", handler: Handler, truth: Callable[[], Reply]) -> None:
    """Answer only after the fault is fixed or the server ends, or after HOLD_S seconds."""
    server.is_fixed.wait(HOLD_S)
    handler.send(truth())


def drips(server: "MetadataServer[Any]", handler: Handler, truth: Callable[[], Reply]) -> None:
    """Send one byte after another, so that no read ever times out. The answer never ends."""
    handler.close_connection = True
    handler.send(Reply(200, b" " * 10_000_000, truth().headers), body=b"")
    while not server.is_fixed.wait(0.02):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def has_no_end(server: "MetadataServer[Any]", handler: Handler, truth: Callable[[], Reply]) -> None:
    handler.close_connection = True
    handler.send(Reply(200, b" " * 10_000_000, truth().headers), body=b"")
    while not server.is_fixed.is_set():
        handler.wfile.write(b" " * 65536)


class MetadataServer(Generic[CloudT]):
    """The server. `requests` holds every request in the order of arrival."""

    def __init__(self, cloud: CloudT) -> None:
        self.cloud = cloud
        self.requests: list[Request] = []
        self.is_fixed = threading.Event()
        self._failures: dict[str, tuple[Failure, int | None]] = {}
        self._lock = threading.Lock()
        self._listener = Listener(("127.0.0.1", 0), Handler)
        self._listener.owner = self
        self.url = f"http://127.0.0.1:{self._listener.server_address[1]}"

    def __enter__(self) -> "MetadataServer[CloudT]":
        threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.fix()
        self.cloud.close()
        self._listener.shutdown()
        self._listener.server_close()

    def fail(self, part: str, failure: Failure, *, times: int | None = None) -> None:
        """Fail `times` requests whose path contains `part`. None fails all of them until the fault is fixed."""
        with self._lock:
            self.is_fixed.clear()
            self._failures[part] = (failure, times)

    def fix(self) -> None:
        with self._lock:
            self._failures.clear()
            self.is_fixed.set()

    def request_count(self, part: str, method: str = "GET") -> int:
        """Return the number of requests of this method whose path contains `part`."""
        return sum(part in request.path and request.method == method for request in tuple(self.requests))

    def serve(self, handler: Handler, request: Request) -> None:
        with self._lock:
            self.requests.append(request)
            failure = self._failure(request.path)
        if failure is None:
            handler.send(self.cloud.answer(request))
        else:
            failure(self, handler, lambda: self.cloud.answer(request))

    def _failure(self, path: str) -> Failure | None:
        for part, (failure, times) in self._failures.items():
            if part in path and times != 0:
                self._failures[part] = (failure, None if times is None else times - 1)
                return failure
        return None


def main(name: str) -> None:
    aws, gcp, azure = Aws(), Gcp(), Azure()
    clouds: dict[str, tuple[Cloud, Callable[[], None]]] = {
        "aws": (aws, aws.interrupt),
        "gcp": (gcp, gcp.preempt),
        "azure": (azure, azure.schedule),
    }
    cloud, give_notice = clouds[name]
    with MetadataServer(cloud) as server:
        print(server.url, flush=True)
        for _ in sys.stdin:
            give_notice()


if __name__ == "__main__":
    main(sys.argv[1])
