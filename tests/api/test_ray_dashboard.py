"""Ray's dashboard through the service: needs the key, is read-only, and never shows Ray's token."""

import gzip
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.fakes import KEY, FakeService
from tests.listening import listening
from tuner.service.cluster import DashboardAccess
from tuner.store import launches

service, client = fakes.fixtures("module")
TOKEN = "ray_token_that_nobody_is_shown"


class Head(ThreadingHTTPServer):
    """A fake head with a dashboard that records its requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.token = TOKEN

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Head)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.command, self.path, headers))
        if headers.get("authorization") != f"Bearer {self.server.token}":
            self._say(401, b"Unauthorized: Missing authentication token", "text/plain")
        elif self.path == "/nodes?view=elsewhere":
            self._say(302, b"", "text/plain", Location="http://169.254.169.254/")
        elif self.path.startswith("/api/v0/logs/file"):
            self._say(200, b"<script>alert(1)</script>", "text/html")
        elif self.path == "/static/js/main.js":
            self._say(200, gzip.compress(b"draw()"), "text/javascript", **{"Content-Encoding": "gzip"})
        elif self.path == "/api/cluster_status":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"half of it")
        else:
            self._say(200, json.dumps({"path": self.path}).encode(), "application/json")

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _say(self, status: int, body: bytes, kind: str, **headers: str) -> None:
        self.send_response(status)
        all_headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Connection": "close",
            **headers,
        }
        all_headers |= {
            "Set-Cookie": f"ray-authentication-token={TOKEN}",
            "X-Inside": TOKEN,
            "Keep-Alive": "timeout=5",
        }
        for name, value in all_headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


def serving(service: FakeService) -> Iterator[Head]:
    """A head that the service uses as its own."""
    with listening(Head()) as listening_head:
        service.cluster.door = DashboardAccess(listening_head.url, TOKEN)
        yield listening_head


@pytest.fixture
def head(service: FakeService) -> Iterator[Head]:
    yield from serving(service)


def test_proxied_request_has_only_allowed_headers_and_rays_token(client: TestClient, head: Head) -> None:
    sent = {
        "Cookie": "tuner_session=x",
        "X-Forwarded-For": "10.0.0.1",
        "X-Ray-Authorization": "Bearer mine",
        "Connection": "keep-alive, X-Mine",
        "X-Mine": "x",
        "Transfer-Encoding": "chunked",
        "If-None-Match": '"a"',
        "Origin": "https://evil.example",
    }
    answer = client.get("/ray/api/jobs/?limit=1&x=%2e%2e", headers=sent)
    assert answer.json() == {"path": "/api/jobs/?limit=1&x=%2e%2e"}
    (asked,) = head.requests
    assert set(asked[2]) <= {
        "host",
        "authorization",
        "accept",
        "accept-encoding",
        "if-none-match",
        "user-agent",
        "connection",
    }
    assert asked[2]["authorization"] == f"Bearer {TOKEN}"
    assert asked[2]["host"] == head.url.removeprefix("http://")
    assert asked[2]["if-none-match"] == '"a"'
    assert KEY not in str(asked)


def test_no_response_contains_rays_token(service: FakeService, client: TestClient, head: Head) -> None:
    for path in (
        "",
        "api/jobs/",
        "nodes?view=summary",
        "api/v0/logs/file?x=1",
        "static/js/main.js",
        "worker/traceback",
    ):
        answer = client.get(f"/ray/{path}")
        assert TOKEN not in f"{answer.headers} {answer.text}"
        assert not {"set-cookie", "x-inside", "keep-alive", "server"} & set(answer.headers)
    job = fakes.submit(client)
    link = client.get(f"/v1/jobs/{job}").json()["links"]["ray_dashboard"]
    assert link == "/ray/#/jobs", "it was not launched yet"
    with service.database.write("test") as db:
        launches.submitted(db, job, 1, service.now())
    link = client.get(f"/v1/jobs/{job}").json()["links"]["ray_dashboard"]
    assert link == f"/ray/#/jobs/{job}-1", "the route of a job in Ray's dashboard"
    assert TOKEN not in repr(DashboardAccess(head.url, TOKEN))


def test_script_is_forwarded_unchanged_and_logs_are_sandboxed(client: TestClient, head: Head) -> None:
    script = client.get("/ray/static/js/main.js")
    assert (script.text, script.headers["content-encoding"]) == ("draw()", "gzip")
    assert "script-src 'self'" in client.get("/ray/").headers["content-security-policy"]
    log = client.get("/ray/api/v0/logs/file?node_id=1&filename=x.html")
    assert log.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert log.headers["x-content-type-options"] == "nosniff"


def test_dashboard_is_refused_without_the_key(service: FakeService, head: Head) -> None:
    browser = fakes.client_of(service, with_key=False)
    for path in ("/ray/", "/ray/nodes", "/ray/static/js/main.js", "/ray/api/jobs/"):
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Bearer {TOKEN}"},
            {"Cookie": "tuner_session=1.x"},
        ):
            answer = browser.get(path, headers=headers)
            assert answer.status_code == 401
    assert "The key is missing" in browser.get("/ray/", headers={"Accept": "text/html"}).text
    assert head.requests == []
    let_in = browser.post("/v1/session", headers={"Authorization": f"Bearer {KEY}"})
    assert "path=/ray" in let_in.headers["set-cookie"].lower()
    assert browser.get("/ray/nodes").status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_ray_dashboard_is_read_only(client: TestClient, head: Head, method: str) -> None:
    for path in ("api/jobs/", "api/jobs/raysubmit_1/stop", "api/serve/applications/", "api/authenticate"):
        assert client.request(method, f"/ray/{path}").status_code == 405
    assert head.requests == []


@pytest.mark.parametrize(
    "path",
    [
        "worker/traceback?pid=1",
        "worker/cpu_profile?pid=1",
        "task/traceback",
        "memory_profile?pid=1",
        "api/packages/gcs/x.zip",
        "api/authenticate",
        "api/job_agent/jobs/",
        "api/v0/delay/600",
        "test/dump",
        "api",
        "static/../api/packages/gcs/x",
        "static/%2e%2e/worker/traceback",
        "nodes/%2e%2e/worker/traceback",
        "nodes/%252e%252e/worker/traceback",
        "nodes/..%5cworker",
        "nodes//worker",
        "nodes/%3Fx",
        "nodes/%23x",
        "nodes/%0d%0aX:%20y",
        "nodes/%00",
        "nodes/;x",
        "nodes/%c3%a4",
        "@169.254.169.254/",
        "http://169.254.169.254/",
        "/169.254.169.254/",
    ],
)
def test_ray_paths_beyond_viewing_are_not_forwarded(client: TestClient, head: Head, path: str) -> None:
    url = httpx2.URL("http://testserver").copy_with(raw_path=f"/ray/{path}".encode())
    assert client.get(url).status_code in (404, 405)
    assert head.requests == []


def test_head_request_is_answered_without_body(client: TestClient, head: Head) -> None:
    answer = client.head("/ray/nodes")
    assert (answer.status_code, answer.text) == (200, "")
    assert head.requests[0][0] == "HEAD"


@pytest.mark.parametrize("path", ["nodes?view=elsewhere", "refused", "nobody", "starting"])
def test_unusable_ray_dashboard_is_503(
    service: FakeService, client: TestClient, head: Head, path: str
) -> None:
    """The response neither redirects nor asks for the token."""
    if path == "refused":
        head.token = "another"
    doors: dict[str, Any] = {"nobody": DashboardAccess("http://127.0.0.1:9", TOKEN), "starting": None}
    service.cluster.door = doors.get(path, service.cluster.door)
    answer = client.get(f"/ray/{path if '?' in path else 'nodes'}")
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert not {"location", "www-authenticate"} & set(answer.headers)
    assert TOKEN not in answer.text


def test_truncated_response_is_not_presented_as_complete(client: TestClient, head: Head) -> None:
    answer = client.get("/ray/api/cluster_status")
    assert len(answer.content) < int(answer.headers["content-length"])
