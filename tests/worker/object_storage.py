"""An S3 service for tests: moto's server as a separate process, behind an HTTP proxy that injects faults."""

import contextlib
import http.client
import importlib.util
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import fsspec

Harm = Literal["answer", "reset", "cut", "flip", "shorten", "hang", "slow"]
CODES = {500: "InternalError", 503: "SlowDown", 403: "AccessDenied", 507: "InsufficientStorage"}
HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "host", "expect"}
SLOW_S = 0.3


@contextlib.contextmanager
def moto_server() -> Iterator[int]:
    """Start moto's server and yield the port that the system assigned."""
    assert importlib.util.find_spec("moto"), (
        "these tests need moto's server: pip install -c constraints.txt -e '.[dev,s3]'"
    )
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield _port(server, log.fileno())
        finally:
            server.terminate()
            server.wait()


def _port(server: subprocess.Popen[bytes], log: int) -> int:
    """Return the port from the server's log. The server listens as soon as it logs it."""
    deadline, log_text = time.monotonic() + 120, ""
    while time.monotonic() < deadline and server.poll() is None:
        log_text = os.pread(log, 4000, 0).decode(errors="replace")
        if match := re.search(r"Running on http://127\.0\.0\.1:(\d+)", log_text):
            return int(match[1])
        time.sleep(0.02)
    raise AssertionError(f"moto's server did not start (exit status {server.poll()}): {log_text}")


@dataclass
class Fault:
    """A fault for the next `times` requests of a method whose path or query contains `part`."""

    harm: Harm
    method: str
    part: str
    times: int
    status: int = 0


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Proxy(ThreadingHTTPServer):
    """The proxy. `asked` holds the method and path of each request in order. After `dies_after` requests, each
    connection is reset.
    """

    daemon_threads = True

    def __init__(self, upstream: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream = upstream
        self.faults: list[Fault] = []
        self.asked: list[str] = []
        self.dies_after: int | None = None
        self.over = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def fault(self, harm: Harm, method: str, part: str, times: int = 1, status: int = 0) -> None:
        self.faults.append(Fault(harm, method, part, times, status))

    def next_fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.asked.append(f"{method} {path}")
            if self.dies_after is not None and len(self.asked) > self.dies_after:
                return Fault("reset", method, path, 1)
            for fault in self.faults:
                if fault.times and fault.method == method and fault.part in path:
                    fault.times -= 1
                    return fault
        return None

    def asks(self, part: str, within_s: float = 240) -> bool:
        """Return whether a request whose path or query contains `part` arrives within `within_s` seconds."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if any(part in asked for asked in list(self.asked)):
                return True
            time.sleep(0.02)
        return False

    def heal(self) -> None:
        """Do no more harm, and let the requests go that hang."""
        self.faults.clear()
        self.dies_after = None
        self.over.set()
        self.over = threading.Event()

    def close(self) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that give up while they are being answered, which some tests do on purpose."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.next_fault(self.command, self.path)
        if fault is None:
            self._send(self._forward(body))
            return
        getattr(self, f"_{fault.harm}")(fault, body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _forward(self, body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=300)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        connection.request(self.command, self.path, body=body, headers=headers)
        response = connection.getresponse()
        answer = Answer(response.status, response.getheaders(), response.read())
        connection.close()
        return answer

    def _send(self, answer: Answer, *, cut: bool = False) -> None:
        self.send_response_only(answer.status)
        headers = dict((name.lower(), value) for name, value in answer.headers)
        for name, value in answer.headers:
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        length = headers.get("content-length", "0") if self.command == "HEAD" else str(len(answer.body))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[: len(answer.body) // 2] if cut else answer.body)
        if cut:
            self.close_connection = True

    # Harm

    def _answer(self, fault: Fault, body: bytes) -> None:
        code = CODES[fault.status]
        text = f"<Error><Code>{code}</Code><Message>the proxy says {code}</Message></Error>".encode()
        self._send(Answer(fault.status, [("Content-Type", "application/xml")], text))

    def _reset(self, fault: Fault, body: bytes) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def _cut(self, fault: Fault, body: bytes) -> None:
        """Send half of the answer and close the connection."""
        self._send(self._forward(body), cut=True)

    def _flip(self, fault: Fault, body: bytes) -> None:
        """Flip one bit of the answer."""
        answer = self._forward(body)
        middle = len(answer.body) // 2
        answer.body = answer.body[:middle] + bytes([answer.body[middle] ^ 1]) + answer.body[middle + 1 :]
        self._send(answer)

    def _shorten(self, fault: Fault, body: bytes) -> None:
        """Store half of the body, and answer with success."""
        for name in [
            name for name in self.headers if "checksum" in name.lower() or name.lower() == "content-md5"
        ]:
            del self.headers[name]
        self._send(self._forward(body[: len(body) // 2]))

    def _hang(self, fault: Fault, body: bytes) -> None:
        self.server.over.wait(300)
        self.close_connection = True

    def _slow(self, fault: Fault, body: bytes) -> None:
        self.server.over.wait(SLOW_S)
        self._send(self._forward(body))


@dataclass
class Bucket:
    """A bucket behind a proxy, with the client's settings for it."""

    proxy: Proxy
    name: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"s3://{self.name}/checkpoints"

    @property
    def fs(self) -> Any:
        """The client, which is made once for all tests that use the same proxy."""
        return fsspec.filesystem("s3", use_listings_cache=False)

    def objects(self) -> list[str]:
        return sorted(name.split("/checkpoints/")[1] for name in self.fs.find(self.name))

    def chunks(self) -> list[str]:
        return [name for name in self.objects() if "/pieces-" in name]
