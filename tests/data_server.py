"""A server of data on the loopback interface, which counts downloads and can hold one up in the middle."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class DataServer(ThreadingHTTPServer):
    """Serve `content` at every path."""

    content, etag = b"the data", "1"
    sends_size = True
    trickles = False  # whether the second half arrives byte by byte until it may end
    downloads = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.may_end = threading.Event()
        self.may_end.set()
        self.half_sent = threading.Event()

    def url(self, path: str = "/folder/data.csv?signature=x") -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class Handler(BaseHTTPRequestHandler):
    server: DataServer

    def do_HEAD(self) -> None:
        self.send_response(200)
        if self.server.etag:
            self.send_header("ETag", self.server.etag)
        if self.server.sends_size:
            self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()

    def do_GET(self) -> None:
        self.server.downloads += 1
        self.do_HEAD()
        half = len(self.server.content) // 2
        self.wfile.write(self.server.content[:half])
        self.wfile.flush()
        self.server.half_sent.set()
        rest = self.server.content[half:]
        while self.server.trickles and len(rest) > 1 and not self.server.may_end.wait(0.1):
            self.wfile.write(rest[:1])
            rest = rest[1:]
        self.server.may_end.wait(60)
        self.wfile.write(rest)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def data_server() -> Iterator[DataServer]:
    with DataServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.may_end.set()
        server.shutdown()
