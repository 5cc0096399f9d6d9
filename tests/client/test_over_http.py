"""Both clients over real connections: a stream or a download that breaks midway."""

import errno
import json
import os
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.client.both import Both, both
from tests.listening import listening
from tuner.checkpoints.checkpoints import CheckpointId, CheckpointStore
from tuner.client import ApiError

EVENTS = [
    ("report", {"n": 1}, 3),
    ("report", {"n": 2}, 5),
    ("job", {"state": "succeeded"}, None),
]


class Handler(BaseHTTPRequestHandler):
    """Handler that sends one event and breaks off within the next, and sends a third of a checkpoint at a time."""

    protocol_version = "HTTP/1.1"
    server: "Service"

    def do_GET(self) -> None:
        if self.path.endswith("/events"):
            self._record()
        else:
            self._send_checkpoint()

    def _record(self) -> None:
        after = self.headers.get("Last-Event-ID")
        self.server.last_event_ids.append(after)
        left = [event for event in EVENTS if event[2] is None or event[2] > int(after or 0)]
        hangs = self.server.hangs.pop(0) if self.server.hangs else None
        if hangs == "headers":
            self.server.over.wait(60)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._chunk(frame(*left[0]))
        if hangs == "lines":
            self.server.over.wait(60)
        elif len(left) == 1:
            self._chunk(b"")
        else:
            self._chunk(frame(*left[1])[:9])
        self.close_connection = True

    def _send_checkpoint(self) -> None:
        """Send the tar file from the requested offset, and break after a third of it."""
        tar, asked = self.server.tar, self.headers.get("Range")
        self.server.last_event_ids.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        assert asked is None or self.headers["If-Range"] == '"tag"'
        self.send_response(206 if asked else 200)
        for name, value in (("Content-Length", len(tar) - start), ("ETag", '"tag"'), ("Tuner-Step", 3)):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(tar[start : start + len(tar) // 3 + 1])
        self.close_connection = True

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def log_message(self, *_: object) -> None:
        pass


class Service(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.last_event_ids = list[str | None]()
        self.tar = b""
        self.hangs = list[str]()  # positions at which the next streams stop sending
        self.over = Event()


def frame(kind: str, data: dict[str, Any], number: int | None) -> bytes:
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


@pytest.fixture
def service() -> Iterator[Service]:
    with listening(Service()) as made:
        yield made
        made.over.set()


@pytest.fixture(params=[False, True], ids=["answers", "is awaited"])
def client(service: Service, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Both:
    monkeypatch.setattr("tuner.client.follow.PAUSE_S", 0.01)
    return both(f"http://127.0.0.1:{service.server_port}", "key", transport=None, is_awaited=request.param)


def test_stream_broken_within_a_frame_resumes_without_a_gap(client: Both, service: Service) -> None:
    events = list(client.events("job_1"))
    assert [(event.type, event.data, event.id) for event in events] == EVENTS
    assert service.last_event_ids == [None, "3", "5"]


def test_silent_stream_is_reported_and_resumed(
    client: Both, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.client.follow.SILENT_S", 0.2)
    service.hangs += ["lines", "headers"]
    notices: list[object] = []
    began = datetime.now().astimezone()
    events = list(client.events("job_1", on_connection=notices.append, on_silence=notices.append))
    assert [(event.type, event.data, event.id) for event in events] == EVENTS
    assert service.last_event_ids == [None, "3", "3", "5"]
    assert [notice for notice in notices if isinstance(notice, bool)] == [
        True,
        False,
        False,
        True,
        False,
        True,
    ]
    assert all(notice >= began for notice in notices if isinstance(notice, datetime))


@pytest.mark.parametrize("is_awaited", [False, True], ids=["answers", "is awaited"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "tuner.example.com"])
def test_proxy_gets_no_request_and_no_key_for_a_service_on_this_machine(
    service: Service, monkeypatch: pytest.MonkeyPatch, host: str, is_awaited: bool
) -> None:
    monkeypatch.setattr("tuner.client.follow.PAUSE_S", 0.01)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with listening(Service()) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_port}")
        url = f"http://{host}:{service.server_port}"
        events = list(both(url, "key", transport=None, is_awaited=is_awaited).events("job_1"))
    assert [(event.type, event.data, event.id) for event in events] == EVENTS
    asked = {"service": bool(service.last_event_ids), "proxy": bool(proxy.last_event_ids)}
    assert asked == {"service": host != "tuner.example.com", "proxy": host == "tuner.example.com"}


def stored(service: Service, folder: Path) -> None:
    """Let the service send a checkpoint of 70,000 bytes."""
    (folder / "work").mkdir()
    (folder / "work" / "state.pt").write_bytes(b"weights" * 10_000)
    store = CheckpointStore(str(folder / "storage"), "default", "job_1")
    store.publish("trial_00000", 1, 3, folder / "work")
    archive = store.archive("trial_00000", CheckpointId(3, 1))
    service.tar = b"".join(archive.read(0, archive.size))


def test_broken_download_resumes_at_the_same_byte(client: Both, service: Service, tmp_path: Path) -> None:
    stored(service, tmp_path)
    checkpoint = client.download_checkpoint("job_1", "trial_00000", to=tmp_path / "model")
    assert (tmp_path / "model" / "state.pt").read_bytes() == b"weights" * 10_000
    assert (checkpoint.step, checkpoint.size_bytes) == (3, 70_000)
    third = len(service.tar) // 3 + 1
    assert service.last_event_ids == [None, f"bytes={third}-", f"bytes={2 * third}-"]


@pytest.mark.parametrize("full", ["tar", "files/state.pt"])
def test_download_to_a_full_disk_is_refused_and_leaves_nothing(
    client: Both, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    stored(service, tmp_path)
    (tmp_path / "here").mkdir()
    opened = Path.open

    def full_disk(path: Path, mode: str = "r", *options: Any, **more: Any) -> Any:
        if mode == "wb" and path.as_posix().endswith(full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return opened(path, mode, *options, **more)

    monkeypatch.setattr(Path, "open", full_disk)
    with pytest.raises(ApiError, match="No space left on device") as caught:
        client.download_checkpoint("job_1", "trial_00000", to=tmp_path / "here" / "model")
    assert (caught.value.status, caught.value.title) == (422, "The directory cannot be written")
    assert list((tmp_path / "here").iterdir()) == []
