"""Test detecting the cloud, and notices that do not come from a cloud: signals and an operator's command."""

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
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
from tuner.cluster.notices.feeds import backoff_s, metadata_client
from tuner.cluster.notices.notice import Notice
from tuner.cluster.notices.operator import sigterm_announced
from tuner.cluster.notices.watcher import Watcher
from tuner.domain.time import NS


def detected(server: MetadataServer[Any], *, detect_s: float) -> str | None:
    async def ask() -> str | None:
        async with metadata_client() as http:
            return await detect(http, sources(server, None, detect_s=detect_s))

    return asyncio.run(ask())


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
    told = RecordedCalls()
    with MetadataServer(Gcp()) as server:
        watcher = Watcher(told.on_notice, told.on_withdrawn, sources(server, "detect", detect_s=300))  # type: ignore[arg-type]
        watcher.start()
        server.cloud.preempt()
        told.waits_for("+gcp/preempted")
        assert set(watcher.state) == {"announcements", "Google preempted", "Google maintenance-event"}
        watcher.close()


def test_operator_notice_is_reported_before_cloud_is_detected() -> None:
    told = RecordedCalls()
    with MetadataServer(Nowhere()) as server:
        server.fail("", hangs)
        watcher = Watcher(told.on_notice, told.on_withdrawn, sources(server, "detect", detect_s=300))  # type: ignore[arg-type]
        watcher.announce(OPERATORS)
        watcher.start()
        told.waits_for("+operator/1")
        watcher.announce(OPERATORS)
        watcher.withdraw(OPERATORS.id)
        told.waits_for("+operator/1", "-operator/1")
        watcher.withdraw(OPERATORS.id)
        watcher.withdraw("never announced")
        watcher.announce(OPERATORS)
        until(lambda: len(told.calls) == 3)
        assert told.calls[2] == "+operator/1"
        watcher.close()


def test_concurrent_announcements_are_all_reported() -> None:
    told = RecordedCalls()
    with MetadataServer(Nowhere()) as server, watching(server, None, told) as watcher:

        def announce(group: int) -> None:
            for number in range(50):
                watcher.announce(Notice("operator", "pause", f"{group}/{number}", None, ""))

        threads = [threading.Thread(target=announce, args=(group,)) for group in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        told.waits_for(*(f"+{group}/{number}" for group in range(4) for number in range(50)))


def test_sigterm_becomes_a_notice_with_the_configured_grace() -> None:
    told, before = RecordedCalls(), signal.getsignal(signal.SIGTERM)
    with MetadataServer(Nowhere()) as server, watching(server, None, told) as watcher:
        with sigterm_announced(watcher.announce, grace_s=45):
            began = time.time_ns()
            os.kill(os.getpid(), signal.SIGTERM)
            told.waits_for("+signal/SIGTERM")
            os.kill(os.getpid(), signal.SIGTERM)
            watcher.announce(OPERATORS)
            told.waits_for("+signal/SIGTERM", "+operator/1")
        assert signal.getsignal(signal.SIGTERM) is before
        (notice, _) = told.notices
        assert notice.ends_node
        assert notice.deadline is not None
        assert began + 45 * NS <= notice.deadline <= time.time_ns() + 45 * NS


def test_callbacks_are_serialized_while_polling_continues() -> None:
    told, let_go, inside, most = RecordedCalls(), threading.Event(), [0], [0]

    def slow(notice: Notice) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        let_go.wait(300)
        told.on_notice(notice)
        inside[0] -= 1

    with MetadataServer(Aws()) as server, watching(server, "aws", told, on_notice=slow) as watcher:
        watcher.announce(OPERATORS)
        until(lambda: inside[0] == 1)
        server.cloud.recommend()
        looks_again(server, "instance-action")
        assert told.calls == []
        let_go.set()
        told.waits_for("+operator/1", "+aws/rebalance")
    assert most == [1]


def test_watcher_runs_in_the_callers_event_loop() -> None:
    told = RecordedCalls()

    async def scenario(server: MetadataServer[Aws]) -> None:
        watcher = Watcher(told.on_notice, told.on_withdrawn, sources(server, "aws"))
        running = asyncio.create_task(watcher.run())
        server.cloud.interrupt()
        while not told.calls:
            await asyncio.sleep(0.01)
        notice = told.notices[0]
        assert not await asyncio.to_thread(watcher.release, notice)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()

    with MetadataServer(Aws()) as server:
        asyncio.run(asyncio.wait_for(scenario(server), 300))
    assert told.calls == ["+aws/instance-action"]


def test_unstarted_watcher_can_be_closed_and_releases_nothing() -> None:
    watcher = Watcher(lambda _: None, lambda _: None)
    watcher.close()
    assert not watcher.release(OPERATORS)
    assert watcher.state == {}


@given(failures=st.integers(1, 10**6), seed=st.integers())
def test_backoff_after_failures_grows_up_to_its_limit(failures: int, seed: int) -> None:
    pause_s = backoff_s(failures, Random(seed), first_s=0.5, most_s=10)
    assert 0.25 <= pause_s <= 10
    if failures > 5:
        assert pause_s >= 5
