"""Metrics for Prometheus. Requests are counted as they are answered. Figures of the database and the process are read at each scrape."""

import time
from collections.abc import Callable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner import __version__
from tuner.api import metric_families
from tuner.api.strict_json import template_of
from tuner.domain.errors import Unavailable
from tuner.service.metrics_snapshot import MetricsSnapshot
from tuner.service.periodic import ServiceHealth

BUCKETS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

# Without this call, the library adds a `_created` sample to each counter, and so a series that nobody uses.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one application, with their own registry.

    `read` returns the figures from the database. It must raise Unavailable if the database does not answer.
    """

    def __init__(self, read: Callable[[], MetricsSnapshot], health: ServiceHealth) -> None:
        self._registry = registry = CollectorRegistry()
        duration, requests, watchers = (
            metric_families.DURATION,
            metric_families.REQUESTS,
            metric_families.WATCHERS,
        )
        self._duration = Histogram(
            duration.name, duration.help, duration.labels, registry=registry, buckets=BUCKETS
        )
        self._requests = Counter(requests.name, requests.help, requests.labels, registry=registry)
        self.watchers = Gauge(watchers.name, watchers.help, registry=registry)
        registry.register(_SnapshotCollector(read, health))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

    def answered(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._duration.labels(method).observe(seconds)
        self._requests.labels(method, template_of(scope), f"{status // 100}xx").inc()

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the text and its content type: OpenMetrics if `accept` allows it, otherwise Prometheus' own format."""
        encode, kind = choose_encoder(accept)
        return encode(self._registry), kind


class _SnapshotCollector(Collector):
    def __init__(self, read: Callable[[], MetricsSnapshot], health: ServiceHealth) -> None:
        self._read, self._health = read, health

    def describe(self) -> Iterator[Metric]:
        """Describe no metrics, so that registering the collector does not read the database."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield metric_families.BUILD.metric({(__version__,): 1})
        for family, values in metric_families.OF_PROCESS:
            yield family.metric(values(self._health))
        try:
            snapshot = self._read()
        except Unavailable:
            yield metric_families.DATABASE.metric({(): 0})
            return
        yield metric_families.DATABASE.metric({(): 1})
        for family, figures in metric_families.RECORDED:
            yield family.metric(figures(snapshot))
        yield metric_families.queue_wait(snapshot)


class LatencyMiddleware:
    """ASGI middleware that counts and times requests by route template.

    The label is not the requested path, because paths contain job ids and each of them would create a new time series.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, streams = time.perf_counter(), 0

        async def timed(message: Message) -> None:
            nonlocal streams
            if message["type"] == "http.response.start":
                self._metrics.answered(scope, message["status"], time.perf_counter() - began)
                if _is_stream(message):
                    streams = 1
                    self._metrics.watchers.inc()
            await send(message)

        try:
            await self._app(scope, receive, timed)
        finally:
            self._metrics.watchers.dec(streams)


def _is_stream(start: Message) -> bool:
    kinds = (value for name, value in start.get("headers", ()) if name.lower() == b"content-type")
    return any(kind.startswith(b"text/event-stream") for kind in kinds)
