"""Test failing metadata services: the watch continues, nothing is invented or taken for a withdrawal, and no
notice is missed.
"""

import logging
import socket
import time
from collections.abc import Callable
from typing import Any, Literal

import pytest

from tests.cluster.metadata_clouds import Aws, Azure, Gcp
from tests.cluster.metadata_server import (
    Failure,
    MetadataServer,
    drips,
    half_a_body,
    hangs,
    has_no_end,
    no_answer,
    redirects,
    says,
    status,
)
from tests.cluster.waiting import until
from tests.cluster.watchers import RecordedCalls, looks_again, watching
from tuner.cluster.notices.notice import Notice

Name = Literal["aws", "gcp", "azure"]
CLOUDS: dict[Name, tuple[Callable[[], Any], str, str, str, str]] = {
    "aws": (Aws, "interrupt", "instance-action", "+aws/instance-action", "AWS instance-action"),
    "gcp": (Gcp, "preempt", "preempted", "+gcp/preempted", "Google preempted"),
    "azure": (
        Azure,
        "schedule",
        "scheduledevents",
        "+azure/602d9444-d2cd-49c7-8624-8643e7171297",
        "Azure scheduled events",
    ),
}
# Correct answers must arrive within this time, too. If one does not, a later one will.
IMPATIENT = {"answer_s": 0.3, "azure_first_answer_s": 0.3}
FAILURES: dict[str, tuple[Failure, dict[str, Any]]] = {
    "404": (status(404), {}),  # with AWS, it says that there is no notice
    "500": (status(500), {}),
    "503": (status(503), {}),
    "403": (status(403), {}),
    "401": (status(401), {}),
    "empty": (says(b""), {}),
    "nonsense": (says(b"<html>Sign in to the hotel's network</html>"), {}),
    "no text": (says(b"\xff\xfe\x00"), {}),
    "other JSON": (says(b'[{"action": null}]'), {}),
    "half a body": (half_a_body, {}),
    "no answer": (no_answer, {}),
    "redirect": (redirects("/elsewhere"), {}),
    "hangs": (hangs, IMPATIENT),
    "drips": (drips, IMPATIENT),
    "no end": (has_no_end, {}),
}


def troubled(caplog: pytest.LogCaptureFixture, name: str) -> Callable[[], bool]:
    """Return a function that returns whether the watcher's last message about a feed reports a problem."""

    def is_troubled() -> bool:
        texts = [record.getMessage() for record in tuple(caplog.records)]
        about = [text for text in texts if text.startswith(f"{name}: ")]
        return bool(about) and about[-1].endswith("; retrying")

    return is_troubled


# The gate tests each failure with one cloud. The watchers differ in how they read an answer, which test_notices_reading.py tests.
PAIRS = [
    pytest.param(cloud, failure, marks=[] if (number + place) % 3 == 0 else [pytest.mark.extended])
    for number, failure in enumerate(FAILURES)
    for place, cloud in enumerate(CLOUDS)
    if (cloud, failure) != ("aws", "404")
]


