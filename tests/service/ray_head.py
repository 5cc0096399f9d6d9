"""A head of Ray that answers over HTTP what a service asks its dashboard."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from platform import python_version
from typing import Any

NODE = {"node_id": "n1", "state": "ALIVE", "resources_total": {"CPU": 2, "memory": 8 << 30}, "labels": {}}


class Head(ThreadingHTTPServer):
    """A fake head that records what it receives, without the token."""

    ray, python = version("ray"), python_version()
    status = 200
    token = ""  #: The token that each request must have, if it is not empty.

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HeadAnswers)
        self.given: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str) -> Any:
        if path.startswith("/api/version"):
            return {"ray_version": self.ray}
        if path.startswith("/api/v0/cluster_metadata"):
            return {"data": {"rayVersion": self.ray, "pythonVersion": self.python}}
        return {"data": {"result": {"result": [NODE]}}, "status": "FAILED", "logs": "", "message": "it died"}


class HeadAnswers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Head)
        given = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        headers = {name: value for name, value in self.headers.items() if name.lower() != "authorization"}
        self.server.given.append(f"{self.path} {headers} {given}")
        assert not self.server.token or self.headers["Authorization"] == f"Bearer {self.server.token}"
        body = json.dumps(self.server.answer(self.path)).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        return
