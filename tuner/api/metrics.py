"""Figures for Prometheus: latency by route as it happens; states, spend and holds read from the record at each scrape."""

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.service.figures import Totals

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
JOB_STATES = ("queued", "running", "paused", "succeeded", "cancelled", "failed")


class Metrics:
    """One registry an app."""

    def __init__(self, read: Callable[[], Totals]) -> None:
        self._registry = CollectorRegistry()
        self.latency = Histogram(
            "tuner_http_request_seconds",
            "Time to the first byte of an answer, by route template",
            ("method", "route", "status"),
            registry=self._registry,
            buckets=BUCKETS,
        )
        self._registry.register(_Recorded(read))

    def render(self) -> tuple[bytes, str]:
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class _Recorded(Collector):
    def __init__(self, read: Callable[[], Totals]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Nothing is read when it is registered."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        found = self._read()
        jobs = GaugeMetricFamily("tuner_jobs", "Tuning jobs by state", labels=["state"])
        for state in JOB_STATES:
            jobs.add_metric([state], found.jobs.get(state, 0))
        yield jobs
        trials = GaugeMetricFamily("tuner_trials", "Trials by state", labels=["state"])
        for state, count in sorted(found.trials.items()):
            trials.add_metric([state], count)
        yield trials
        spend = CounterMetricFamily("tuner_spend_usd", "Dollars posted, by kind of cost", labels=["kind"])
        for kind, cost in sorted(found.by_kind.items()):
            spend.add_metric([kind], cost.usd.usd)
        yield spend
        yield CounterMetricFamily("tuner_gpu_hours", "GPU-hours posted", value=found.posted.gpu_hours)
        yield GaugeMetricFamily("tuner_held_usd", "Dollars held for work under way", value=found.held.usd.usd)
        taken = "Attempts whose machine was taken away, with a notice or without"
        yield CounterMetricFamily("tuner_preemptions", taken, value=found.preemptions)
        yield SummaryMetricFamily(
            "tuner_queue_wait_seconds",
            "Time from a job's submission to its first driver",
            count_value=found.started,
            sum_value=found.queue_wait_ns / 1e9,
        )


class Latency:
    """ASGI middleware that times requests by the template of their route, so that ids make no new series."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                labels = (
                    scope["method"] if scope["method"] in METHODS else "other",
                    _template(scope),
                    str(message["status"]),
                )
                self._metrics.latency.labels(*labels).observe(time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, timed)


def _template(scope: Scope) -> str:
    """The route's template from the root; "none" where there is no such path, so that nobody can make series at will."""
    path: str = getattr(scope.get("route"), "path", "none")
    return (
        f"/v1{path}"
        if scope["path"].startswith("/v1/") and path.startswith("/") and not path.startswith("/v1")
        else path
    )
