"""Watchers of an emulated cloud, and a record of their calls."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.cluster.metadata_server import MetadataServer
from tests.cluster.waiting import until
from tuner.cluster.notices.clouds import Sources
from tuner.cluster.notices.notice import Notice
from tuner.cluster.notices.watcher import Watcher
from tuner.domain.time import Instant

OPERATORS = Notice("operator/1", Instant(10**18), "the machine is sold")


@dataclass
class RecordedCalls:
    """Record the watcher's calls: `+` and the id of a notice, `-` and the id of a withdrawn notice."""

    calls: list[str] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)

    closed: bool = False

    def on_notice(self, notice: Notice) -> None:
        assert not self.closed, "a closed watcher passes nothing on"
        self.notices.append(notice)
        self.calls.append(f"+{notice.id}")

    def failing_first(self, failures: list[Any]) -> Callable[[Notice], None]:
        """Return a callback for notices that raises the failures, the last one first, and then records its calls."""

        def on_notice(notice: Notice) -> None:
            if failures:
                raise failures.pop()
            self.on_notice(notice)

        return on_notice

    def on_withdrawn(self, notice: Notice) -> None:
        assert not self.closed, "a closed watcher passes nothing on"
        self.calls.append(f"-{notice.id}")

    def waits_for(self, *calls: str) -> None:
        """Wait until there are as many calls, and fail if they are not these, in any order."""
        until(lambda: len(self.calls) >= len(calls))
        assert sorted(self.calls) == sorted(calls)


def sources(
    server: MetadataServer[Any], cloud: Literal["aws", "gcp", "azure"] | None, **more: Any
) -> Sources:
    """Return sources that poll frequently and give up slowly."""
    quick: dict[str, Any] = {
        "aws_poll_s": 0.02,
        "azure_poll_s": 0.02,
        "gcp_pause_s": 0.01,
        "gcp_hang_s": 1,
        "backoff_s": 0.01,
        "backoff_max_s": 0.05,
        "answer_s": 20.0,
    }
    url = server.url
    return Sources(cloud, aws_url=url, gcp_url=url, azure_url=url, **{**quick, **more})


@contextmanager
def watching(
    server: MetadataServer[Any],
    cloud: Literal["aws", "gcp", "azure"] | None,
    recorder: RecordedCalls,
    *,
    on_notice: Callable[[Notice], None] | None = None,
    **more: Any,
) -> Iterator[Watcher]:
    watcher = Watcher(on_notice or recorder.on_notice, recorder.on_withdrawn, sources(server, cloud, **more))
    watcher.start()
    try:
        yield watcher
    finally:
        watcher.close()
        recorder.closed = True


def looks_again(server: MetadataServer[Any], part: str, times: int = 3) -> None:
    """Wait for `times` more requests, after which the watcher must have handled all earlier answers."""
    before = server.request_count(part)
    until(lambda: server.request_count(part) >= before + times)
