"""Test detecting the cloud, and notices that do not come from a cloud, such as signals."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.metadata_clouds import Aws, Azure, Gcp, Nowhere
from tests.cluster.metadata_server import MetadataServer, hangs, no_answer, status
from tests.cluster.waiting import until
from tests.cluster.watchers import OPERATORS, RecordedCalls, looks_again, sources, watching
from tuner.cluster.notices.clouds import detect
from tuner.cluster.notices.notice import Notice
from tuner.cluster.notices.watcher import Watcher, backoff_s, sigterm_announced
from tuner.domain.time import NS, Instant


def detected(server: MetadataServer[Any], *, detect_s: float) -> str | None:
    return detect(sources(server, None, detect_s=detect_s))


@pytest.mark.parametrize(("make", "name"), [(Aws, "aws"), (Gcp, "gcp"), (Azure, "azure")])
def test_each_cloud_is_detected_by_its_answer(make: Callable[[], Any], name: str) -> None:
    with MetadataServer(make()) as server:
        assert detected(server, detect_s=300) == name


def test_cloud_detection_retries_without_answer() -> None:
    with MetadataServer(Aws()) as server:
        server.fail("", no_answer, times=4)
        assert detected(server, detect_s=300) == "aws"


@pytest.mark.parametrize("failure", [None, hangs, no_answer, status(200), status(500)])
def test_unrelated_service_is_not_detected_as_a_cloud(failure: Any) -> None:
    with MetadataServer(Nowhere()) as server:
        if failure is not None:
            server.fail("", failure)
        assert detected(server, detect_s=0.3) is None


def test_no_cloud_is_detected_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free, MetadataServer(Nowhere()) as server:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(server, "url", f"http://127.0.0.1:{free.getsockname()[1]}")
        assert detected(server, detect_s=0.3) is None


def test_detected_cloud_is_watched() -> None:
    recorder = RecordedCalls()
    with MetadataServer(Gcp()) as server:
        watcher = Watcher(recorder.on_notice, recorder.on_withdrawn, sources(server, "detect", detect_s=300))  # type: ignore[arg-type]
        watcher.start()
        server.cloud.preempt()
        recorder.waits_for("+gcp/preempted")
        until(lambda: server.request_count("maintenance-event") > 0)
        watcher.close()


def test_announced_notice_is_reported_before_cloud_is_detected() -> None:
    recorder = RecordedCalls()
    with MetadataServer(Nowhere()) as server:
        server.fail("", hangs)
        watcher = Watcher(recorder.on_notice, recorder.on_withdrawn, sources(server, "detect", detect_s=300))  # type: ignore[arg-type]
        watcher.announce(OPERATORS)
        watcher.start()
        recorder.waits_for("+operator/1")
        watcher.announce(OPERATORS)
        watcher.announce(replace(OPERATORS, id="operator/2"))
        recorder.waits_for("+operator/1", "+operator/2")
        watcher.announce(replace(OPERATORS, deadline=Instant(10**17)))
        until(lambda: len(recorder.calls) == 3)
        assert recorder.calls[2] == "+operator/1"
        watcher.close()


def test_failed_call_about_an_announced_notice_is_repeated() -> None:
    recorder, failures = RecordedCalls(), [RuntimeError("no cluster"), OSError("still none")]
    on_notice = recorder.failing_first(failures)
    with (
        MetadataServer(Nowhere()) as server,
        watching(server, None, recorder, on_notice=on_notice) as watcher,
    ):
        watcher.announce(OPERATORS)
        recorder.waits_for("+operator/1")


def test_concurrent_announcements_are_all_reported() -> None:
    recorder = RecordedCalls()
    with MetadataServer(Nowhere()) as server, watching(server, None, recorder) as watcher:

        def announce(group: int) -> None:
            for number in range(50):
                watcher.announce(Notice(f"{group}/{number}", Instant(0), ""))

        threads = [threading.Thread(target=announce, args=(group,)) for group in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        recorder.waits_for(*(f"+{group}/{number}" for group in range(4) for number in range(50)))


def test_sigterm_becomes_a_notice_with_the_configured_grace() -> None:
    recorder, before = RecordedCalls(), signal.getsignal(signal.SIGTERM)
    with MetadataServer(Nowhere()) as server, watching(server, None, recorder) as watcher:
        with sigterm_announced(watcher.announce, grace_s=45):
            began = time.time_ns()
            os.kill(os.getpid(), signal.SIGTERM)
            recorder.waits_for("+signal/SIGTERM")
            os.kill(os.getpid(), signal.SIGTERM)
            watcher.announce(OPERATORS)
            recorder.waits_for("+signal/SIGTERM", "+operator/1")
        assert signal.getsignal(signal.SIGTERM) is before
        (notice, _) = recorder.notices
        assert began + 45 * NS <= notice.deadline <= time.time_ns() + 45 * NS


def test_callbacks_are_serialized_while_polling_continues() -> None:
    recorder, let_go, inside, most = RecordedCalls(), threading.Event(), [0], [0]

    def slow(notice: Notice) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        let_go.wait(300)
        recorder.on_notice(notice)
        inside[0] -= 1

    with MetadataServer(Aws()) as server, watching(server, "aws", recorder, on_notice=slow) as watcher:
        watcher.announce(OPERATORS)
        until(lambda: inside[0] == 1)
        looks_again(server, "instance-action")
        server.cloud.interrupt()
        assert recorder.calls == []
        let_go.set()
        recorder.waits_for("+operator/1", "+aws/instance-action")
    assert most == [1]


def test_unstarted_watcher_can_be_closed_and_releases_nothing() -> None:
    watcher = Watcher(lambda _: None, lambda _: None)
    watcher.close()
    assert not watcher.release(OPERATORS)


@given(failures=st.integers(1, 10**6), seed=st.integers())
def test_backoff_after_failures_grows_up_to_its_limit(failures: int, seed: int) -> None:
    pause_s = backoff_s(failures, Random(seed), first_s=0.5, most_s=10)
    assert 0.25 <= pause_s <= 10
    if failures > 5:
        assert pause_s >= 5