@pytest.mark.parametrize(("cloud", "failure"), PAIRS)
def test_failing_service_neither_invents_withdraws_nor_hides_notices(
    cloud: Name, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tuner.notices")  # the message that a feed answers again
    make, give_notice, part, call, name = CLOUDS[cloud]
    how, patience = FAILURES[failure]
    recorder = RecordedCalls()
    with (
        MetadataServer(make()) as server,
        watching(server, cloud, recorder, gcp_hang_s=0, **patience),
    ):
        until(lambda: server.request_count(part) >= 2)
        server.fail(part, how)
        looks_again(server, part, 1)  # Earlier requests have been answered or have timed out.
        until(troubled(caplog, name))
        getattr(server.cloud, give_notice)()
        looks_again(server, part)
        assert recorder.calls == []
        server.fix()
        recorder.waits_for(call)
        server.fail(part, how)
        until(troubled(caplog, name))
        looks_again(server, part)
        server.fix()
        until(lambda: not troubled(caplog, name)())
        looks_again(server, part)
        assert recorder.calls == [call]
        assert server.request_count("elsewhere") == 0


@pytest.mark.parametrize(
    "failure",
    [status(403), status(404), status(500), says(b"a\r\nX-Evil: b")],
    ids=["403", "404", "500", "invalid"],
)
def test_aws_notices_are_not_requested_without_a_valid_token(
    failure: Failure, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = RecordedCalls()
    with MetadataServer(Aws()) as server:
        server.cloud.interrupt()
        server.fail("api/token", failure)
        with watching(server, "aws", recorder):
            until(troubled(caplog, "AWS instance-action"))
            assert server.request_count("instance-action") == 0
            server.fix()
            recorder.waits_for("+aws/instance-action")


def test_service_down_at_watch_start_is_reported_as_trouble(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = MetadataServer(Aws())
        monkeypatch.setattr(server, "url", f"http://127.0.0.1:{free.getsockname()[1]}")
        with server, watching(server, "aws", RecordedCalls()):
            until(troubled(caplog, "AWS instance-action"))


def test_azure_first_answer_has_a_longer_timeout(caplog: pytest.LogCaptureFixture) -> None:
    recorder = RecordedCalls()
    with MetadataServer(Azure()) as server:
        server.cloud.schedule()
        server.fail("scheduledevents", hangs, times=1)
        patience = {"answer_s": 0.5, "azure_first_answer_s": 300.0}
        with watching(server, "azure", recorder, **patience):
            until(lambda: server.request_count("scheduledevents") == 1)
            time.sleep(0.7)
            assert not troubled(caplog, "Azure scheduled events")()
            server.fix()
            until(lambda: bool(recorder.calls))


def test_azure_machine_name_is_requested_again_after_failure() -> None:
    recorder = RecordedCalls()
    with MetadataServer(Azure()) as server:
        server.cloud.schedule()
        server.fail("compute/name", says(b"<html>"), times=3)
        with watching(server, "azure", recorder):
            until(lambda: bool(recorder.calls))
        assert server.request_count("compute/name") == 4


def test_unreadable_event_does_not_withdraw_a_notice(caplog: pytest.LogCaptureFixture) -> None:
    recorder = RecordedCalls()
    with MetadataServer(Azure()) as server, watching(server, "azure", recorder):
        server.cloud.schedule("a")
        recorder.waits_for("+azure/a")
        server.cloud.events = [{"EventId": "a", "Resources": ["worker_3"], "EventType": "Preemp"}]
        until(troubled(caplog, "Azure scheduled events"))
        server.cloud.schedule("b")
        recorder.waits_for("+azure/a", "+azure/b")
        looks_again(server, "scheduledevents")
        assert recorder.calls == ["+azure/a", "+azure/b"]


def test_older_document_does_not_withdraw_notice_until_repeated() -> None:
    recorder = RecordedCalls()
    with MetadataServer(Azure()) as server, watching(server, "azure", recorder):
        server.cloud.schedule("a")
        recorder.waits_for("+azure/a")
        server.fail("scheduledevents", says(b'{"DocumentIncarnation": 1, "Events": []}'), times=1)
        looks_again(server, "scheduledevents")
        assert recorder.calls == ["+azure/a"]
        # A service that counts from the start again is believed the second time.
        server.fail("scheduledevents", says(b'{"DocumentIncarnation": 1, "Events": []}'))
        recorder.waits_for("+azure/a", "-azure/a")


def test_value_without_etag_is_polled_without_waiting() -> None:
    recorder = RecordedCalls()
    with MetadataServer(Gcp()) as server:
        tagless = {"Metadata-Flavor": "Google"}
        real = server.cloud.answer
        server.cloud.answer = lambda request: type(real(request))(200, real(request).body, tagless)  # type: ignore[method-assign]
        with watching(server, "gcp", recorder):
            looks_again(server, "preempted")
            server.cloud.preempt()
            recorder.waits_for("+gcp/preempted")
            assert not any(metadata_request.query for metadata_request in server.requests)


def test_metadata_requests_bypass_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    recorder = RecordedCalls()
    with MetadataServer(Aws()) as server, watching(server, "aws", recorder):
        server.cloud.interrupt()
        recorder.waits_for("+aws/instance-action")


def test_failed_notice_callback_is_retried() -> None:
    recorder, failures = RecordedCalls(), [RuntimeError("no cluster"), OSError("still none")]
    on_notice = recorder.failing_first(failures)
    with (
        MetadataServer(Gcp()) as server,
        watching(server, "gcp", recorder, on_notice=on_notice, gcp_hang_s=50),
    ):
        server.cloud.preempt()
        recorder.waits_for("+gcp/preempted")
        assert failures == []


def test_callback_failure_for_a_notice_does_not_block_others() -> None:
    recorder = RecordedCalls()

    def on_notice(notice: Notice) -> None:
        if notice.id == "azure/a":
            raise ValueError(notice.id)
        recorder.on_notice(notice)

    with MetadataServer(Azure()) as server, watching(server, "azure", recorder, on_notice=on_notice):
        server.cloud.schedule("a")
        server.cloud.schedule("b")
        recorder.waits_for("+azure/b")
        looks_again(server, "scheduledevents")
        assert recorder.calls == ["+azure/b"]
